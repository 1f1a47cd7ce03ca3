#pragma once
// Number formats: bf16 and f16 as 2-byte storage types, and the run-time tag that files use.

#include <bit>
#include <type_traits>

#include "kimik3/core/error.hpp"

namespace kimik3 {

/// bfloat16 storage: the upper half of a float. Arithmetic happens in float; storing rounds to nearest even.
struct bf16 {
    std::uint16_t bits = 0;

    bf16() = default;
    KIMIK3_HOST_DEVICE explicit constexpr bf16(float value) : bits(round(value)) {}
    KIMIK3_HOST_DEVICE constexpr operator float() const {
        return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
    }

private:
    KIMIK3_HOST_DEVICE static constexpr std::uint16_t round(float value) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
        std::uint16_t rounded;
        asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(rounded) : "f"(value));
        return rounded;
#else
        const std::uint32_t u = std::bit_cast<std::uint32_t>(value);
        if ((u & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>((u >> 16) | 0x40u);  // stays NaN
        return static_cast<std::uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
#endif
    }
};

/// IEEE half storage.
struct f16 {
    std::uint16_t bits = 0;

    f16() = default;
    KIMIK3_HOST_DEVICE explicit constexpr f16(float value) : bits(round(value)) {}
    KIMIK3_HOST_DEVICE constexpr operator float() const {
        const std::uint32_t sign = (bits & 0x8000u) << 16, rest = bits & 0x7fffu;
        if (rest >= 0x7c00u) return std::bit_cast<float>(sign | 0x7f800000u | ((rest & 0x3ffu) << 13));
        if (rest >= 0x400u) return std::bit_cast<float>(sign | ((rest << 13) + 0x38000000u));
        const float magnitude = static_cast<float>(rest) * 0x1p-24f;
        return sign != 0 ? -magnitude : magnitude;
    }

private:
    KIMIK3_HOST_DEVICE static constexpr std::uint16_t round(float value) {
        const std::uint32_t u = std::bit_cast<std::uint32_t>(value), sign = (u >> 16) & 0x8000u, a = u & 0x7fffffffu;
        if (a > 0x7f800000u) return static_cast<std::uint16_t>(sign | 0x7e00u);
        if (a >= 0x477ff000u) return static_cast<std::uint16_t>(sign | 0x7c00u);
        if (a < 0x38800000u) {  // subnormal: adding 0.5 aligns the units of 2^-24 with the last bit of the float
            const float aligned = std::bit_cast<float>(a) + 0.5f;
            return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(aligned) - 0x3f000000u));
        }
        return static_cast<std::uint16_t>(sign | ((a + 0xfffu + ((a >> 13) & 1u) - 0x38000000u) >> 13));
    }
};

/// What sums, statistics, states and losses of a storage type are kept in.
template <class T>
using accumulator_t = std::conditional_t<std::is_same_v<T, double>, double, float>;

enum class DType : std::uint8_t { f64, f32, f16, bf16, i64, i32, i16, i8, u64, u32, u16, u8, boolean };

constexpr Index size_bytes(DType type) {
    switch (type) {
        case DType::f64: case DType::i64: case DType::u64: return 8;
        case DType::f32: case DType::i32: case DType::u32: return 4;
        case DType::f16: case DType::bf16: case DType::i16: case DType::u16: return 2;
        default: return 1;
    }
}

/// The tag of a C++ type.
template <class T>
inline constexpr DType dtype_of = [] {
    static_assert(std::is_arithmetic_v<T> || std::is_same_v<T, bf16> || std::is_same_v<T, f16>,
                  "kimik3: dtype_of takes a number type");
    if constexpr (std::is_same_v<T, bf16>) return DType::bf16;
    else if constexpr (std::is_same_v<T, f16>) return DType::f16;
    else if constexpr (std::is_same_v<T, bool>) return DType::boolean;
    else if constexpr (std::is_floating_point_v<T>) return sizeof(T) == 8 ? DType::f64 : DType::f32;
    else if constexpr (std::is_signed_v<T>)
        return sizeof(T) == 8 ? DType::i64 : sizeof(T) == 4 ? DType::i32 : sizeof(T) == 2 ? DType::i16 : DType::i8;
    else return sizeof(T) == 8 ? DType::u64 : sizeof(T) == 4 ? DType::u32 : sizeof(T) == 2 ? DType::u16 : DType::u8;
}();

}  // namespace kimik3
