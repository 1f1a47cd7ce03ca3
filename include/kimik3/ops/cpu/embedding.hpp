#pragma once
// The embedding on the CPU: threads own rows of y, and columns of dtable, so that equal ids are summed in one order.

#include "kimik3/backend/cpu.hpp"
#include "kimik3/ops/cpu/lanes.hpp"
#include "kimik3/ops/embedding.hpp"

namespace kimik3 {

template <class T>
void embedding_forward(const Context<Cpu>& ctx, std::span<const std::int32_t> ids, In<T> table, Out<T> y) {
    require_shape("embedding: y", y, static_cast<Index>(ids.size()), table.cols);
    check_ids(ids, table.rows);
    ctx.parallel(y.rows, 64, [&](Index first, Index last) {
        for (Index n = first; n < last; ++n) std::copy_n(table.row(ids[to_size(n)]), y.cols, y.row(n));
    });
}

template <class T>
void embedding_backward(const Context<Cpu>& ctx, std::span<const std::int32_t> ids, In<T> dy, Out<T> dtable) {
    using detail::Lane;
    require_shape("embedding: dy", dy, static_cast<Index>(ids.size()), dtable.cols);
    check_ids(ids, dtable.rows);
    ctx.parallel(dtable.cols, detail::lane_width<T>, [&](Index first, Index last) {
        for (Index n = 0; n < dy.rows; ++n) {
            const T* from = dy.row(n) + first;
            T* to = dtable.row(ids[to_size(n)]) + first;
            detail::for_lanes<T>(last - first, [&](auto at) { at.store(to, Lane<T>(at.load(to) + at.load(from))); });
        }
    });
}

}  // namespace kimik3
