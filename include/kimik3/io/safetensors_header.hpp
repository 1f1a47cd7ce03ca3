#pragma once
// The header of a safetensors file: its JSON is parsed event by event, so a name given twice is seen (also when one of
// the two is escaped), depth is bounded by the format, and no value is kept that the format does not know.

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "kimik3/core/dtype.hpp"
#include "kimik3/io/input_file.hpp"
#include "kimik3/io/nearest_name.hpp"

namespace kimik3 {

/// One tensor of a file.
struct TensorInfo {
    DType dtype{};
    std::vector<Index> shape;
    Index count = 0;        // elements
    Index file_offset = 0;  // of its first byte, from the beginning of the file
    Index size_bytes = 0;
};

/// The name of a number format in safetensors files.
constexpr std::string_view dtype_name(DType dtype) {
    constexpr std::string_view names[] = {"F64", "F32", "F16", "BF16", "I64", "I32", "I16",
                                          "I8",  "U64", "U32", "U16",  "U8",  "BOOL"};
    return names[static_cast<int>(dtype)];
}

namespace detail {

struct SafetensorsHeader {
    std::map<std::string, TensorInfo, std::less<>> tensors;
    std::map<std::string, std::string, std::less<>> metadata;
};

/// Longest header that the format allows.
inline constexpr Index safetensors_header_limit_bytes = 100'000'000;

/// The number of elements of a shape; none when their bytes do not fit in an Index.
inline std::optional<Index> element_count(const std::vector<Index>& shape, DType dtype) {
    const Index limit = (std::numeric_limits<Index>::max)() / kimik3::size_bytes(dtype);
    Index count = 1;
    for (Index extent : shape) {
        if (extent != 0 && count > limit / extent) return std::nullopt;
        count *= extent;
    }
    return count;
}

/// Receives the parser's events; file_offset is relative to the data until check_ranges has seen it.
class SafetensorsHeaderReader final : public nlohmann::json_sax<nlohmann::json> {
public:
    SafetensorsHeaderReader(const std::string& path, SafetensorsHeader& header) : path_(path), header_(header) {}

    bool start_object(std::size_t) override {
        if (level_ == Level::outside) level_ = Level::top;
        else if (level_ == Level::top && name_ == "__metadata__") level_ = Level::metadata;
        else if (level_ == Level::top) begin_tensor();
        else refuse("an object");
        return true;
    }

    bool end_object() override {
        if (level_ == Level::tensor) end_tensor();
        level_ = level_ == Level::top ? Level::outside : Level::top;
        return true;
    }

    bool key(std::string& text) override {
        if (level_ == Level::tensor) {
            require(text == "dtype" || text == "shape" || text == "data_offsets",
                    "'{}': tensor '{}' has the unknown key '{}'; valid are dtype, shape, data_offsets", path_,
                    shown_name(name_), shown_name(text));
            require(seen_.insert(text).second, "'{}': tensor '{}' gives '{}' twice", path_, shown_name(name_), text);
            field_ = text;
        } else if (level_ == Level::metadata) {
            require(!header_.metadata.contains(text), "'{}': the metadata give '{}' twice", path_, shown_name(text));
            field_ = text;
        } else {
            const bool metadata = text == "__metadata__";
            require(metadata ? !has_metadata_ : !header_.tensors.contains(text),
                    "'{}': the header gives the name '{}' twice", path_, shown_name(text));
            has_metadata_ = has_metadata_ || metadata;
            name_ = text;
        }
        return true;
    }

    bool string(std::string& text) override {
        if (level_ == Level::metadata) header_.metadata.emplace(field_, text);
        else if (level_ == Level::tensor && field_ == "dtype") tensor_.dtype = parse_dtype(text);
        else refuse("a string");
        return true;
    }

    bool start_array(std::size_t) override {
        if (level_ != Level::tensor || field_ == "dtype") refuse("an array");
        level_ = Level::numbers;
        return true;
    }

    bool end_array() override {
        level_ = Level::tensor;
        return true;
    }

    bool number_unsigned(std::uint64_t value) override {
        if (level_ != Level::numbers) refuse("a number");
        require(std::in_range<Index>(value), "'{}': tensor '{}' has {} in its {}, more than 2^63 - 1", path_,
                shown_name(name_), value, field_);
        (field_ == "shape" ? tensor_.shape : offsets_).push_back(static_cast<Index>(value));
        return true;
    }

    bool number_integer(std::int64_t) override { refuse("a negative number"); }
    bool number_float(double, const std::string&) override { refuse("a number that is not a plain integer"); }
    bool null() override { refuse("null"); }
    bool boolean(bool) override { refuse("true or false"); }
    bool binary(nlohmann::json::binary_t&) override { refuse("binary data"); }

    bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception&) override {
        fail("'{}': the header is not valid JSON in UTF-8 at byte {} of it", path_, position);
    }

private:
    enum class Level { outside, top, metadata, tensor, numbers };

    [[noreturn]] void refuse(std::string_view what) const {
        switch (level_) {
            case Level::outside: fail("'{}': the header must be a JSON object, it is {}", path_, what);
            case Level::top: fail("'{}': '{}' must be an object, it is {}", path_, shown_name(name_), what);
            case Level::metadata:
                fail("'{}': the metadata '{}' must be a string, it is {}", path_, shown_name(field_), what);
            default:
                fail("'{}': tensor '{}' has {} in its {}; dtype is a string, shape and data_offsets are lists of "
                     "integers that are not negative", path_, shown_name(name_), what, field_);
        }
    }

    DType parse_dtype(std::string_view text) const {
        constexpr int count = static_cast<int>(DType::boolean) + 1;
        std::string valid;
        for (int d = 0; d < count; ++d) {
            const std::string_view name = dtype_name(static_cast<DType>(d));
            if (name == text) return static_cast<DType>(d);
            valid.append(d == 0 ? "" : ", ").append(name);
        }
        fail("'{}': tensor '{}' has the unknown dtype '{}'; known are {}", path_, shown_name(name_), shown_name(text),
             valid);
    }

    void begin_tensor() {
        level_ = Level::tensor;
        tensor_ = TensorInfo{};
        offsets_.clear();
        seen_.clear();
    }

    void end_tensor() {
        for (const char* field : {"dtype", "shape", "data_offsets"})
            require(seen_.contains(field), "'{}': tensor '{}' has no {}", path_, shown_name(name_), field);
        require(offsets_.size() == 2, "'{}': data_offsets of tensor '{}' must be [begin, end], it has {} numbers",
                path_, shown_name(name_), offsets_.size());
        require(offsets_[0] <= offsets_[1], "'{}': data_offsets [{}, {}] of tensor '{}' run backwards", path_,
                offsets_[0], offsets_[1], shown_name(name_));
        const std::optional<Index> count = element_count(tensor_.shape, tensor_.dtype);
        require(count.has_value(), "'{}': the shape of tensor '{}' has more than 2^63 - 1 bytes", path_,
                shown_name(name_));
        tensor_.count = *count;
        tensor_.file_offset = offsets_[0];
        tensor_.size_bytes = offsets_[1] - offsets_[0];
        require(tensor_.size_bytes == *count * kimik3::size_bytes(tensor_.dtype),
                "'{}': tensor '{}' has {} bytes by its shape and dtype, but data_offsets [{}, {}] give it {}", path_,
                shown_name(name_), *count * kimik3::size_bytes(tensor_.dtype), offsets_[0], offsets_[1],
                tensor_.size_bytes);
        header_.tensors.emplace(name_, std::move(tensor_));
    }

    const std::string& path_;
    SafetensorsHeader& header_;
    Level level_ = Level::outside;
    bool has_metadata_ = false;
    std::string name_, field_;  // the keys that lead to the next value
    TensorInfo tensor_;
    std::vector<Index> offsets_;
    std::set<std::string> seen_;  // fields of the current tensor
};

/// Parses the header and sets where the data begin.
inline SafetensorsHeader read_safetensors_header(const InputFile& file, Index& data_begin) {
    constexpr Index length_bytes = 8;
    require(file.size_bytes() >= length_bytes, "'{}' has {} bytes; a safetensors file has at least {}", file.path(),
            file.size_bytes(), length_bytes);
    std::uint64_t length = 0;
    file.read(0, &length, length_bytes);
    require(length >= 2 && std::cmp_less_equal(length, safetensors_header_limit_bytes),
            "'{}': the header's length must lie in [2, {}], it is {}", file.path(), safetensors_header_limit_bytes,
            length);
    data_begin = length_bytes + static_cast<Index>(length);
    require(data_begin <= file.size_bytes(), "'{}' is cut: length and header take {} bytes, the file has {}",
            file.path(), data_begin, file.size_bytes());
    std::string text(length, '\0');
    file.read(length_bytes, text.data(), static_cast<Index>(length));
    // The parser takes a zero for the end of its input.
    require(text.find('\0') == text.npos, "'{}': the header has a zero byte", file.path());
    SafetensorsHeader header;
    SafetensorsHeaderReader reader(file.path(), header);
    nlohmann::json::sax_parse(text, &reader);
    return header;
}

/// The tensors must cover the data exactly once; turns their offsets into places in the file.
inline void check_ranges(std::map<std::string, TensorInfo, std::less<>>& tensors, const InputFile& file,
                         Index data_begin) {
    std::vector<std::pair<const std::string, TensorInfo>*> order;
    order.reserve(tensors.size());
    for (auto& entry : tensors) order.push_back(&entry);
    std::ranges::sort(order, {}, [](const auto* entry) {
        return std::pair(entry->second.file_offset, entry->second.file_offset + entry->second.size_bytes);
    });
    const Index data_bytes = file.size_bytes() - data_begin;
    Index covered = 0;
    for (auto* entry : order) {
        TensorInfo& tensor = entry->second;
        const Index begin = tensor.file_offset, end = begin + tensor.size_bytes;
        require(end <= data_bytes, "'{}' is cut: tensor '{}' ends at byte {} of the file, which has {} bytes",
                file.path(), shown_name(entry->first),
                static_cast<std::uint64_t>(data_begin) + static_cast<std::uint64_t>(end), file.size_bytes());
        require(begin >= covered, "'{}': tensor '{}' begins at {} of the data, inside the tensor before it which ends "
                "at {}", file.path(), shown_name(entry->first), begin, covered);
        require(begin == covered, "'{}': the bytes [{}, {}) of the data, before tensor '{}', belong to no tensor",
                file.path(), covered, begin, shown_name(entry->first));
        covered = end;
        tensor.file_offset += data_begin;
    }
    require(covered == data_bytes, "'{}' has {} bytes, its tensors end at byte {}", file.path(), file.size_bytes(),
            data_begin + covered);
}

}  // namespace detail

}  // namespace kimik3
