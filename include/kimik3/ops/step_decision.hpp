#pragma once
// The decision about an optimizer step, on a backend that takes it itself (decides_steps): from the sums of squares of
// the pieces of a gradient follow its norm, what clipping multiplies it by, and whether the step is taken at all.
//   decide_step<A>(ctx, sums [P], numbers)    the same arithmetic as Optimizer's on the host; A: of the gradients
//   adamw_step(ctx, pieces, rule, numbers, g, w, m, v) and muon_step(ctx, blocks, rule, numbers, g, w, m)
//     take what changes from step to step from numbers instead of rule, and do nothing where numbers say so
// The host writes the first part of StepNumbers before the work is enqueued and reads the second after it.

#include <cmath>

#include "kimik3/ops/adamw.hpp"

namespace kimik3 {

struct StepNumbers {
    double lr = 0, keep = 1;  // keep: what decay leaves of a weight
    double unbias1 = 1, unbias2 = 1;
    double clip_norm = 0, norm_limit = 0;

    double norm = 0, scale = 1;
    Index not_finite = -1;  // the piece where the sum leaves the finite numbers of A, or -1
    bool applied = true;

    /// The first part from a rule, and the second as the rule says it.
    static StepNumbers of(const AdamwRule& rule) {
        const double step = static_cast<double>(rule.step);
        StepNumbers numbers;
        numbers.lr = rule.lr;
        numbers.keep = 1.0 - rule.lr * rule.decay;
        numbers.unbias1 = 1.0 / (1.0 - std::pow(rule.beta1, step));
        numbers.unbias2 = 1.0 / (1.0 - std::pow(rule.beta2, step));
        numbers.scale = rule.scale;
        return numbers;
    }
};

template <class A, class Backend>
void decide_step(const Context<Backend>&, ...) {
    static_assert(missing_overload<Backend>,
                  "kimik3: decide_step(ctx, sums, numbers) has no overload for these arguments");
}

}  // namespace kimik3
