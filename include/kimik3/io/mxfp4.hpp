#pragma once
// MXFP4 as the released experts are packed (spec 9.2): a row of n numbers is n / 2 bytes, the low nibble first, and
// n / 32 scale bytes. A nibble is E2M1, sign and one of {0, .5, 1, 1.5, 2, 3, 4, 6}; a number is its E2M1 value times
// 2^(scale - 127), which bf16 and float32 hold exactly. Packing follows the OCP MX specification: the scale is that of
// the power of two in a group's largest number, by 4, the one in E2M1's; numbers go to the nearest, of two to the even.

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <span>

#include "kimik3/core/error.hpp"

namespace kimik3 {

/// Numbers that share a scale.
inline constexpr Index mxfp4_group = 32;

/// The largest scale whose numbers are all finite in float32, and the one that makes all of them NaN.
inline constexpr int mxfp4_largest_scale = 252, mxfp4_nan_scale = 255;

/// The number of a nibble without its scale.
constexpr float e2m1_value(unsigned nibble) {
    constexpr float magnitude[] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
    return nibble & 8u ? -magnitude[nibble & 7u] : magnitude[nibble & 7u];
}

/// The nibble of the nearest number; beyond 6 it is 6.
constexpr unsigned e2m1_nibble(double value) {
    const bool negative = std::bit_cast<std::uint64_t>(value) >> 63u != 0;
    const double size = negative ? -value : value;
    unsigned nibble = 0;
    for (unsigned next = 1; next < 8; ++next) {
        const double middle = static_cast<double>(e2m1_value(next - 1) + e2m1_value(next)) / 2;
        if (size > middle || (size == middle && next % 2 == 0)) nibble = next;
    }
    return nibble | (negative ? 8u : 0u);
}

/// A row of numbers, a multiple of 32, into half as many bytes and a scale for every 32.
template <class T>
void pack_mxfp4(std::span<const T> numbers, std::span<std::uint8_t> packed, std::span<std::uint8_t> scales) {
    constexpr std::size_t group = to_size(mxfp4_group);
    require(numbers.size() % group == 0 && packed.size() * 2 == numbers.size() &&
                scales.size() * group == numbers.size(),
            "{} numbers of MXFP4 are groups of {} and go into as many scales and half as many bytes, got {} and {}",
            numbers.size(), group, scales.size(), packed.size());
    for (std::size_t g = 0; g < scales.size(); ++g) {
        const std::span<const T> from = numbers.subspan(g * group, group);
        double largest = 0;
        for (const T number : from) {
            require(std::isfinite(number), "MXFP4 holds finite numbers, got {}", number);
            largest = (std::max)(largest, std::abs(static_cast<double>(number)));
        }
        const int exponent = largest == 0 ? -127 : std::clamp(std::ilogb(largest) - 2, -127, mxfp4_largest_scale - 127);
        scales[g] = static_cast<std::uint8_t>(exponent + 127);
        const auto nibble = [&](std::size_t i) {
            return e2m1_nibble(std::ldexp(static_cast<double>(from[i]), -exponent));
        };
        for (std::size_t i = 0; i < group; i += 2)
            packed[(g * group + i) / 2] = static_cast<std::uint8_t>(nibble(i) | nibble(i + 1) << 4u);
    }
}

/// The numbers of a row: packed.size() * 2 of them, with a scale for every 32.
template <class T>
void unpack_mxfp4(std::span<const std::uint8_t> packed, std::span<const std::uint8_t> scales, T* numbers) {
    constexpr std::size_t group_bytes = to_size(mxfp4_group / 2);
    require(packed.size() == scales.size() * group_bytes,
            "{} scales of MXFP4 belong to {} bytes, {} each, got {} bytes", scales.size(), scales.size() * group_bytes,
            group_bytes, packed.size());
    for (std::size_t group = 0; group < scales.size(); ++group) {
        const T scale = scales[group] == mxfp4_nan_scale ? std::numeric_limits<T>::quiet_NaN()
                                                         : static_cast<T>(std::ldexp(1.0, int{scales[group]} - 127));
        for (const std::uint8_t both : packed.subspan(group * group_bytes, group_bytes)) {
            *numbers++ = scale * static_cast<T>(e2m1_value(both & 15u));
            *numbers++ = scale * static_cast<T>(e2m1_value(both >> 4u));
        }
    }
}

}  // namespace kimik3
