#pragma once
// Numbers of a GGUF tensor as bytes, and back. f32, f16 and bf16 hold a number as it is, rounded to nearest even. q8_0
// holds 32 numbers x as a scale d in float16 and 32 signed bytes q, x = d q (ggml-quants.c): d = max |x| / 127 and
// q = x / d rounded to nearest, halves away from zero, with the d of float32. What a type does not hold (NaN, infinity,
// and what is too large for it) is an Error: the place and the number are in the sentence.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "kimik3/core/dtype.hpp"
#include "kimik3/io/gguf_types.hpp"

namespace kimik3 {

/// The bytes of rows of numbers; for q8_0 their count is a multiple of 32. name: of the tensor, for messages.
std::vector<std::byte> encode_gguf(GgufType type, std::span<const float> numbers, std::string_view name);

/// The numbers that the bytes hold; numbers is as long as they are many.
void decode_gguf(GgufType type, std::span<const std::byte> bytes, std::span<float> numbers);

namespace detail {

struct Q8Block {
    static constexpr std::size_t size = 32;
    f16 scale;
    std::int8_t q[size];
};
static_assert(sizeof(Q8Block) == 34);

/// Calls body(std::type_identity<the C++ type>{}) for a type that is read and written.
template <class Body>
void with_gguf_type(GgufType type, Body&& body) {
    switch (type) {
        case GgufType::f32: return body(std::type_identity<float>{});
        case GgufType::f16: return body(std::type_identity<f16>{});
        case GgufType::bf16: return body(std::type_identity<bf16>{});
        case GgufType::q8_0: return body(std::type_identity<Q8Block>{});
        default: fail("numbers of a GGUF file are read and written as f32, f16, bf16 and q8_0, not as {}",
                      describe(type).name);
    }
}

[[noreturn]] inline void fail_to_hold(std::string_view name, std::size_t element, float value, GgufType type) {
    fail("element {} of tensor '{}' is {}, which {} does not hold", element, name, value, describe(type).name);
}

inline Q8Block encode_q8(const float* x, std::string_view name, std::size_t first) {
    float largest = 0;
    for (std::size_t e = 0; e < Q8Block::size; ++e) {
        if (!std::isfinite(x[e])) fail_to_hold(name, first + e, x[e], GgufType::q8_0);
        largest = (std::max)(largest, std::fabs(x[e]));
    }
    const float scale = largest / 127, inverse = scale > 0 ? 1 / scale : 0;
    Q8Block block{f16(scale), {}};
    if (!std::isfinite(static_cast<float>(block.scale))) fail_to_hold(name, first, largest, GgufType::q8_0);
    if (!std::isfinite(inverse)) return block;  // the scale has become zero
    for (std::size_t e = 0; e < Q8Block::size; ++e) block.q[e] = static_cast<std::int8_t>(std::round(x[e] * inverse));
    return block;
}

}  // namespace detail

inline std::vector<std::byte> encode_gguf(GgufType type, std::span<const float> numbers, std::string_view name) {
    std::vector<std::byte> bytes;
    detail::with_gguf_type(type, [&]<class Stored>(std::type_identity<Stored>) {
        constexpr bool blocks = std::is_same_v<Stored, detail::Q8Block>;
        constexpr std::size_t elements = blocks ? detail::Q8Block::size : 1;
        require(numbers.size() % elements == 0, "rows of tensor '{}' are stored as q8_0 in blocks of {}, {} are left",
                name, elements, numbers.size() % elements);
        bytes.resize(numbers.size() / elements * sizeof(Stored));
        for (std::size_t b = 0; b < numbers.size() / elements; ++b) {
            Stored stored;
            if constexpr (blocks) {
                stored = detail::encode_q8(&numbers[b * elements], name, b * elements);
            } else {
                stored = Stored(numbers[b]);
                if (!std::isfinite(static_cast<float>(stored))) detail::fail_to_hold(name, b, numbers[b], type);
            }
            std::memcpy(&bytes[b * sizeof stored], &stored, sizeof stored);
        }
    });
    return bytes;
}

inline void decode_gguf(GgufType type, std::span<const std::byte> bytes, std::span<float> numbers) {
    detail::with_gguf_type(type, [&]<class Stored>(std::type_identity<Stored>) {
        constexpr bool blocks = std::is_same_v<Stored, detail::Q8Block>;
        constexpr std::size_t elements = blocks ? detail::Q8Block::size : 1;
        require(numbers.size() / elements * sizeof(Stored) == bytes.size() && numbers.size() % elements == 0,
                "{} numbers of {} do not take {} bytes", numbers.size(), describe(type).name, bytes.size());
        for (std::size_t b = 0; b < numbers.size() / elements; ++b) {
            Stored stored;
            std::memcpy(&stored, &bytes[b * sizeof stored], sizeof stored);
            if constexpr (blocks) {
                for (std::size_t e = 0; e < elements; ++e)
                    numbers[b * elements + e] = static_cast<float>(stored.scale) * static_cast<float>(stored.q[e]);
            } else {
                numbers[b] = static_cast<float>(stored);
            }
        }
    });
}

}  // namespace kimik3
