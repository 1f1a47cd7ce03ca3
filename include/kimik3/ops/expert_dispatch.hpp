#pragma once
// Who works on what: the pairs (token, slot) of a batch sorted by expert. Each expert's rows are padded to a multiple
// of tile with rows of no pair, so that a row stands at the same place of a product's tiles, and gets the same result
// to the last bit, whatever the other tokens chose. Fewer tokens than a tile are not padded: decoding does no work for
// nothing.
//   expert_dispatch(ctx, experts [N, k], dispatch)
//     offset [E + 1]   expert e has the rows [offset[e], offset[e + 1]); idle experts have none
//     source [rows]    the pair of a row, token * k + slot, in rising order within an expert; -1: padding
//     position [N, k]  the row of a pair

#include "kimik3/backend/backend.hpp"
#include "kimik3/tensor/arena.hpp"

namespace kimik3 {

struct ExpertDispatch {
    static constexpr Index tile = 8;
    VectorView<Index> offset;
    VectorView<Index> source;
    MatrixView<Index> position;

    static constexpr Index row_unit(Index tokens) { return tokens < tile ? 1 : tile; }

    /// The most rows that any choice of experts can need.
    static constexpr Index max_rows(Index tokens, Index chosen, Index experts) {
        const Index pairs = tokens * chosen;
        return pairs + (row_unit(tokens) - 1) * (experts < pairs ? experts : pairs);
    }

    static ExpertDispatch bind(Arena& arena, Index tokens, Index chosen, Index experts) {
        return {arena.vector<Index>(experts + 1), arena.vector<Index>(max_rows(tokens, chosen, experts)),
                arena.matrix<Index>(tokens, chosen)};
    }

    Index experts() const { return offset.size - 1; }
    Index rows(Index expert) const { return offset[expert + 1] - offset[expert]; }
};

template <class Backend>
void expert_dispatch(const Context<Backend>&, ...) {
    static_assert(missing_overload<Backend>,
                  "kimik3: expert_dispatch(ctx, experts, dispatch) has no overload for these arguments");
}

}  // namespace kimik3
