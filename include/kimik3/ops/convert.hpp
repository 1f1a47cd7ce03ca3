#pragma once
// Numbers in another format, each rounded to nearest:
//   convert(ctx, from, to)   vectors of one size

#include "kimik3/backend/backend.hpp"
#include "kimik3/tensor/view.hpp"

namespace kimik3 {

template <class Backend>
void convert(const Context<Backend>&, ...) {
    static_assert(missing_overload<Backend>, "kimik3: convert(ctx, from, to) has no overload for these arguments");
}

}  // namespace kimik3
