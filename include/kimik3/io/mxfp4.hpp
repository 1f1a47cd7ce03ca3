#pragma once
// MXFP4 as the released experts are packed (spec 9.2): a row of n numbers is n / 2 bytes, the low nibble first, and
// n / 32 scale bytes. A nibble is E2M1, sign and one of {0, .5, 1, 1.5, 2, 3, 4, 6}; a number is its E2M1 value times
// 2^(scale - 127), which bf16 and float32 hold exactly.

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
