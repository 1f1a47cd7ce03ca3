#pragma once
// Sums of squares of gradients, one a piece of the flat array:
//   gradient_square_sums(ctx, pieces, g, sums)   sums[p] = sum over piece p of g^2: overwritten
// Accumulated in double: a gradient of 1e20 in float does not overflow. The order within a piece is fixed; the caller
// adds the pieces, so the norm does not depend on threads. NaN and infinity pass through to the sum of their piece.

#include <span>

#include "kimik3/backend/backend.hpp"
#include "kimik3/tensor/view.hpp"

namespace kimik3 {

/// Elements [offset, offset + count) of a flat array.
struct ElementPiece {
    Index offset = 0, count = 0;
};

template <class Backend>
void gradient_square_sums(const Context<Backend>&, ...) {
    static_assert(missing_overload<Backend>,
                  "kimik3: gradient_square_sums(ctx, pieces, g, sums) has no overload for these arguments");
}

}  // namespace kimik3
