#pragma once
// The scalar formulas of the model, each beside its derivative, written once for every kind of number V: float and
// double on either backend, and Lane<T> (ops/cpu/lanes.hpp), a register's worth of numbers on the CPU. Sources:
// spec 2.2, 5 and 6.

#include <cmath>

#include "kimik3/core/base.hpp"

namespace kimik3 {

template <class V>
KIMIK3_HOST_DEVICE inline V sigmoid(const V& x) {
    using std::exp;
    const V e = exp(-x);
    return V(1) / (V(1) + e);
}

/// x sigmoid(x), the activation after the short convolution, and its derivative. (KDA-1)
template <class V>
KIMIK3_HOST_DEVICE inline V silu(const V& x) {
    return x * sigmoid(x);
}
template <class V>
KIMIK3_HOST_DEVICE inline V silu_derivative(const V& x) {
    const V s = sigmoid(x);
    // (KDA-2)
    return s * (V(1) + x * (V(1) - s));
}

/// SiTU-GLU: [b1 tanh(gate / b1) sigmoid(gate)] [b2 tanh(up / b2)], bounded by b1 b2 (report Eq. 12). (SITU-1)
template <class V>
KIMIK3_HOST_DEVICE inline V situ(const V& gate, const V& up, const V& beta, const V& linear_beta) {
    using std::tanh;
    const V t = tanh(gate / beta), h = tanh(up / linear_beta);
    return beta * t * sigmoid(gate) * linear_beta * h;
}

template <class V>
struct SituGradient {
    V gate, up;
};
template <class V>
KIMIK3_HOST_DEVICE inline SituGradient<V> situ_gradient(const V& gate, const V& up, const V& beta, const V& linear_beta,
                                                        const V& dy) {
    using std::tanh;
    const V t = tanh(gate / beta), h = tanh(up / linear_beta), s = sigmoid(gate);
    // (SITU-2)
    return {dy * linear_beta * h * s * ((V(1) - t * t) + beta * t * (V(1) - s)),
            dy * beta * t * s * (V(1) - h * h)};
}

/// SwiGLU: silu(gate) up, the limit of SiTU-GLU for large betas.
template <class V>
KIMIK3_HOST_DEVICE inline V swiglu(const V& gate, const V& up) {
    return silu(gate) * up;
}
template <class V>
KIMIK3_HOST_DEVICE inline SituGradient<V> swiglu_gradient(const V& gate, const V& up, const V& dy) {
    return {dy * up * silu_derivative(gate), dy * silu(gate)};
}

/// log(1 + e^x), whose derivative is the sigmoid.
template <class V>
KIMIK3_HOST_DEVICE inline V softplus(const V& x) {
    using std::abs, std::exp, std::log1p;
    const V size = abs(x), e = exp(-size);
    return (x + size) / V(2) + log1p(e);
}

}  // namespace kimik3
