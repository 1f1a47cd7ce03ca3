#pragma once
// The sigmoid, exp and tanh of numbers that are stored as T: those of ops/formulas.hpp, and for bf16 the processor's
// own, exact to 2^-11 and better, where a bf16 is exact to 2^-9.

#include "kimik3/core/dtype.hpp"
#include "kimik3/ops/formulas.hpp"

namespace kimik3::gpu {

/// 2^x and 1 / x by the processor's own instructions, without subnormal numbers.
__device__ inline float quick_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ inline float quick_inverse(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

template <class T>
__device__ accumulator_t<T> exp_of(accumulator_t<T> x) {
    if constexpr (std::is_same_v<T, bf16>) return quick_exp2(x * 1.44269504f);
    else return exp(x);
}
template <class T>
__device__ accumulator_t<T> sigmoid_of(accumulator_t<T> x) {
    if constexpr (std::is_same_v<T, bf16>) return quick_inverse(1.0f + quick_exp2(x * -1.44269504f));
    else return sigmoid(x);
}
template <class T>
__device__ accumulator_t<T> tanh_of(accumulator_t<T> x) {
    if constexpr (std::is_same_v<T, bf16>) {
        float y;
        asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
        return y;
    } else {
        return tanh(x);
    }
}

}  // namespace kimik3::gpu
