#pragma once
// The ground every other header stands on: the index type, the host/device mark, and the three things that the
// compiler must grant: C++20, exceptions (errors are thrown) and NaN/Inf (guards test for them).

#include <cstddef>
#include <cstdint>

#if __cplusplus < 202002L
#error "kimik3: build as C++20 or newer: -std=c++20"
#endif
#if defined(__FAST_MATH__) || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__)
#error "kimik3: build without -ffast-math (and -ffinite-math-only): it removes the checks for NaN and infinity"
#endif
#if !defined(__cpp_exceptions) && !defined(__CUDA_ARCH__)
#error "kimik3: build with exceptions: every wrong input is reported by throwing kimik3::Error"
#endif

#ifdef __CUDACC__
#define KIMIK3_HOST_DEVICE __host__ __device__
#else
#define KIMIK3_HOST_DEVICE
#endif

namespace kimik3 {

/// Every size, count and offset, in elements unless the name says otherwise. Signed 64 bits: differences are safe
/// and nothing wraps at 2^31.
using Index = std::int64_t;

/// Index -> std::size_t for the standard containers.
constexpr std::size_t to_size(Index value) { return static_cast<std::size_t>(value); }

/// ceil(value / unit), for value >= 0 and unit > 0.
KIMIK3_HOST_DEVICE constexpr Index ceil_div(Index value, Index unit) { return (value + unit - 1) / unit; }

/// The smallest multiple of unit that is not below value.
KIMIK3_HOST_DEVICE constexpr Index round_up(Index value, Index unit) { return ceil_div(value, unit) * unit; }

}  // namespace kimik3
