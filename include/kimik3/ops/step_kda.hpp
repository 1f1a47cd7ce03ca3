#pragma once
// Kimi Delta Attention of a decoding step, one new token a sequence, from the projections of the input to what the
// output projection reads: short convolutions with their windows, the decay gate's second matrix, the recurrence and
// the gated head norm in one (ops/short_conv.hpp, kda_fused.hpp, gated_norm.hpp; bounded gate).
//   step_kda(ctx, seq, StepKda, y [N, H D])
// Token n is that of sequence n; windows and states are those of its slot, and count as zero where it has no past. All
// arithmetic is in accumulator_t<T>: nothing but the inputs and y is rounded to T.

#include "kimik3/backend/backend.hpp"
#include "kimik3/core/dtype.hpp"
#include "kimik3/tensor/view.hpp"

namespace kimik3 {

template <class T>
struct StepKda {
    using A = accumulator_t<T>;
    static constexpr Index most_taps = 4;

    Index heads = 1;
    double lower_bound = -5.0, eps = 0;
    MatrixView<const T> q, k, v;                     // [N, H D] before the convolution
    MatrixView<const A> q_conv, k_conv, v_conv;      // [H D, W], W <= most_taps
    MatrixView<A> q_window, k_window, v_window;      // [slots, (W - 1) H D]
    MatrixView<const T> f_low, f_b;                  // [N, R] and [H D, R]
    MatrixView<const T> b;                           // [N, H] logits of beta
    VectorView<const A> A_log, dt_bias;              // [H], [H D]
    MatrixView<A> state;                             // [slots, H D D]
    MatrixView<const T> gate;                        // [N, H D] logits, or no columns
    VectorView<const A> norm;                        // [D]

    /// Head sizes that there is a step for.
    static constexpr bool fits(Index head_dim, Index taps) {
        return (head_dim == 16 || head_dim == 32 || head_dim == 64 || head_dim == 128) && taps >= 1 &&
               taps <= most_taps;
    }
};

template <class Backend>
void step_kda(const Context<Backend>&, ...) {
    static_assert(missing_overload<Backend>,
                  "kimik3: step_kda(ctx, seq, input, y) has no overload for these arguments");
}

}  // namespace kimik3
