#pragma once
// The types of GGUF files (ggml's gguf.h and ggml.h): what a key's value may be, and how the numbers of a tensor are
// stored. A tensor type packs a row into blocks of so many elements and bytes; a row is a whole number of blocks.

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "kimik3/core/base.hpp"

namespace kimik3 {

/// The value of a key: a scalar, or an array of one kind of scalar. Arrays of arrays do not occur: ggml refuses them.
using GgufValue =
    std::variant<std::uint8_t, std::int8_t, std::uint16_t, std::int16_t, std::uint32_t, std::int32_t, float, bool,
                 std::string, std::uint64_t, std::int64_t, double, std::vector<std::uint8_t>, std::vector<std::int8_t>,
                 std::vector<std::uint16_t>, std::vector<std::int16_t>, std::vector<std::uint32_t>,
                 std::vector<std::int32_t>, std::vector<float>, std::vector<bool>, std::vector<std::string>,
                 std::vector<std::uint64_t>, std::vector<std::int64_t>, std::vector<double>>;

/// Keys and their values in the order of the file.
using GgufMetadata = std::vector<std::pair<std::string, GgufValue>>;

/// Every type that ggml knows, so that a file of any of them can be opened. The numbers of f32, f16, bf16 and q8_0 are
/// read and written.
enum class GgufType : std::uint32_t {
    f32 = 0, f16 = 1, q4_0 = 2, q4_1 = 3, q5_0 = 6, q5_1 = 7, q8_0 = 8, q8_1 = 9, q2_k = 10, q3_k = 11, q4_k = 12,
    q5_k = 13, q6_k = 14, q8_k = 15, iq2_xxs = 16, iq2_xs = 17, iq3_xxs = 18, iq1_s = 19, iq4_nl = 20, iq3_s = 21,
    iq2_s = 22, iq4_xs = 23, i8 = 24, i16 = 25, i32 = 26, i64 = 27, f64 = 28, iq1_m = 29, bf16 = 30, tq1_0 = 34,
    tq2_0 = 35, mxfp4 = 39, nvfp4 = 40, q1_0 = 41, q2_0 = 42,
};

struct GgufTypeInfo {
    GgufType type;
    std::string_view name;
    Index elements, bytes;  // of a block
};

namespace detail {

inline constexpr GgufTypeInfo gguf_types[] = {
    {GgufType::f32, "f32", 1, 4},          {GgufType::f16, "f16", 1, 2},
    {GgufType::q4_0, "q4_0", 32, 18},      {GgufType::q4_1, "q4_1", 32, 20},
    {GgufType::q5_0, "q5_0", 32, 22},      {GgufType::q5_1, "q5_1", 32, 24},
    {GgufType::q8_0, "q8_0", 32, 34},      {GgufType::q8_1, "q8_1", 32, 36},
    {GgufType::q2_k, "q2_k", 256, 84},     {GgufType::q3_k, "q3_k", 256, 110},
    {GgufType::q4_k, "q4_k", 256, 144},    {GgufType::q5_k, "q5_k", 256, 176},
    {GgufType::q6_k, "q6_k", 256, 210},    {GgufType::q8_k, "q8_k", 256, 292},
    {GgufType::iq2_xxs, "iq2_xxs", 256, 66}, {GgufType::iq2_xs, "iq2_xs", 256, 74},
    {GgufType::iq3_xxs, "iq3_xxs", 256, 98}, {GgufType::iq1_s, "iq1_s", 256, 50},
    {GgufType::iq4_nl, "iq4_nl", 32, 18},  {GgufType::iq3_s, "iq3_s", 256, 110},
    {GgufType::iq2_s, "iq2_s", 256, 82},   {GgufType::iq4_xs, "iq4_xs", 256, 136},
    {GgufType::i8, "i8", 1, 1},            {GgufType::i16, "i16", 1, 2},
    {GgufType::i32, "i32", 1, 4},          {GgufType::i64, "i64", 1, 8},
    {GgufType::f64, "f64", 1, 8},          {GgufType::iq1_m, "iq1_m", 256, 56},
    {GgufType::bf16, "bf16", 1, 2},        {GgufType::tq1_0, "tq1_0", 256, 54},
    {GgufType::tq2_0, "tq2_0", 256, 66},   {GgufType::mxfp4, "mxfp4", 32, 17},
    {GgufType::nvfp4, "nvfp4", 64, 36},    {GgufType::q1_0, "q1_0", 128, 18},
    {GgufType::q2_0, "q2_0", 64, 18},
};

/// The name of the kind of a value, for messages.
inline std::string gguf_kind(std::size_t index) {
    constexpr std::string_view names[] = {"uint8", "int8", "uint16", "int16",  "uint32", "int32",
                                          "float32", "bool", "string", "uint64", "int64", "float64"};
    constexpr std::size_t scalars = std::size(names);
    return (index < scalars ? "a " : "an array of ") + std::string(names[index % scalars]);
}

/// The number that a file has for a kind of scalar: the place in GgufValue, but that 9 means an array.
inline constexpr std::uint32_t gguf_array_id = 9;
constexpr std::uint32_t gguf_scalar_id(std::size_t index) {
    const auto place = static_cast<std::uint32_t>(index);
    return place < gguf_array_id ? place : place + 1;
}

}  // namespace detail

/// The description of a type; none for a number that is no type.
constexpr std::optional<GgufTypeInfo> find_gguf_type(std::uint32_t number) {
    for (const GgufTypeInfo& info : detail::gguf_types)
        if (static_cast<std::uint32_t>(info.type) == number) return info;
    return std::nullopt;
}

constexpr GgufTypeInfo describe(GgufType type) { return find_gguf_type(static_cast<std::uint32_t>(type)).value(); }

}  // namespace kimik3
