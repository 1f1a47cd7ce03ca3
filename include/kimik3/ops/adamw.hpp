#pragma once
// AdamW (Loshchilov and Hutter, "Decoupled weight decay regularization", ICLR 2019) over pieces of the flat arrays:
//   g' = scale g,  m <- b1 m + (1 - b1) g',  v <- b2 v + (1 - b2) g'^2
//   w <- (1 - lr decay) w - lr [m / (1 - b1^t)] / [sqrt(v / (1 - b2^t)) + eps]   (TRAIN-6)
//   adamw_step(ctx, pieces, rule, g, w, m, v)   w, m and v are overwritten, elements outside the pieces untouched
// g, w and m have one layout; v, which only these tensors need, its own. All arithmetic in T.
// SteppedWeights: what an optimizer's step writes.

#include <algorithm>
#include <span>

#include "kimik3/backend/backend.hpp"
#include "kimik3/core/dtype.hpp"
#include "kimik3/tensor/view.hpp"

namespace kimik3 {

/// Elements [offset, offset + count) of g, w and m, and [second, second + count) of v.
struct AdamwPiece {
    Index offset = 0, second = 0, count = 0;
    bool decay = true;
};

/// Weights and, of the same layout, their copy that a model in bf16 reads, or none.
template <class A>
struct SteppedWeights {
    VectorView<A> weights;
    VectorView<bf16> copy{};
};

struct AdamwRule {
    double lr = 0.0, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, decay = 0.0;
    double scale = 1.0;  // of the gradient: what clipping leaves of it
    Index step = 1;      // t, counted from 1
};

namespace detail {

template <class T>
void check_adamw(std::span<const AdamwPiece> pieces, const AdamwRule& rule, VectorView<const T> g, VectorView<T> w,
                 VectorView<T> m, VectorView<T> v) {
    require(rule.step >= 1, "adamw: steps are counted from 1, got {}", rule.step);
    require_size("adamw: w", w, g.size);
    require_size("adamw: m", m, g.size);
    for (const AdamwPiece& p : pieces)
        require((std::min)({p.offset, p.second, p.count}) >= 0 && p.offset + p.count <= g.size &&
                    p.second + p.count <= v.size,
                "adamw: a piece of {} elements at {} and {} does not lie in {} and {}", p.count, p.offset, p.second,
                g.size, v.size);
}

}  // namespace detail

template <class Backend>
void adamw_step(const Context<Backend>&, ...) {
    static_assert(missing_overload<Backend>,
                  "kimik3: adamw_step(ctx, pieces, rule, g, w, m, v) has no overload for these arguments");
}

}  // namespace kimik3
