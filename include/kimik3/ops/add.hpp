#pragma once
// add_to(ctx, x [N, D], y [N, D]): y += x, elementwise.

#include "kimik3/backend/backend.hpp"
#include "kimik3/tensor/view.hpp"

namespace kimik3 {

template <class Backend>
void add_to(const Context<Backend>&, ...) {
    static_assert(missing_overload<Backend>, "kimik3: add_to(ctx, x, y) has no overload for these arguments");
}

}  // namespace kimik3
