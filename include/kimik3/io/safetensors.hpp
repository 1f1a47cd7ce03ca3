#pragma once
// Reads the safetensors format: 8 bytes with the header's length n (little endian), n bytes of JSON that give every
// tensor's dtype, shape and byte range, then the data. Everything the header claims is checked when the file is opened,
// before it is used: the lengths against the file, ranges against shapes, and that the ranges cover the data once
// without holes. Tensors are read on demand, so opening costs the header alone.
// Source: the format description of the safetensors project (github.com/huggingface/safetensors).

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kimik3/core/dtype.hpp"
#include "kimik3/io/input_file.hpp"
#include "kimik3/io/nearest_name.hpp"
#include "kimik3/io/safetensors_header.hpp"
#include "kimik3/io/stored_number.hpp"

namespace kimik3 {

namespace detail {
/// Error: what is called path has no tensor of that name; shows the nearest of the names, the keys of a map.
template <class Names>
[[noreturn]] void fail_without_tensor(const std::string& path, std::string_view name, const Names& names) {
    std::vector<std::string_view> candidates;
    for (const auto& entry : names) candidates.push_back(entry.first);
    const std::string_view nearest = nearest_name(name, candidates);
    if (nearest.empty()) fail("'{}' has no tensor '{}'", path, shown_name(name));
    fail("'{}' has no tensor '{}'; the nearest name is '{}'", path, shown_name(name), nearest);
}
}  // namespace detail

class SafetensorsFile {
public:
    /// Throws unless the file is whole and every claim of its header holds.
    explicit SafetensorsFile(std::string path) : file_(std::move(path)) {
        Index data_begin = 0;
        header_ = detail::read_safetensors_header(file_, data_begin);
        detail::check_ranges(header_.tensors, file_, data_begin);
    }

    const std::string& path() const { return file_.path(); }

    /// All tensors, ordered by name.
    const std::map<std::string, TensorInfo, std::less<>>& tensors() const { return header_.tensors; }

    /// The strings under "__metadata__".
    const std::map<std::string, std::string, std::less<>>& metadata() const { return header_.metadata; }

    bool contains(std::string_view name) const { return header_.tensors.find(name) != header_.tensors.end(); }

    const TensorInfo& find(std::string_view name) const {
        const auto found = header_.tensors.find(name);
        if (found == header_.tensors.end()) detail::fail_without_tensor(path(), name, header_.tensors);
        return found->second;
    }

    /// All elements of a tensor, which must be count many, converted to T. Floating-point tensors are read as float,
    /// double, bf16 or f16 by a cast that must not make a finite number infinite, integers and booleans as integers
    /// that must hold every value, booleans as bool.
    template <class T>
    void read(std::string_view name, T* destination, Index count) const {
        const TensorInfo& tensor = find(name);
        require(tensor.count == count, "tensor '{}' of '{}' has {} elements, {} are wanted", detail::shown_name(name),
                path(), tensor.count, count);
        read_part(name, 0, destination, count);
    }

    /// The elements [first, first + count) of a tensor, in row-major order.
    template <class T>
    void read_part(std::string_view name, Index first, T* destination, Index count) const {
        const TensorInfo& tensor = find(name);
        require(first >= 0 && count >= 0 && first <= tensor.count && count <= tensor.count - first,
                "tensor '{}' of '{}' has {} elements, [{}, +{}) are wanted", detail::shown_name(name), path(),
                tensor.count, first, count);
        detail::with_type(tensor.dtype, [&]<class Stored>(std::type_identity<Stored>) {
            read_as<Stored>(name, tensor, first, destination, count);
        });
    }

private:
    template <class Stored, class T>
    void read_as(std::string_view name, const TensorInfo& tensor, Index first, T* destination, Index count) const {
        constexpr Index stored_bytes = static_cast<Index>(sizeof(Stored)), piece = (Index{1} << 16) / stored_bytes;
        const Index begin = tensor.file_offset + first * stored_bytes;
        if constexpr (std::is_same_v<Stored, T> && !std::is_same_v<T, bool>) {
            file_.read(begin, destination, count * stored_bytes);
        } else if constexpr (detail::convertible<Stored, T>) {
            using Raw = std::conditional_t<std::is_same_v<Stored, bool>, std::uint8_t, Stored>;
            const auto buffer = std::make_unique<Raw[]>(to_size((std::min)(count, piece)));
            for (Index done = 0; done < count; done += piece) {
                const Index size = (std::min)(piece, count - done);
                file_.read(begin + done * stored_bytes, buffer.get(), size * stored_bytes);
                for (Index e = 0; e < size; ++e)
                    require(detail::convert_element<Stored>(buffer[to_size(e)], destination[done + e]),
                            "element {} of tensor '{}' of '{}' is {}, which {} does not hold", first + done + e,
                            detail::shown_name(name), path(), detail::printable(buffer[to_size(e)]),
                            dtype_name(dtype_of<T>));
            }
        } else {
            fail("tensor '{}' of '{}' is {}, which is not read as {}", detail::shown_name(name), path(),
                 dtype_name(tensor.dtype), dtype_name(dtype_of<T>));
        }
    }

    InputFile file_;
    detail::SafetensorsHeader header_;
};

}  // namespace kimik3
