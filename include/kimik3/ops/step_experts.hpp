#pragma once
// The routed experts of a decoding step (ops/router.hpp, expert_products.hpp): the choice from the router's scores, and
// what each chosen expert makes of each token, not yet weighted and summed.
//   step_experts(ctx, StepExperts)
//     experts, weights [N, k] as router_forward gives them; out [N k, L] = E_e(z) of every pair n k + slot, rounded to
//     T
// Weighted by weights and summed over the slots, out is u of expert_products_forward (ops/step_products.hpp does that).

#include "kimik3/core/dtype.hpp"
#include "kimik3/ops/router.hpp"
#include "kimik3/ops/situ.hpp"

namespace kimik3 {

template <class T>
struct StepExperts {
    using A = accumulator_t<T>;

    MatrixView<const A> scores;        // [N, E] sigmoids
    VectorView<const A> bias;          // [E]
    RouterRule rule;
    SituBetas betas;
    MatrixView<const T> z;             // [N, L]
    MatrixView<const T> w1, w3, w2;    // [E F, L] twice, [E L, F]
    MatrixView<std::int32_t> experts;  // [N, k]
    MatrixView<A> weights;             // [N, k]
    MatrixView<T> hidden, out;         // [N k, F], [N k, L]

    /// Numbers of experts that there is a step for.
    static constexpr bool fits(Index experts, Index chosen) { return experts <= 256 && chosen <= 16; }
};

template <class Backend>
void step_experts(const Context<Backend>&, ...) {
    static_assert(missing_overload<Backend>, "kimik3: step_experts(ctx, input) has no overload for these arguments");
}

}  // namespace kimik3
