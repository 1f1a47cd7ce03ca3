#pragma once
// The counting sort by expert on the CPU, one thread: a few nanoseconds a pair.

#include <algorithm>

#include "kimik3/ops/cpu/matmul.hpp"
#include "kimik3/ops/expert_dispatch.hpp"

namespace kimik3 {

static_assert(ExpertDispatch::tile % detail::few_rows == 0,
              "kimik3: expert rows are padded to whole tiles of the products");

inline void expert_dispatch(const Context<Cpu>&, MatrixView<const std::int32_t> experts, const ExpertDispatch& d) {
    require_shape("expert_dispatch: position", d.position, experts.rows, experts.cols);
    require_size("expert_dispatch: source", d.source, d.max_rows(experts.rows, experts.cols, d.experts()));
    std::fill(d.offset.begin(), d.offset.end(), Index{0});
    std::fill(d.source.begin(), d.source.end(), Index{-1});
    for (Index n = 0; n < experts.rows; ++n)
        for (Index j = 0; j < experts.cols; ++j) ++d.offset[experts(n, j)];
    Index begin = 0;
    for (Index e = 0; e <= d.experts(); ++e)
        begin += round_up(std::exchange(d.offset[e], begin), d.row_unit(experts.rows));
    // Counts became first rows; filling moves them up, and the last walk puts them back.
    for (Index n = 0; n < experts.rows; ++n) {
        for (Index j = 0; j < experts.cols; ++j) {
            const Index row = d.offset[experts(n, j)]++;
            d.position(n, j) = row;
            d.source[row] = n * experts.cols + j;
        }
    }
    begin = 0;
    for (Index e = 0; e < d.experts(); ++e) {
        begin = round_up(std::exchange(d.offset[e], begin), d.row_unit(experts.rows));
    }
}

}  // namespace kimik3
