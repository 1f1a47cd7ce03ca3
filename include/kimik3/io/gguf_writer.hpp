#pragma once
// Writes GGUF files, version 3: the keys in the order given, then the tensors, each at a multiple of 32 bytes. Names of
// tensors have at most 63 bytes and shapes at most 4 extents, which is what ggml takes. The new file replaces an older
// one as a whole: after any failure the old one is what it was.

#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "kimik3/core/atomic_file.hpp"
#include "kimik3/io/gguf.hpp"

namespace kimik3 {

/// A tensor to write. write_numbers is called once, when the tensor's turn comes, and hands its elements, row-major, to
/// the sink in pieces of whole rows: as many in all as the shape has.
struct GgufTensorToWrite {
    using Sink = std::function<void(std::span<const float> rows)>;
    std::string name;
    GgufType type{};
    std::vector<Index> shape;  // row-major: ggml's ne backwards
    std::function<void(const Sink& sink)> write_numbers;
};

void write_gguf(const std::string& path, const GgufMetadata& metadata, const std::vector<GgufTensorToWrite>& tensors);

namespace detail {

inline constexpr Index gguf_alignment = 32;

/// The bytes in front of the data.
class GgufHeader {
public:
    template <class T>
    void number(T value) {
        static_assert(std::is_arithmetic_v<T>);
        bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
    }
    void text(std::string_view value) {
        number<std::uint64_t>(value.size());
        bytes_.append(value);
    }
    void value(const GgufValue& value) {
        constexpr std::size_t scalars = std::variant_size_v<GgufValue> / 2;
        const std::uint32_t id = gguf_scalar_id(value.index() % scalars);
        if (value.index() >= scalars) number(gguf_array_id);
        number(id);
        std::visit([&](const auto& held) { held_value(held); }, value);
    }
    void pad() { bytes_.resize(to_size(round_up(static_cast<Index>(bytes_.size()), gguf_alignment)), '\0'); }

    const std::string& bytes() const { return bytes_; }

private:
    void held_value(const std::string& held) { text(held); }
    void held_value(bool held) { number(static_cast<std::uint8_t>(held)); }
    template <class T>
        requires std::is_arithmetic_v<T>
    void held_value(T held) {
        number(held);
    }
    template <class T>
    void held_value(const std::vector<T>& held) {
        number(static_cast<std::uint64_t>(held.size()));
        for (const auto& element : held) held_value(static_cast<const T&>(element));
    }

    std::string bytes_;
};

/// The bytes of a tensor without its padding.
inline Index gguf_tensor_bytes(const GgufTensorToWrite& tensor) {
    constexpr Index limit = Index{1} << 60;
    Index count = 1;
    for (const Index extent : tensor.shape) {
        require(extent >= 0 && (extent == 0 || count <= limit / extent), "the shape [{}] of tensor '{}' has a negative "
                "extent or more than 2^60 elements", fmt::join(tensor.shape, ", "), tensor.name);
        count *= extent;
    }
    const GgufTypeInfo type = describe(tensor.type);
    const Index row = tensor.shape.empty() ? 1 : tensor.shape.back();
    require(row % type.elements == 0, "rows of tensor '{}' have {} elements; {} packs {} at a time", tensor.name, row,
            type.name, type.elements);
    return count / type.elements * type.bytes;
}

inline GgufHeader format_gguf_header(const GgufMetadata& metadata, const std::vector<GgufTensorToWrite>& tensors) {
    GgufHeader header;
    for (const char letter : gguf_magic) header.number(letter);
    header.number(std::uint32_t{3});
    header.number<std::uint64_t>(tensors.size());
    header.number<std::uint64_t>(metadata.size());
    std::set<std::string_view> keys{"general.alignment"}, names;
    for (const auto& [key, value] : metadata) {
        require(keys.insert(key).second, "a GGUF file has no room for {} '{}'",
                key == "general.alignment" ? "the key of the writer" : "two keys", key);
        header.text(key);
        header.value(value);
    }
    Index offset = 0;
    for (const GgufTensorToWrite& tensor : tensors) {
        require(names.insert(tensor.name).second, "a GGUF file has no room for two tensors '{}'", tensor.name);
        require(tensor.name.size() < 64 && tensor.shape.size() <= 4,
                "a tensor has a name of at most 63 bytes and at most 4 extents; '{}' has {} and {}", tensor.name,
                tensor.name.size(), tensor.shape.size());
        header.text(tensor.name);
        header.number(static_cast<std::uint32_t>(tensor.shape.size()));
        for (auto extent = tensor.shape.rbegin(); extent != tensor.shape.rend(); ++extent)
            header.number(static_cast<std::uint64_t>(*extent));
        header.number(static_cast<std::uint32_t>(tensor.type));
        header.number(static_cast<std::uint64_t>(offset));
        offset = round_up(offset + gguf_tensor_bytes(tensor), gguf_alignment);
    }
    header.pad();
    return header;
}

}  // namespace detail

inline void write_gguf(const std::string& path, const GgufMetadata& metadata,
                       const std::vector<GgufTensorToWrite>& tensors) {
    const detail::GgufHeader header = detail::format_gguf_header(metadata, tensors);
    AtomicFile file(path);
    file.write(header.bytes().data(), header.bytes().size());
    for (const GgufTensorToWrite& tensor : tensors) {
        const Index announced = detail::gguf_tensor_bytes(tensor);
        Index written = 0;
        tensor.write_numbers([&](std::span<const float> rows) {
            const std::vector<std::byte> bytes = encode_gguf(tensor.type, rows, tensor.name);
            file.write(bytes.data(), bytes.size());
            written += static_cast<Index>(bytes.size());
        });
        require(written == announced, "tensor '{}' has {} bytes by its shape and type, {} were written", tensor.name,
                announced, written);
        const char zeros[detail::gguf_alignment]{};
        file.write(zeros, to_size(round_up(written, detail::gguf_alignment) - written));
    }
    file.commit();
}

}  // namespace kimik3
