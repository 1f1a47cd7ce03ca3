#pragma once
// Draws tokens from rows of logits where the logits are, by the law of generate/sampler.hpp:
//   sample(ctx, logits [N, V], rows, history, chosen)
//     chosen[i] = the token of rows[i], or failed_row where the law refuses the logits; complete on return
// Only tokens come to the host. Sums are kept in double, in an order of their own, and masses of top-p in units of
// 2^-45 of the highest: a token differs from the sampler's only where its random number meets a border to 12 digits or
// so.

#include <span>
#include <vector>

#include "kimik3/backend/backend.hpp"
#include "kimik3/core/base.hpp"

namespace kimik3 {

inline constexpr std::int32_t failed_row = -1;

/// One draw: SamplingOptions' numbers, and the random number.
struct SampleRow {
    Index row = 0;           // of the logits
    Index vocabulary = 0;    // only ids below are drawn
    double temperature = 1.0;
    Index top_k = 0;
    double top_p = 1.0, min_p = 0.0, repetition_penalty = 1.0;
    double uniform = 0.0;    // in [0, 1)
    Index history = 0, history_size = 0;  // its ids in history; needed where there is a penalty
};

template <class Backend>
void sample(const Context<Backend>&, ...) {
    static_assert(missing_overload<Backend>,
                  "kimik3: sample(ctx, logits, rows, history, chosen) has no overload for these arguments");
}

}  // namespace kimik3
