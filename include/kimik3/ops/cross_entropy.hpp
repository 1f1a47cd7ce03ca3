#pragma once
// Cross-entropy of logits [M, V] with one target a row (spec 1.3). A target of ignored_target asks for nothing.
//   cross_entropy         (ctx, logits, targets, loss [M])   loss = log(sum exp(logits)) - logits[target], 0 if ignored
//   cross_entropy_backward(ctx, logits, targets, scale, loss [M])
//     the same losses, and logits become scale (softmax - onehot), a row of zeros if ignored   (TRAIN-3)
// Rows stand alone, so a head may work on a few rows at a time and never hold all
// logits. Sums in accumulator_t<T>. Targets outside of the vocabulary are refused before anything is computed;
// check_targets does so on the host.

#include <span>

#include "kimik3/backend/backend.hpp"
#include "kimik3/tensor/view.hpp"

namespace kimik3 {

inline constexpr std::int32_t ignored_target = -100;

/// Throws unless every target is one of the vocabulary's ids or ignored_target. Returns how many are not ignored.
inline Index check_targets(std::span<const std::int32_t> targets, Index vocab) {
    Index counted = 0;
    for (std::size_t n = 0; n < targets.size(); ++n) {
        const bool ignored = targets[n] == ignored_target;
        require(ignored || (targets[n] >= 0 && targets[n] < vocab),
                "targets lie in [0, {}) or are {} to be ignored, got {} at position {}", vocab, ignored_target,
                targets[n], n);
        counted += ignored ? 0 : 1;
    }
    return counted;
}

template <class Backend>
void cross_entropy(const Context<Backend>&, ...) {
    static_assert(missing_overload<Backend>,
                  "kimik3: cross_entropy(ctx, logits, targets, loss) has no overload for these arguments");
}
template <class Backend>
void cross_entropy_backward(const Context<Backend>&, ...) {
    static_assert(
        missing_overload<Backend>,
        "kimik3: cross_entropy_backward(ctx, logits, targets, scale, loss) has no overload for these arguments");
}

}  // namespace kimik3
