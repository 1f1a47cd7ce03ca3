#pragma once
// AttnRes on the GPU: a team a token. Backward keeps each token's slopes in scratch memory, from which dw is summed
// over the tokens.

#include "kimik3/ops/attn_res.hpp"
#include "kimik3/ops/cuda/launch.cuh"

namespace kimik3 {
namespace gpu {

template <class T>
void check_candidates(const Candidates<T>& candidates, Index rows, Index cols) {
    require(candidates.count >= 1, "attn_res mixes at least one candidate");
    for (Index j = 0; j < candidates.count; ++j) require_shape("attn_res: candidate", candidates.view[j], rows, cols);
}

}  // namespace gpu

template <class T>
void attn_res_forward(const Context<Cuda>& ctx, const std::type_identity_t<Candidates<const T>>& candidates,
                      InVector<accumulator_t<T>> gamma, InVector<accumulator_t<T>> pi, double eps, Out<T> h,
                      std::type_identity_t<Out<accumulator_t<T>>> p, std::type_identity_t<Out<accumulator_t<T>>> r) {
    using A = accumulator_t<T>;
    const Index width = h.cols, count = candidates.count;
    gpu::check_candidates(candidates, h.rows, width);
    require_size("attn_res: gamma", gamma, width);
    require_size("attn_res: pi", pi, width);
    require_shape("attn_res: p", p, h.rows, count);
    require_shape("attn_res: r", r, h.rows, count);
    const Candidates<const T> all = candidates;
    gpu::for_rows(ctx, h.rows, width, [=] __device__(Index n, gpu::Team team) {
        A highest = -INFINITY;
        for (Index j = 0; j < count; ++j) {
            const T* v = all.view[j].row(n);
            A squares = A(0), score = A(0);
            for (Index c = team.rank; c < width; c += team.size) {
                squares += A(v[c]) * v[c];
                score += v[c] * gamma[c] * pi[c];
            }
            const A scale = A(1) / sqrt(team.sum(squares) / static_cast<A>(width) + static_cast<A>(eps));
            score = scale * team.sum(score);
            highest = score > highest ? score : highest;
            if (team.rank == 0) r(n, j) = scale, p(n, j) = score;
        }
        team.sync();
        A total = A(0);
        for (Index j = 0; j < count; ++j) total += exp(p(n, j) - highest);
        team.sync();
        for (Index j = team.rank; j < count; j += team.size) p(n, j) = exp(p(n, j) - highest) / total;
        team.sync();
        for (Index c = team.rank; c < width; c += team.size) {
            A mix = A(0);
            for (Index j = 0; j < count; ++j) mix += p(n, j) * all.view[j](n, c);
            h(n, c) = static_cast<T>(mix);
        }
    });
}

template <class T>
void attn_res_backward(const Context<Cuda>& ctx, In<T> dh, const std::type_identity_t<Candidates<const T>>& candidates,
                       InVector<accumulator_t<T>> gamma, InVector<accumulator_t<T>> pi, In<accumulator_t<T>> p,
                       In<accumulator_t<T>> r, In<T> h, const Candidates<T>& dcandidates,
                       OutVector<accumulator_t<T>> dgamma, OutVector<accumulator_t<T>> dpi) {
    using A = accumulator_t<T>;
    const Index rows = dh.rows, width = dh.cols, count = candidates.count;
    gpu::check_candidates(candidates, rows, width);
    gpu::check_candidates(dcandidates, rows, width);
    require(dcandidates.count == count, "attn_res: {} candidates need as many gradients, got {}", count,
            dcandidates.count);
    require_shape("attn_res: h", h, rows, width);
    require_shape("attn_res: p", p, rows, count);
    require_shape("attn_res: r", r, rows, count);
    require_size("attn_res: gamma", gamma, width);
    require_size("attn_res: pi", pi, width);
    require_size("attn_res: dgamma", dgamma, width);
    require_size("attn_res: dpi", dpi, width);
    const MatrixView<A> slope(ctx.workspace<A>(Scratch::operation, rows * count), rows, count);
    const Candidates<const T> all = candidates;
    const Candidates<T> gradients = dcandidates;
    gpu::for_rows(ctx, rows, width, [=] __device__(Index n, gpu::Team team) {
        A pulled = A(0);
        for (Index c = team.rank; c < width; c += team.size) pulled += A(dh(n, c)) * h(n, c);
        pulled = team.sum(pulled);
        for (Index j = 0; j < count; ++j) {
            const T* v = all.view[j].row(n);
            A dh_v = A(0), w_v = A(0);
            for (Index c = team.rank; c < width; c += team.size) {
                dh_v += A(dh(n, c)) * v[c];
                w_v += gamma[c] * pi[c] * v[c];
            }
            const A score_slope = p(n, j) * (team.sum(dh_v) - pulled) * r(n, j);
            const A along_v = score_slope * team.sum(w_v) * r(n, j) * r(n, j) / static_cast<A>(width);
            T* dv = gradients.view[j].row(n);
            for (Index c = team.rank; c < width; c += team.size)
                dv[c] = static_cast<T>(dv[c] + (p(n, j) * dh(n, c) + score_slope * gamma[c] * pi[c] - along_v * v[c]));
            if (team.rank == 0) slope(n, j) = score_slope;
        }
    });
    gpu::column_sums<A>(
        ctx, rows, width,
        [=] __device__(Index n, Index c) {
            A sum = A(0);
            for (Index j = 0; j < count; ++j) sum += slope(n, j) * all.view[j](n, c);
            return sum;
        },
        [=] __device__(Index c, A sum) {
            dgamma[c] += sum * pi[c];
            dpi[c] += sum * gamma[c];
        });
}

}  // namespace kimik3
