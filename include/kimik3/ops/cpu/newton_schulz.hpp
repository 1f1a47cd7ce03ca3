#pragma once
// Newton-Schulz on the CPU: all threads of the context work on one matrix. A context of one thread makes it local.

#include <cmath>

#include "kimik3/ops/cpu/matmul.hpp"
#include "kimik3/ops/newton_schulz.hpp"

namespace kimik3 {
namespace detail {

/// body(at) for the lanes of count elements, shared out to the threads.
template <class T, class Body>
void parallel_lanes(const Context<Cpu>& ctx, Index count, Body&& body) {
    ctx.parallel(count, 4096, [&](Index first, Index last) {
        for_lanes<T>(last - first, [&](auto part) {
            auto at = part;
            at.begin += first;
            body(at);
        });
    });
}

}  // namespace detail

template <class T>
void newton_schulz(const Context<Cpu>& ctx, Out<T> x, Index steps, OutVector<T> scratch) {
    using detail::Lane;
    require(x.stride == x.cols, "newton_schulz: x must be dense, got rows of {} elements {} apart", x.cols, x.stride);
    require_size("newton_schulz: scratch", scratch, newton_schulz_scratch(x.rows, x.cols));
    const bool wide = x.rows <= x.cols;
    const Index side = wide ? x.rows : x.cols;
    MatrixView<T> now = x, next(scratch.data, x.rows, x.cols);
    const MatrixView<T> gram(scratch.data + round_up(x.size(), 16), side, side);
    const MatrixView<T> square(gram.data + round_up(gram.size(), 16), side, side);
    if (steps % 2 != 0) std::swap(now, next);  // so that the last step writes x

    const T unit = T(1) / (std::sqrt(detail::dot(x.data, x.data, x.size())) + T(1e-7));
    detail::parallel_lanes<T>(ctx, x.size(), [&](auto at) { at.store(now.data, Lane<T>(at.load(x.data) * unit)); });
    for (Index step = 0; step < steps; ++step) {
        if (wide) matmul_nt(ctx, now, now, gram, Add::no);
        else matmul_tn(ctx, now, now, gram, Add::no);
        matmul_nn(ctx, gram, gram, square, Add::no);
        // (TRAIN-8)
        detail::parallel_lanes<T>(ctx, gram.size(), [&](auto at) {
            at.store(square.data, Lane<T>(at.load(gram.data) * T(-4.7750) + at.load(square.data) * T(2.0315)));
        });
        detail::parallel_lanes<T>(ctx, x.size(), [&](auto at) {
            at.store(next.data, Lane<T>(at.load(now.data) * T(3.4445)));
        });
        if (wide) matmul_nn(ctx, square, now, next, Add::yes);
        else matmul_nn(ctx, now, square, next, Add::yes);
        std::swap(now, next);
    }
}

}  // namespace kimik3
