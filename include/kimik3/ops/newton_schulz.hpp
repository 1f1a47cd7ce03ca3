#pragma once
// Newton-Schulz iteration towards the nearest semi-orthogonal matrix (K. Jordan et al., "Muon", 2024):
//   X <- x / (||x||_F + 1e-7); then, a number of times, A = X X^T, X <- 3.4445 X + (-4.7750 A + 2.0315 A^2) X
//   newton_schulz(ctx, x [R, C], steps, scratch)   x is overwritten
// A matrix of more rows than columns takes A = X^T X and multiplies from the right: that is the iteration on x^T. Five
// steps bring the singular values that are not tiny to about [0.7, 1.2]; zero stays exactly zero. x is dense; scratch
// has newton_schulz_scratch(R, C) elements. All arithmetic in T.

#include <algorithm>

#include "kimik3/backend/backend.hpp"
#include "kimik3/tensor/view.hpp"

namespace kimik3 {

/// Elements of scratch memory that newton_schulz needs for a matrix [rows, cols].
KIMIK3_HOST_DEVICE constexpr Index newton_schulz_scratch(Index rows, Index cols) {
    const Index side = rows < cols ? rows : cols;
    return round_up(rows * cols, 16) + 2 * round_up(side * side, 16);
}

template <class Backend>
void newton_schulz(const Context<Backend>&, ...) {
    static_assert(missing_overload<Backend>,
                  "kimik3: newton_schulz(ctx, x, steps, scratch) has no overload for these arguments");
}

}  // namespace kimik3
