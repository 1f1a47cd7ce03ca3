#pragma once
// SiTU-GLU on the CPU: threads own rows.

#include "kimik3/backend/cpu.hpp"
#include "kimik3/ops/cpu/lanes.hpp"
#include "kimik3/ops/formulas.hpp"
#include "kimik3/ops/situ.hpp"

namespace kimik3 {
namespace detail {

/// Rows of SiTU-GLU on one thread, for operations that share out their own work.
template <class T>
void local_situ_forward(In<T> gate, In<T> up, SituBetas betas, Out<T> y) {
    const Lane<T> beta = lane(static_cast<T>(betas.gate)), linear_beta = lane(static_cast<T>(betas.linear));
    const bool limit = betas.is_swiglu();
    for (Index n = 0; n < y.rows; ++n) {
        for_lanes<T>(y.cols, [&](auto at) {
            const Lane<T> g = at.load(gate.row(n)), u = at.load(up.row(n));
            at.store(y.row(n), limit ? swiglu(g, u) : situ(g, u, beta, linear_beta));
        });
    }
}

template <class T>
void local_situ_backward(In<T> dy, In<T> gate, In<T> up, SituBetas betas, Out<T> dgate, Out<T> dup) {
    const Lane<T> beta = lane(static_cast<T>(betas.gate)), linear_beta = lane(static_cast<T>(betas.linear));
    const bool limit = betas.is_swiglu();
    for (Index n = 0; n < dy.rows; ++n) {
        for_lanes<T>(dy.cols, [&](auto at) {
            const Lane<T> g = at.load(gate.row(n)), u = at.load(up.row(n)), d = at.load(dy.row(n));
            const auto gradient =
                limit ? swiglu_gradient(g, u, d) : situ_gradient(g, u, beta, linear_beta, d);
            at.store(dgate.row(n), gradient.gate);
            at.store(dup.row(n), gradient.up);
        });
    }
}

}  // namespace detail

template <class T>
void situ_forward(const Context<Cpu>& ctx, In<T> gate, In<T> up, SituBetas betas, Out<T> y) {
    require_shape("situ: gate", gate, y.rows, y.cols);
    require_shape("situ: up", up, y.rows, y.cols);
    ctx.parallel(y.rows, 4, [&](Index first, Index last) {
        const Index count = last - first;
        detail::local_situ_forward<T>(gate.middle_rows(first, count), up.middle_rows(first, count), betas,
                                      y.middle_rows(first, count));
    });
}

template <class T>
void situ_backward(const Context<Cpu>& ctx, In<T> dy, In<T> gate, In<T> up, SituBetas betas, Out<T> dgate, Out<T> dup) {
    require_shape("situ: gate", gate, dy.rows, dy.cols);
    require_shape("situ: up", up, dy.rows, dy.cols);
    require_shape("situ: dgate", dgate, dy.rows, dy.cols);
    require_shape("situ: dup", dup, dy.rows, dy.cols);
    ctx.parallel(dy.rows, 4, [&](Index first, Index last) {
        const Index count = last - first;
        detail::local_situ_backward<T>(dy.middle_rows(first, count), gate.middle_rows(first, count),
                                       up.middle_rows(first, count), betas, dgate.middle_rows(first, count),
                                       dup.middle_rows(first, count));
    });
}

}  // namespace kimik3
