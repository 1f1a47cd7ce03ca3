#pragma once
// Quantile balancing (spec 6.3; report Eq. 13-14, App. D): the bias b that would have spread the load evenly over the
// experts, estimated over all tokens of an optimizer step. r = cutoff - s is the bias that an expert needs to be chosen
// by a token; new b_e = the k/E quantile of r over tokens, minus the mean over experts. r is counted in 1,000 bins
// over [min b - 1, max b + 1], which holds every r; the quantile is interpolated within its bin.
//   balance_count (ctx, scores [N, E], cutoff [N], experts [N, k], bias [E], counted [N], balance)
//     adds the tokens with counted != 0 (all, when counted is empty) to histogram and load
//   balance_update(ctx, balance, k, bias [E])   writes the new bias and clears; nothing counted: bias stays
//   balance_clear (ctx, balance)                forgets what was counted
// Integer counts: the order of tokens, micro-batches and threads does not matter, and histograms of machines add up.

#include "kimik3/backend/backend.hpp"
#include "kimik3/tensor/arena.hpp"

namespace kimik3 {

/// What one layer has counted since its last update.
struct Balance {
    static constexpr Index bins = 1000;
    MatrixView<std::int64_t> histogram;  // [E, bins]
    VectorView<std::int64_t> load;       // [E] tokens routed to each expert

    static Balance bind(Arena& arena, Index experts) {
        return {arena.matrix<std::int64_t>(experts, bins), arena.vector<std::int64_t>(experts)};
    }
};

namespace detail {

inline void check_balance(const Balance& balance, Index tokens, Index experts, InVector<std::uint8_t> counted) {
    require_shape("balance: histogram", balance.histogram, experts, Balance::bins);
    require_size("balance: load", balance.load, experts);
    require(counted.size == 0 || counted.size == tokens, "balance: counted must have {} elements, or none, got {}",
            tokens, counted.size);
}

/// Where every token goes to all experts, or to none, no bias changes anything.
inline void check_balance_update(const Balance& balance, Index chosen, Index experts) {
    require_shape("balance: histogram", balance.histogram, experts, Balance::bins);
    require(chosen >= 1 && chosen < experts, "balancing is of tokens that go to 1 to {} experts, got {}", experts - 1,
            chosen);
}

}  // namespace detail

template <class Backend>
void balance_count(const Context<Backend>&, ...) {
    static_assert(missing_overload<Backend>,
                  "kimik3: balance_count(ctx, scores, cutoff, experts, bias, counted, balance) has no "
                  "overload for these arguments");
}
template <class Backend>
void balance_update(const Context<Backend>&, ...) {
    static_assert(missing_overload<Backend>,
                  "kimik3: balance_update(ctx, balance, k, bias) has no overload for these arguments");
}
template <class Backend>
void balance_clear(const Context<Backend>&, ...) {
    static_assert(missing_overload<Backend>, "kimik3: balance_clear(ctx, balance) has no overload for these arguments");
}

}  // namespace kimik3
