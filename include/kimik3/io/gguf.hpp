#pragma once
// Reads GGUF, the file format of ggml and llama.cpp, versions 2 and 3, little endian: magic, version, the counts of
// tensors and keys; the keys with their values; name, shape, type and place of every tensor; the data, each tensor at
// a multiple of general.alignment (32 unless the key says otherwise). Everything that the header claims is checked when
// the file is opened, before it is used: lengths and counts against what is left of the file, names against one
// another, and that the tensors stand one after the other as ggml wants them. What is wrong is an Error that names the
// key or tensor. Tensors are read on demand. Source: docs/gguf.md and src/gguf.cpp of github.com/ggml-org/ggml.

#include <fmt/format.h>

#include <functional>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "kimik3/io/gguf_blocks.hpp"
#include "kimik3/io/gguf_types.hpp"
#include "kimik3/io/input_file.hpp"
#include "kimik3/io/nearest_name.hpp"
#include "kimik3/io/stored_number.hpp"

namespace kimik3 {

inline constexpr std::string_view gguf_magic = "GGUF";

/// One tensor of a file.
struct GgufTensor {
    GgufType type{};
    std::vector<Index> shape;  // row-major, the last extent that of a row: ggml's ne backwards
    Index count = 0;           // elements
    Index file_offset = 0;     // of its first byte, from the beginning of the file
    Index size_bytes = 0;
};

class GgufFile {
public:
    /// Throws unless the file is whole and every claim of its header holds.
    explicit GgufFile(std::string path);

    const std::string& path() const { return file_.path(); }

    /// All keys in the order of the file.
    const GgufMetadata& metadata() const { return metadata_; }

    /// All tensors, ordered by name.
    const std::map<std::string, GgufTensor, std::less<>>& tensors() const { return tensors_; }

    /// The value of a key, or nullptr.
    const GgufValue* find_key(std::string_view key) const {
        const auto place = keys_.find(key);
        return place == keys_.end() ? nullptr : &metadata_[place->second].second;
    }

    /// The value of a key as T, which it must be: any integer type is read as Index, the others are read as themselves.
    /// none: the file has no such key.
    template <class T>
    std::optional<T> get(std::string_view key) const {
        const GgufValue* value = find_key(key);
        if (value == nullptr) return std::nullopt;
        return std::visit(
            [&](const auto& held) -> std::optional<T> {
                using Held = std::decay_t<decltype(held)>;
                if constexpr (std::is_same_v<Held, T>) {
                    return held;
                } else if constexpr (std::is_same_v<T, Index> && std::is_integral_v<Held> &&
                                     !std::is_same_v<Held, bool>) {
                    if (std::in_range<Index>(held)) return static_cast<T>(held);
                }
                fail("'{}': key '{}' is {} and cannot be taken as {}", path(), key, detail::gguf_kind(value->index()),
                     detail::gguf_kind(GgufValue(T{}).index()));
            },
            *value);
    }

    /// The value of a key that the file must have.
    template <class T>
    T at(std::string_view key) const {
        std::optional<T> value = get<T>(key);
        require(value.has_value(), "'{}' has no key '{}'", path(), key);
        return *std::move(value);
    }

    const GgufTensor& find(std::string_view name) const {
        const auto found = tensors_.find(name);
        if (found != tensors_.end()) return found->second;
        std::vector<std::string_view> names;
        for (const auto& entry : tensors_) names.push_back(entry.first);
        const std::string_view nearest = nearest_name(name, names);
        if (nearest.empty()) fail("'{}' has no tensor '{}'", path(), detail::shown_name(name));
        fail("'{}' has no tensor '{}'; the nearest name is '{}'", path(), detail::shown_name(name), nearest);
    }

    /// All elements of a tensor of type f32, f16, bf16 or q8_0, which must be count many.
    void read(std::string_view name, float* destination, Index count) const {
        const GgufTensor& tensor = find(name);
        require(tensor.count == count, "tensor '{}' of '{}' has {} elements, {} are wanted", detail::shown_name(name),
                path(), tensor.count, count);
        const GgufTypeInfo type = describe(tensor.type);
        const Index piece = (Index{1} << 14) * type.elements;
        for (Index done = 0; done < count; done += piece) {
            const Index some = (std::min)(piece, count - done);
            std::vector<std::byte> bytes(to_size(some / type.elements * type.bytes));
            file_.read(tensor.file_offset + done / type.elements * type.bytes, bytes.data(),
                       static_cast<Index>(bytes.size()));
            decode_gguf(tensor.type, bytes, {destination + done, to_size(some)});
        }
    }

private:
    InputFile file_;
    GgufMetadata metadata_;
    std::map<std::string, std::size_t, std::less<>> keys_;  // key -> its place in metadata_
    std::map<std::string, GgufTensor, std::less<>> tensors_;
};

namespace detail {

/// Reads a file from the front. what, in every call, is what messages say was being read.
class GgufCursor {
public:
    explicit GgufCursor(const InputFile& file) : file_(file) {}

    Index at() const { return begin_ + used_; }
    Index left() const { return file_.size_bytes() - at(); }

    template <class T>
    T number(std::string_view what) {
        T value{};
        take(&value, static_cast<Index>(sizeof value), what);
        return value;
    }

    std::string text(std::string_view what) {
        const auto length = number<std::uint64_t>(what);
        require(std::cmp_less_equal(length, left()),
                "'{}' is cut, or lies: {} has a text of {} bytes at byte {}, {} bytes are left", file_.path(), what,
                length, at(), left());
        std::string value(length, '\0');
        take(value.data(), static_cast<Index>(length), what);
        return value;
    }

    /// A count of things of which each takes so many bytes at least.
    Index count(std::string_view what, Index smallest_bytes) {
        const auto value = number<std::uint64_t>(what);
        require(std::cmp_less_equal(value, left() / smallest_bytes),
                "'{}' is cut, or lies: {} has a count of {} at byte {}, {} bytes are left", file_.path(), what, value,
                at(), left());
        return static_cast<Index>(value);
    }

private:
    void take(void* destination, Index bytes, std::string_view what) {
        require(bytes <= left(), "'{}' is cut: {} goes on at byte {}, where {} bytes are left of {}", file_.path(),
                what, at(), left(), file_.size_bytes());
        char* next = static_cast<char*>(destination);
        while (bytes > 0) {
            if (used_ == static_cast<Index>(buffer_.size())) refill();
            const Index some = (std::min)(bytes, static_cast<Index>(buffer_.size()) - used_);
            std::memcpy(next, buffer_.data() + used_, to_size(some));
            next += some, bytes -= some, used_ += some;
        }
    }

    void refill() {
        constexpr Index piece = Index{1} << 16;
        begin_ += used_;
        used_ = 0;
        buffer_.resize(to_size((std::min)(piece, file_.size_bytes() - begin_)));
        file_.read(begin_, buffer_.data(), static_cast<Index>(buffer_.size()));
    }

    const InputFile& file_;
    std::vector<char> buffer_;
    Index begin_ = 0, used_ = 0;  // of the buffer in the file, and what is taken from it
};

template <class T>
T read_gguf_scalar(GgufCursor& cursor, std::string_view what) {
    if constexpr (std::is_same_v<T, std::string>) {
        return cursor.text(what);
    } else if constexpr (std::is_same_v<T, bool>) {
        const auto byte = cursor.number<std::uint8_t>(what);
        require(byte <= 1, "{} is a bool of the value {}", what, byte);
        return byte == 1;
    } else {
        return cursor.number<T>(what);
    }
}

/// A value, or the elements of an array, of the kind with this number in the file.
inline GgufValue read_gguf_value(GgufCursor& cursor, std::uint32_t id, bool array, std::string_view what) {
    GgufValue value;
    bool known = false;
    constexpr std::size_t scalars = std::variant_size_v<GgufValue> / 2;
    const auto try_kind = [&]<std::size_t kind>(std::integral_constant<std::size_t, kind>) {
        if (gguf_scalar_id(kind) != id) return;
        known = true;
        using Scalar = std::variant_alternative_t<kind, GgufValue>;
        if (!array) {
            value.emplace<kind>(read_gguf_scalar<Scalar>(cursor, what));
            return;
        }
        auto& elements = value.emplace<kind + scalars>();
        constexpr Index smallest =
            std::is_same_v<Scalar, std::string> ? 8 : std::is_same_v<Scalar, bool> ? 1 : Index{sizeof(Scalar)};
        const Index count = cursor.count(what, smallest);
        elements.reserve(to_size((std::min)(count, Index{1} << 16)));
        for (Index e = 0; e < count; ++e) elements.push_back(read_gguf_scalar<Scalar>(cursor, what));
    };
    [&]<std::size_t... kind>(std::index_sequence<kind...>) {
        (try_kind(std::integral_constant<std::size_t, kind>{}), ...);
    }(std::make_index_sequence<scalars>{});
    require(id != gguf_array_id, "{} is an array of arrays, which ggml refuses too", what);
    require(known, "{} has the unknown type {}", what, id);
    return value;
}

/// Magic, version, and how many tensors and keys follow.
inline std::pair<Index, Index> read_gguf_counts(GgufCursor& cursor, const std::string& path) {
    const auto magic = cursor.number<std::uint32_t>("the header");
    require(std::string_view(reinterpret_cast<const char*>(&magic), sizeof magic) == gguf_magic,
            "'{}' is no GGUF file: it does not begin with '{}'", path, gguf_magic);
    const auto version = cursor.number<std::uint32_t>("the header");
    require((version & 0xffffu) != 0, "'{}' is a big-endian GGUF file; little-endian ones are read", path);
    require(version == 2 || version == 3, "'{}' has version {} of the GGUF format; versions 2 and 3 are read", path,
            version);
    const Index tensors = cursor.count("the header's number of tensors", 24);
    return {tensors, cursor.count("the header's number of keys", 13)};
}

/// The description of a tensor; file_offset is relative to the data.
inline GgufTensor read_gguf_tensor(GgufCursor& cursor, std::string_view what) {
    const auto dimensions = cursor.number<std::uint32_t>(what);
    require(dimensions <= 4, "{} has {} dimensions; a tensor has at most 4", what, dimensions);
    GgufTensor tensor;
    tensor.count = 1;
    for (std::uint32_t d = 0; d < dimensions; ++d) {
        const auto extent = cursor.number<std::uint64_t>(what);
        constexpr Index limit = (std::numeric_limits<Index>::max)() / 8;  // an element has at most 8 bytes
        require(std::cmp_less_equal(extent, limit) &&
                    (extent == 0 || tensor.count <= limit / static_cast<Index>(extent)),
                "{} has more than 2^63 - 1 bytes by its shape", what);
        tensor.shape.insert(tensor.shape.begin(), static_cast<Index>(extent));
        tensor.count *= static_cast<Index>(extent);
    }
    const auto number = cursor.number<std::uint32_t>(what);
    const std::optional<GgufTypeInfo> type = find_gguf_type(number);
    require(type.has_value(), "{} has the unknown type {}", what, number);
    const Index row = tensor.shape.empty() ? 1 : tensor.shape.back();
    require(row % type->elements == 0, "{} has rows of {} elements; {} packs {} at a time", what, row, type->name,
            type->elements);
    const auto offset = cursor.number<std::uint64_t>(what);
    require(std::in_range<Index>(offset), "{} begins at {} of the data, more than 2^63 - 1", what, offset);
    tensor.type = type->type;
    tensor.size_bytes = tensor.count / type->elements * type->bytes;
    tensor.file_offset = static_cast<Index>(offset);
    return tensor;
}

}  // namespace detail

inline GgufFile::GgufFile(std::string path) : file_(std::move(path)) {
    using detail::shown_name;
    detail::GgufCursor cursor(file_);
    const auto [tensor_count, key_count] = detail::read_gguf_counts(cursor, this->path());
    Index alignment = 32;
    for (Index k = 0; k < key_count; ++k) {
        std::string key = cursor.text(fmt::format("the name of key {}", k));
        const std::string what = fmt::format("key '{}' of '{}'", shown_name(key), this->path());
        require(keys_.emplace(key, metadata_.size()).second, "{} is given twice", what);
        auto id = cursor.number<std::uint32_t>(what);
        const bool array = id == detail::gguf_array_id;
        if (array) id = cursor.number<std::uint32_t>(what);
        metadata_.emplace_back(std::move(key), detail::read_gguf_value(cursor, id, array, what));
    }
    if (const auto wanted = get<Index>("general.alignment")) {
        require(*wanted > 0 && *wanted <= (Index{1} << 31) && (*wanted & (*wanted - 1)) == 0,
                "'{}': general.alignment must be a power of two, it is {}", this->path(), *wanted);
        alignment = *wanted;
    }
    std::vector<decltype(tensors_)::value_type*> order;
    for (Index t = 0; t < tensor_count; ++t) {
        std::string name = cursor.text(fmt::format("the name of tensor {}", t));
        const std::string what = fmt::format("tensor '{}' of '{}'", shown_name(name), this->path());
        const auto [place, fresh] = tensors_.emplace(std::move(name), GgufTensor{});
        require(fresh, "{} is given twice", what);
        place->second = detail::read_gguf_tensor(cursor, what);
        order.push_back(&*place);
    }
    const Index data = round_up(cursor.at(), alignment);
    Index next = 0;
    for (auto* entry : order) {
        GgufTensor& tensor = entry->second;
        require(tensor.file_offset == next, "'{}': tensor '{}' begins at {} of the data, the one before it ends at {} "
                "with its padding", this->path(), shown_name(entry->first), tensor.file_offset, next);
        tensor.file_offset += data;
        require(tensor.size_bytes <= file_.size_bytes() - tensor.file_offset,
                "'{}' is cut: tensor '{}' has {} bytes from byte {} on, the file has {} bytes", this->path(),
                shown_name(entry->first), tensor.size_bytes, tensor.file_offset, file_.size_bytes());
        next = round_up(next + tensor.size_bytes, alignment);
    }
    require(order.empty() || file_.size_bytes() <= data + next, "'{}' has {} bytes, its tensors end at byte {}",
            this->path(), file_.size_bytes(), data + next);
}

}  // namespace kimik3
