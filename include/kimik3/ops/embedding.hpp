#pragma once
// The embedding (spec 1.3): y[n] = table[ids[n]], without scaling or positions. table [V, D], y and dy [N, D], N ids.
//   embedding_forward (ctx, ids, table, y)
//   embedding_backward(ctx, ids, dy, dtable)   dtable[ids[n]] += dy[n], in the order of n
// Ids outside of the table are refused before anything is computed; check_ids does so on the host.

#include <span>

#include "kimik3/backend/backend.hpp"
#include "kimik3/tensor/view.hpp"

namespace kimik3 {

/// Throws unless every id is one of the vocabulary's.
inline void check_ids(std::span<const std::int32_t> ids, Index vocab) {
    for (std::size_t n = 0; n < ids.size(); ++n) {
        require(ids[n] >= 0 && ids[n] < vocab, "token ids lie in [0, {}), got {} at position {}", vocab, ids[n], n);
    }
}

template <class Backend>
void embedding_forward(const Context<Backend>&, ...) {
    static_assert(missing_overload<Backend>,
                  "kimik3: embedding_forward(ctx, ids, table, y) has no overload for these arguments");
}
template <class Backend>
void embedding_backward(const Context<Backend>&, ...) {
    static_assert(missing_overload<Backend>,
                  "kimik3: embedding_backward(ctx, ids, dy, dtable) has no overload for these arguments");
}

}  // namespace kimik3
