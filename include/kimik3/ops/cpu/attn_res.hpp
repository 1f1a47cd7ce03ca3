#pragma once
// AttnRes on the CPU: threads own tokens; a token's rows are read from memory once and stay in cache for the second
// pass. The sum over tokens in backward is split into blocks of fixed size, so it does not depend on the number of
// threads.

#include <algorithm>
#include <cmath>
#include <limits>

#include "kimik3/backend/cpu.hpp"
#include "kimik3/ops/attn_res.hpp"
#include "kimik3/ops/cpu/lanes.hpp"

namespace kimik3 {
namespace detail {

/// v . a and v . (b c), in one pass.
template <class T>
struct TwoDots {
    T first, second;
};
template <class T>
inline TwoDots<T> two_dots(const T* v, const T* a, const T* b, const T* c, Index count) {
    Lane<T> first = lane(T(0)), second = first;
    for_lanes<T>(count, [&](auto at) {
        const Lane<T> value = at.load(v);
        first += value * at.load(a);
        second += value * at.load(b) * at.load(c);
    });
    return {first.sum(), second.sum()};
}

/// Backward of the tokens [first, last); dw [D] is overwritten with their share.
template <class T>
void local_attn_res_backward(Index first, Index last, In<T> dh, const Candidates<const T>& candidates,
                             InVector<T> gamma, InVector<T> pi, In<T> p, In<T> r, const Candidates<T>& dcandidates,
                             T* dw) {
    const Index width = dh.cols, count = candidates.count;
    for_lanes<T>(width, [&](auto at) { at.store(dw, lane(T(0))); });
    for (Index n = first; n < last; ++n) {
        const T* gradient = dh.row(n);
        T dh_v[max_candidates], w_v[max_candidates];
        for (Index j = 0; j < count; ++j) {
            const TwoDots<T> dots = two_dots(candidates.view[j].row(n), gradient, gamma.data, pi.data, width);
            dh_v[j] = dots.first, w_v[j] = dots.second;
        }
        // Counted from dh . v of the heaviest candidate: dh . v_j - dh . h may be far below the rounding of either.
        const T from = dh_v[std::max_element(p.row(n), p.row(n) + count) - p.row(n)];
        T pulled = T(0);
        for (Index j = 0; j < count; ++j) pulled += p(n, j) * (dh_v[j] -= from);
        T score_slope[max_candidates], along_v[max_candidates];
        for (Index j = 0; j < count; ++j) {
            // (RES-3), times r
            score_slope[j] = p(n, j) * (dh_v[j] - pulled) * r(n, j);
            along_v[j] = score_slope[j] * w_v[j] * r(n, j) * r(n, j) / static_cast<T>(width);
        }
        for_lanes<T>(width, [&](auto at) {
            const Lane<T> from_h = at.load(gradient), w = at.load(gamma.data) * at.load(pi.data);
            Lane<T> sum = at.load(dw);
            for (Index j = 0; j < count; ++j) {
                const Lane<T> v = at.load(candidates.view[j].row(n));
                T* dv = dcandidates.view[j].row(n);
                sum += score_slope[j] * v;
                // (RES-4)
                at.store(dv, Lane<T>(at.load(dv) + p(n, j) * from_h + score_slope[j] * w - along_v[j] * v));
            }
            at.store(dw, sum);
        });
    }
}

}  // namespace detail

template <class T>
void attn_res_forward(const Context<Cpu>& ctx, const std::type_identity_t<Candidates<const T>>& candidates,
                      InVector<T> gamma, InVector<T> pi, double eps, Out<T> h, Out<accumulator_t<T>> p,
                      Out<accumulator_t<T>> r) {
    using detail::Lane;
    const Index width = h.cols, count = candidates.count;
    detail::check_attn_res<T>(h.rows, width, candidates, gamma, pi, p, r);
    ctx.parallel(h.rows, 4, [&](Index first, Index last) {
        for (Index n = first; n < last; ++n) {
            T weight[max_candidates], highest = -std::numeric_limits<T>::infinity(), total = 0;
            for (Index j = 0; j < count; ++j) {
                const T* v = candidates.view[j].row(n);
                const auto [v_v, w_v] = detail::two_dots(v, v, gamma.data, pi.data, width);
                // (RES-1)
                r(n, j) = T(1) / std::sqrt(v_v / static_cast<T>(width) + static_cast<T>(eps));
                weight[j] = r(n, j) * w_v;
                highest = (std::max)(highest, weight[j]);
            }
            // (RES-2)
            for (Index j = 0; j < count; ++j) total += weight[j] = std::exp(weight[j] - highest);
            for (Index j = 0; j < count; ++j) p(n, j) = weight[j] /= total;
            detail::for_lanes<T>(width, [&](auto at) {
                Lane<T> mix = detail::lane(T(0));
                for (Index j = 0; j < count; ++j) mix += weight[j] * at.load(candidates.view[j].row(n));
                at.store(h.row(n), mix);
            });
        }
    });
}

template <class T>
void attn_res_backward(const Context<Cpu>& ctx, In<T> dh, const std::type_identity_t<Candidates<const T>>& candidates,
                       InVector<T> gamma, InVector<T> pi, In<accumulator_t<T>> p, In<accumulator_t<T>> r, In<T> h,
                       const std::type_identity_t<Candidates<T>>& dcandidates, OutVector<T> dgamma, OutVector<T> dpi) {
    using detail::Lane;
    constexpr Index block = 32;
    const Index rows = dh.rows, width = dh.cols, count = candidates.count, blocks = ceil_div(rows, block);
    detail::check_attn_res<T>(rows, width, candidates, gamma, pi, p, r);
    detail::check_attn_res_gradients<T>(rows, width, count, dcandidates, dgamma, dpi);
    require_shape("attn_res: h", h, rows, width);
    const MatrixView<T> dw(ctx.workspace<T>(0, blocks * width), blocks, width);
    ctx.parallel(blocks, 1, [&](Index first, Index last) {
        for (Index b = first; b < last; ++b) {
            detail::local_attn_res_backward<T>(b * block, (std::min)(rows, (b + 1) * block), dh, candidates, gamma, pi,
                                               p, r, dcandidates, dw.row(b));
        }
    });
    detail::for_lanes<T>(width, [&](auto at) {
        Lane<T> sum = detail::lane(T(0));
        for (Index b = 0; b < blocks; ++b) sum += at.load(dw.row(b));
        // (RES-5)
        at.store(dgamma.data, Lane<T>(at.load(dgamma.data) + sum * at.load(pi.data)));
        at.store(dpi.data, Lane<T>(at.load(dpi.data) + sum * at.load(gamma.data)));
    });
}

}  // namespace kimik3
