#pragma once
// The router of Stable LatentMoE (spec 6.1, 6.2), N tokens, E experts, k chosen by each token, k < E.
//   router_forward (ctx, x [N, M], w [E, M], bias [E], rule, scores [N, E], experts [N, k], weights [N, k], cutoff [N])
//     scores = sigmoid(x w^T); experts = the k largest of scores + bias, best first, equal ones to the lower expert;
//     weights = factor s / (sum of the chosen s + 1e-20), or factor s: never with the bias;
//     cutoff = the (k + 1)-th largest of scores + bias. Where one is NaN, so are the token's cutoff and weights, and
//     its experts are k of them all the same: it breaks itself and no other token.
//   router_backward(ctx, x, w, rule, experts [N, k], dweights [N, k], scores [N, E], dx [N, M], dw [E, M])
//     dlogits = s (1 - s) ds of the chosen, 0 elsewhere; the choice has no gradient.
//     dx += dlogits w, dw += dlogits^T x.
//     dweights and scores are used up.
// x and dx in the model's type, all else in its accumulator_t.

#include "kimik3/backend/backend.hpp"
#include "kimik3/tensor/view.hpp"

namespace kimik3 {

/// How chosen scores become weights.
struct RouterRule {
    bool renormalize;
    double factor;
};

template <class Backend>
void router_forward(const Context<Backend>&, ...) {
    static_assert(missing_overload<Backend>,
                  "kimik3: router_forward(ctx, x, w, bias, rule, scores, experts, weights, cutoff) has no overload for "
                  "these arguments");
}
template <class Backend>
void router_backward(const Context<Backend>&, ...) {
    static_assert(missing_overload<Backend>,
                  "kimik3: router_backward(ctx, x, w, rule, experts, dweights, scores, dx, dw) has no overload for "
                  "these arguments");
}

}  // namespace kimik3
