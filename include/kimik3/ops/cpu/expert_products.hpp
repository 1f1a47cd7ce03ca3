#pragma once
// The routed experts on the CPU. Many tokens: a task is a piece of one expert's rows, carried from the gathered latents
// to the expert's output while it is in cache; in the backward a weight gradient of one expert is a task of its own, so
// its sum has one order. Few tokens: the weights are read once, and a task is a block of their rows.

#include <algorithm>

#include "kimik3/ops/cpu/matmul.hpp"
#include "kimik3/ops/cpu/situ.hpp"
#include "kimik3/ops/expert_products.hpp"

namespace kimik3 {
namespace detail {

/// body(expert, first row, rows, thread) for every piece of every expert that has work, each on one thread.
template <class Body>
void for_expert_pieces(const Context<Cpu>& ctx, const ExpertDispatch& d, Body&& body) {
    constexpr Index piece_rows = 128;
    Index most = 0;
    for (Index e = 0; e < d.experts(); ++e) most = (std::max)(most, d.rows(e));
    ctx.parallel_tasks(d.experts() * ceil_div(most, piece_rows), [&](Index task, int thread) {
        const Index expert = task % d.experts(), begin = task / d.experts() * piece_rows;
        const Index count = (std::min)(piece_rows, d.rows(expert) - begin);
        if (count > 0) body(expert, d.offset[expert] + begin, count, thread);
    });
}

/// to[r] = from[token of row r] for count rows from begin; zero where a row is padding.
template <class T>
void gather_rows(const ExpertDispatch& d, In<T> from, Out<T> to, Index begin, Index count) {
    for (Index r = begin; r < begin + count; ++r) {
        T* row = to.row(r);
        const Index pair = d.source[r];
        if (pair < 0) std::fill(row, row + to.cols, T(0));
        else std::copy_n(from.row(pair / d.position.cols), to.cols, row);
    }
}

/// to[n] = sum over slots, in their order, of weight(n, slot) from[row of the pair].
template <class T, class Weight>
void combine_rows(const Context<Cpu>& ctx, const ExpertDispatch& d, In<T> from, Out<T> to, Weight&& weight) {
    ctx.parallel(to.rows, 16, [&](Index first, Index last) {
        for (Index n = first; n < last; ++n) {
            for_lanes<T>(to.cols, [&](auto at) {
                Lane<T> sum = lane(T(0));
                for (Index j = 0; j < d.position.cols; ++j) sum += weight(n, j) * at.load(from.row(d.position(n, j)));
                at.store(to.row(n), sum);
            });
        }
    });
}

/// The products of fewer than few_rows tokens: weights are read once, blocks of their rows shared out.
template <class T>
void few_expert_products(const Context<Cpu>& ctx, In<T> z, In<T> w1, In<T> w3, In<T> w2, SituBetas betas,
                         const ExpertDispatch& d, const ExpertRows<Cpu, T>& s) {
    const Index inner = s.gate.cols, latent = z.cols, total = d.offset[d.experts()];
    gather_rows<T>(d, z, s.rows, 0, total);
    // body(first row of the dispatch, rows, expert, first weight row, last) over the experts at work.
    const auto for_blocks = [&](Index weight_rows, Index weight_cols, auto&& body) {
        const Index block = (std::max)(Index{4}, round_up(8192 / weight_cols, 4)),
                    blocks = ceil_div(weight_rows, block);
        ctx.parallel_tasks(total * blocks, [&](Index task, int) {
            const Index row = task / blocks, first = task % blocks * block;
            const auto next = std::upper_bound(d.offset.begin(), d.offset.end(), row);
            const Index expert = next - d.offset.begin() - 1;
            if (row == d.offset[expert]) body(row, *next - row, expert, first, (std::min)(first + block, weight_rows));
        });
    };
    for_blocks(inner, latent, [&](Index row, Index count, Index expert, Index first, Index last) {
        const auto x = s.rows.middle_rows(row, count), gate = s.gate.middle_rows(row, count),
                   up = s.up.middle_rows(row, count);
        dot_rows<T>(x, w1.middle_rows(expert * inner, inner), gate, Add::no, first, last);
        dot_rows<T>(x, w3.middle_rows(expert * inner, inner), up, Add::no, first, last);
        const Index width = last - first;
        local_situ_forward<T>(gate.middle_cols(first, width), up.middle_cols(first, width), betas,
                              s.hidden.middle_rows(row, count).middle_cols(first, width));
    });
    for_blocks(latent, inner, [&](Index row, Index count, Index expert, Index first, Index last) {
        dot_rows<T>(s.hidden.middle_rows(row, count), w2.middle_rows(expert * latent, latent),
                    s.out.middle_rows(row, count), Add::no, first, last);
    });
}

}  // namespace detail

template <class T>
void expert_products_forward(const Context<Cpu>& ctx, In<T> z, In<T> w1, In<T> w3, In<T> w2, SituBetas betas,
                             const ExpertDispatch& d, In<T> p, const ExpertRows<Cpu, T>& s, Out<T> u) {
    const Index inner = s.gate.cols, latent = z.cols;
    require_shape("experts: w1", w1, d.experts() * inner, latent);
    require_shape("experts: w3", w3, d.experts() * inner, latent);
    require_shape("experts: w2", w2, d.experts() * latent, inner);
    require_shape("experts: p", p, z.rows, d.position.cols);
    require_shape("experts: u", u, z.rows, latent);
    if (z.rows < detail::few_rows) {
        detail::few_expert_products<T>(ctx, z, w1, w3, w2, betas, d, s);
    } else {
        detail::for_expert_pieces(ctx, d, [&](Index e, Index begin, Index count, int) {
            const auto piece = [&](MatrixView<T> m) { return m.middle_rows(begin, count); };
            detail::gather_rows<T>(d, z, s.rows, begin, count);
            detail::local_matmul_nt<T>(piece(s.rows), w1.middle_rows(e * inner, inner), piece(s.gate), Add::no);
            detail::local_matmul_nt<T>(piece(s.rows), w3.middle_rows(e * inner, inner), piece(s.up), Add::no);
            detail::local_situ_forward<T>(piece(s.gate), piece(s.up), betas, piece(s.hidden));
            detail::local_matmul_nt<T>(piece(s.hidden), w2.middle_rows(e * latent, latent), piece(s.out), Add::no);
        });
    }
    detail::combine_rows<T>(ctx, d, s.out, u, [&](Index n, Index j) { return p(n, j); });
}

template <class T>
void expert_products_backward(const Context<Cpu>& ctx, In<T> z, In<T> du, In<T> w1, In<T> w3, In<T> w2,
                              SituBetas betas, const ExpertDispatch& d, const ExpertRows<Cpu, T>& s, Out<T> p,
                              Out<T> dz, Out<T> dw1, Out<T> dw3, Out<T> dw2) {
    const Index inner = s.gate.cols, latent = du.cols;
    require_shape("experts: z", z, du.rows, latent);
    require_shape("experts: dz", dz, du.rows, latent);
    require_shape("experts: p", p, du.rows, d.position.cols);
    require_shape("experts: dw1", dw1, d.experts() * inner, latent);
    require_shape("experts: dw3", dw3, d.experts() * inner, latent);
    require_shape("experts: dw2", dw2, d.experts() * latent, inner);
    detail::for_expert_pieces(ctx, d, [&](Index e, Index begin, Index count, int thread) {
        const auto piece = [&](MatrixView<T> m) { return m.middle_rows(begin, count); };
        const MatrixView<T> dhidden(ctx.workspace<T>(thread, count * inner), count, inner);
        detail::gather_rows<T>(d, du, s.out, begin, count);
        detail::local_matmul_nn<T>(piece(s.out), w2.middle_rows(e * latent, latent), dhidden, Add::no);
        for (Index r = 0; r < count; ++r) {
            const Index pair = d.source[begin + r];
            T *gradient = dhidden.row(r), *hidden = s.hidden.row(begin + r);
            T weight = T(0);
            if (pair >= 0) {
                T& of_pair = p(pair / p.cols, pair % p.cols);
                // (MOE-6)
                weight = std::exchange(of_pair, detail::dot(gradient, hidden, inner));
            }
            detail::for_lanes<T>(inner, [&](auto at) {
                at.store(gradient, detail::Lane<T>(at.load(gradient) * weight));
                at.store(hidden, detail::Lane<T>(at.load(hidden) * weight));
            });
        }
        detail::local_situ_backward<T>(dhidden, piece(s.gate), piece(s.up), betas, piece(s.gate), piece(s.up));
    });
    ctx.parallel_tasks(3 * d.experts(), [&](Index task, int) {
        const Index e = task / 3, begin = d.offset[e], count = d.rows(e);
        if (count == 0) return;
        const auto all = [&](MatrixView<T> m) { return m.middle_rows(begin, count); };
        if (task % 3 == 0)
            detail::local_matmul_tn<T>(all(s.gate), all(s.rows), dw1.middle_rows(e * inner, inner), Add::yes);
        if (task % 3 == 1)
            detail::local_matmul_tn<T>(all(s.up), all(s.rows), dw3.middle_rows(e * inner, inner), Add::yes);
        if (task % 3 == 2)
            detail::local_matmul_tn<T>(all(s.out), all(s.hidden), dw2.middle_rows(e * latent, latent), Add::yes);
    });
    detail::for_expert_pieces(ctx, d, [&](Index e, Index begin, Index count, int) {
        const auto piece = [&](MatrixView<T> m) { return m.middle_rows(begin, count); };
        detail::local_matmul_nn<T>(piece(s.gate), w1.middle_rows(e * inner, inner), piece(s.out), Add::no);
        detail::local_matmul_nn<T>(piece(s.up), w3.middle_rows(e * inner, inner), piece(s.out), Add::yes);
    });
    detail::combine_rows<T>(ctx, d, s.out, dz, [](Index, Index) { return T(1); });
}

}  // namespace kimik3
