#pragma once
// Writes safetensors files. The data begin at a multiple of 64 bytes (the header is padded with spaces); tensors whose
// size is a multiple of 64 come first, so that they begin at one too, then the others from wide to narrow elements, so
// that each is aligned to its element; within these groups they stand in the order of their names. The same tensors
// give the same bytes, in whatever order they come. The new file replaces an older one as a whole: after any failure
// the old one is what it was.

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "kimik3/core/atomic_file.hpp"
#include "kimik3/core/dtype.hpp"
#include "kimik3/io/safetensors_header.hpp"
#include "kimik3/io/stored_number.hpp"

namespace kimik3 {

/// Appends bytes to the tensor that is being written.
using ByteSink = std::function<void(const void* bytes, Index count)>;

/// A tensor to write. write_bytes is called once, when the tensor's turn comes, and hands its elements, row-major, to
/// the sink in as many pieces as it likes: exactly the bytes that shape and dtype announce.
struct TensorToWrite {
    std::string name;
    DType dtype{};
    std::vector<Index> shape;
    std::function<void(const ByteSink& sink)> write_bytes;
};

namespace detail {
inline Index announced_bytes(const std::string& name, const std::vector<Index>& shape, DType dtype);
template <class Stored, class T>
void write_converted(const std::string& name, const T* elements, Index count, const ByteSink& sink);
inline std::string format_safetensors_header(std::vector<TensorToWrite>& tensors,
                                             const std::map<std::string, std::string>& metadata);
}  // namespace detail

/// A tensor whose elements lie in memory; they are not copied and must live until the file is written.
template <class T>
TensorToWrite tensor_in_memory(std::string name, std::vector<Index> shape, const T* elements) {
    const Index bytes = detail::announced_bytes(name, shape, dtype_of<T>);
    return {std::move(name), dtype_of<T>, std::move(shape),
            [elements, bytes](const ByteSink& sink) { sink(elements, bytes); }};
}

/// The same, written in another floating-point format; an Error where a finite element would become infinite.
template <class T>
TensorToWrite tensor_as(DType dtype, std::string name, std::vector<Index> shape, const T* elements) {
    if (dtype == dtype_of<T>) return tensor_in_memory(std::move(name), std::move(shape), elements);
    TensorToWrite tensor{std::move(name), dtype, std::move(shape), {}};
    tensor.write_bytes = [elements, dtype, name = tensor.name,
                          count = detail::announced_bytes(tensor.name, tensor.shape, dtype) / size_bytes(dtype)](
                             const ByteSink& sink) {
        detail::with_type(dtype, [&]<class Stored>(std::type_identity<Stored>) {
            if constexpr (detail::is_float<Stored>) detail::write_converted<Stored>(name, elements, count, sink);
            else fail("tensor '{}' is written in a floating-point format, {} is none", name, dtype_name(dtype));
        });
    };
    return tensor;
}

/// Writes the tensors, whose names differ, and the metadata; all strings are UTF-8.
inline void write_safetensors(const std::string& path, std::vector<TensorToWrite> tensors,
                              const std::map<std::string, std::string>& metadata = {}) {
    const std::string header = detail::format_safetensors_header(tensors, metadata);
    AtomicFile file(path);
    const std::uint64_t length = header.size();
    file.write(&length, sizeof length);
    file.write(header.data(), header.size());
    for (const TensorToWrite& tensor : tensors) {
        const Index announced = detail::announced_bytes(tensor.name, tensor.shape, tensor.dtype);
        Index written = 0;
        tensor.write_bytes([&](const void* bytes, Index count) {
            require(count >= 0 && count <= announced - written,
                    "tensor '{}' has {} bytes by its shape and dtype, after {} came {} more", tensor.name, announced,
                    written, count);
            file.write(bytes, to_size(count));
            written += count;
        });
        require(written == announced, "tensor '{}' has {} bytes by its shape and dtype, {} were written", tensor.name,
                announced, written);
    }
    file.commit();
}

namespace detail {

/// The size of a tensor in bytes.
inline Index announced_bytes(const std::string& name, const std::vector<Index>& shape, DType dtype) {
    for (Index extent : shape) require(extent >= 0, "tensor '{}' has the extent {} in its shape", name, extent);
    const std::optional<Index> count = element_count(shape, dtype);
    require(count.has_value(), "the shape of tensor '{}' has more than 2^63 - 1 bytes", name);
    return *count * kimik3::size_bytes(dtype);
}

template <class Stored, class T>
void write_converted(const std::string& name, const T* elements, Index count, const ByteSink& sink) {
    constexpr Index piece = 1 << 14;
    std::vector<Stored> buffer(to_size((std::min)(count, piece)));
    for (Index done = 0; done < count; done += piece) {
        const Index size = (std::min)(piece, count - done);
        for (Index e = 0; e < size; ++e)
            require(convert_element<T>(elements[done + e], buffer[to_size(e)]),
                    "element {} of tensor '{}' is {}, which {} does not hold", done + e, name,
                    printable(elements[done + e]), dtype_name(dtype_of<Stored>));
        sink(buffer.data(), size * static_cast<Index>(sizeof(Stored)));
    }
}

/// A JSON string.
inline std::string quoted(const std::string& text) {
    try {
        return nlohmann::json(text).dump();
    } catch (const nlohmann::json::exception&) {
        fail("names and metadata of a safetensors file are UTF-8, '{}' is not", shown_name(text));
    }
}

/// Puts the tensors into the order of the file and formats the header, padded so that the data are aligned.
inline std::string format_safetensors_header(std::vector<TensorToWrite>& tensors,
                                             const std::map<std::string, std::string>& metadata) {
    constexpr Index alignment = 64, length_bytes = 8;
    std::ranges::sort(tensors, {}, [](const TensorToWrite& tensor) {
        const bool breaks_alignment = announced_bytes(tensor.name, tensor.shape, tensor.dtype) % alignment != 0;
        return std::tuple(breaks_alignment, -kimik3::size_bytes(tensor.dtype), tensor.name);
    });
    std::string header = "{", separator;
    if (!metadata.empty()) {
        header += "\"__metadata__\":{";
        for (const auto& [key, value] : metadata) {
            header += separator + quoted(key) + ":" + quoted(value);
            separator = ",";
        }
        header += "}";
    }
    Index offset = 0;
    std::set<std::string_view> names{"__metadata__"};
    for (const TensorToWrite& tensor : tensors) {
        require(names.insert(tensor.name).second, "a safetensors file has no room for {} named '{}'",
                tensor.name == "__metadata__" ? "a tensor" : "two tensors", shown_name(tensor.name));
        const Index bytes = announced_bytes(tensor.name, tensor.shape, tensor.dtype);
        require(bytes <= (std::numeric_limits<Index>::max)() - offset, "the tensors have more than 2^63 - 1 bytes");
        header += fmt::format(R"({}{}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", separator,
                              quoted(tensor.name), dtype_name(tensor.dtype), fmt::join(tensor.shape, ","), offset,
                              offset + bytes);
        separator = ",";
        offset += bytes;
    }
    header += "}";
    header.resize(to_size(round_up(length_bytes + static_cast<Index>(header.size()), alignment) - length_bytes), ' ');
    require(static_cast<Index>(header.size()) <= safetensors_header_limit_bytes,
            "the header of a safetensors file has at most {} bytes, this one needs {}", safetensors_header_limit_bytes,
            header.size());
    return header;
}

}  // namespace detail

}  // namespace kimik3
