#pragma once
// AttnRes on the GPU, by the kernels of attn_res_rows.cuh where they take the shapes. The plain form has a team a
// token; its backward keeps each token's slopes in scratch memory, from which dw is summed over the tokens.

#include "kimik3/ops/cuda/attn_res_rows.cuh"
#include "kimik3/ops/cuda/rms_norm.cuh"

namespace kimik3 {
namespace gpu {

/// Whether the kernel of rows was started. With the norm y has rows; h may have none.
template <bool normed, class T>
bool attn_res_rows_forward(const Context<Cuda>& ctx, const Candidates<const T>& candidates,
                           const AttnResWeights<accumulator_t<T>>& weights, double eps, double norm_eps,
                           MatrixView<T> h, MatrixView<T> y, MatrixView<accumulator_t<T>> p,
                           MatrixView<accumulator_t<T>> r, VectorView<accumulator_t<T>> norm_r) {
    using A = accumulator_t<T>;
    if (!few_in_eights<const T>(candidates) || !in_eights<T>({h, y}) || !in_eights<const A>({weights.norm}))
        return false;
    return split_row(candidates.view[0].cols, [&](auto lanes, auto vectors) {
        constexpr auto kernel = attn_res_forward_kernel<T, lanes, vectors, normed>;
        ctx.make_current();
        static OfEachGpu<Index> blocks;
        const Index most = blocks.of_current([&] { return resident_blocks(kernel, attn_res_threads); });
        launch_early(ctx, (std::min)(most, ceil_div(p.rows, attn_res_threads / lanes)), attn_res_threads, 0, kernel,
                     FewCandidates<const T>(candidates), weights, static_cast<A>(eps), static_cast<A>(norm_eps), h, y,
                     p, r, norm_r);
    });
}

/// What the blocks of backward left, a row a block: the width's sums of slope_j v_j, and with the norm those of dw.
template <class A>
struct AttnResParts {
    A* data = nullptr;
    Index count = 0;
};

/// No parts where the shapes ask for the plain form.
template <bool normed, class T>
AttnResParts<accumulator_t<T>> attn_res_rows_backward(
    const Context<Cuda>& ctx, MatrixView<const T> dy, const Candidates<const T>& candidates,
    const AttnResWeights<accumulator_t<T>>& weights, MatrixView<const accumulator_t<T>> p,
    MatrixView<const accumulator_t<T>> r, VectorView<const accumulator_t<T>> norm_r, const Candidates<T>& gradients) {
    using A = accumulator_t<T>;
    AttnResParts<A> parts;
    ctx.make_current();
    if (!few_in_eights<const T>(candidates) || !few_in_eights<T>(gradients) || !in_eights<const T>({dy}) ||
        !in_eights<const A>({weights.gamma, weights.pi, weights.norm}))
        return parts;
    share_row(dy.cols, [&](auto halves) {
        constexpr auto kernel = attn_res_backward_kernel<T, halves, normed>;
        const RowThreads<halves> at(dy.cols);
        const Index step_bytes = attn_res_step_bytes<T>(candidates.count, at.threads());
        const int steps = step_bytes <= 24 * 1024 ? 2 : 1;
        const Index bytes = steps * step_bytes;
        if (bytes > (std::min)(Index{200 * 1024}, most_shared_bytes())) return;
        allow_shared_memory(kernel, bytes);
        parts.count = (std::min)(resident_blocks(kernel, at.threads(), bytes), ceil_div(dy.rows, at.rows));
        parts.data = ctx.workspace<A>(Scratch::sums, parts.count * (normed ? 2 : 1) * dy.cols);
        launch_early(ctx, parts.count, at.threads(), bytes, kernel, at, steps, dy, FewCandidates<const T>(candidates),
                     weights, p, r, norm_r, FewCandidates<T>(gradients), parts.data);
    });
    return parts;
}

/// dgamma, dpi and, with the norm, dw from what the blocks left.
template <class A>
void add_attn_res_sums(const Context<Cuda>& ctx, AttnResParts<A> parts, VectorView<const A> gamma,
                       VectorView<const A> pi, VectorView<A> dgamma, VectorView<A> dpi, VectorView<A> dw) {
    const Index width = gamma.size;
    sum_parts(ctx, parts.data, parts.count, width + dw.size, [=] __device__(Index c, A sum) {
        if (c < width) {
            dgamma[c] += sum * pi[c];
            dpi[c] += sum * gamma[c];
        } else {
            dw[c - width] += sum;
        }
    });
}

}  // namespace gpu

template <class T>
void attn_res_forward(const Context<Cuda>& ctx, const std::type_identity_t<Candidates<const T>>& candidates,
                      InVector<accumulator_t<T>> gamma, InVector<accumulator_t<T>> pi, double eps, Out<T> h,
                      std::type_identity_t<Out<accumulator_t<T>>> p, std::type_identity_t<Out<accumulator_t<T>>> r) {
    using A = accumulator_t<T>;
    const Index width = h.cols, count = candidates.count;
    detail::check_attn_res<T>(h.rows, width, candidates, gamma, pi, p, r);
    if (h.rows == 0 ||
        gpu::attn_res_rows_forward<false, T>(ctx, candidates, {gamma, pi, {}}, eps, 0.0, h, {}, p, r, {}))
        return;
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
    detail::check_attn_res<T>(rows, width, candidates, gamma, pi, p, r);
    detail::check_attn_res_gradients<T>(rows, width, count, dcandidates, dgamma, dpi);
    require_shape("attn_res: h", h, rows, width);
    if (rows == 0) return;
    if (const auto parts =
            gpu::attn_res_rows_backward<false, T>(ctx, dh, candidates, {gamma, pi, {}}, p, r, {}, dcandidates);
        parts.count > 0)
        return gpu::add_attn_res_sums<A>(ctx, parts, gamma, pi, dgamma, dpi, {});
    const MatrixView<A> slope(ctx.workspace<A>(Scratch::operation, rows * count), rows, count);
    const Candidates<const T> all = candidates;
    const Candidates<T> gradients = dcandidates;
    gpu::for_rows(ctx, rows, width, [=] __device__(Index n, gpu::Team team) {
        A pulled = A(0);  // dh . h, without the rounding of h
        for (Index j = 0; j < count; ++j) {
            const T* v = all.view[j].row(n);
            A dh_v = A(0);
            for (Index c = team.rank; c < width; c += team.size) dh_v += A(dh(n, c)) * v[c];
            dh_v = team.sum(dh_v), pulled += p(n, j) * dh_v;
            if (team.rank == 0) slope(n, j) = dh_v;
        }
        team.sync();
        for (Index j = 0; j < count; ++j) {
            const T* v = all.view[j].row(n);
            A w_v = A(0);
            for (Index c = team.rank; c < width; c += team.size) w_v += gamma[c] * pi[c] * v[c];
            const A score_slope = p(n, j) * (slope(n, j) - pulled) * r(n, j);
            const A along_v = score_slope * team.sum(w_v) * r(n, j) * r(n, j) / static_cast<A>(width);
            T* dv = gradients.view[j].row(n);
            for (Index c = team.rank; c < width; c += team.size)
                dv[c] = static_cast<T>(dv[c] + (p(n, j) * dh(n, c) + score_slope * gamma[c] * pi[c] - along_v * v[c]));
            team.sync();
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

template <class T>
void attn_res_norm_forward(const Context<Cuda>& ctx, const std::type_identity_t<Candidates<const T>>& candidates,
                           InVector<accumulator_t<T>> gamma, InVector<accumulator_t<T>> pi, double eps,
                           InVector<accumulator_t<T>> w, double norm_eps, MatrixView<T> h,
                           std::type_identity_t<Out<T>> y, std::type_identity_t<Out<accumulator_t<T>>> p,
                           std::type_identity_t<Out<accumulator_t<T>>> r, OutVector<accumulator_t<T>> norm_r) {
    using A = accumulator_t<T>;
    const Index rows = y.rows, width = y.cols;
    detail::check_attn_res<T>(rows, width, candidates, gamma, pi, p, r);
    require_size("attn_res: w", w, width);
    require_size("attn_res: norm_r", norm_r, rows);
    if (rows == 0 ||
        gpu::attn_res_rows_forward<true, T>(ctx, candidates, {gamma, pi, w}, eps, norm_eps, {}, y, p, r, norm_r))
        return;
    attn_res_forward(ctx, candidates, gamma, pi, eps, h, p, r);
    rms_norm_forward(ctx, h, w, norm_eps, y, norm_r);
}

template <class T>
void attn_res_norm_backward(const Context<Cuda>& ctx, In<T> dy,
                            const std::type_identity_t<Candidates<const T>>& candidates,
                            InVector<accumulator_t<T>> gamma, InVector<accumulator_t<T>> pi,
                            InVector<accumulator_t<T>> w, In<accumulator_t<T>> p, In<accumulator_t<T>> r,
                            InVector<accumulator_t<T>> norm_r, MatrixView<T> h, const Candidates<T>& dcandidates,
                            OutVector<accumulator_t<T>> dgamma, OutVector<accumulator_t<T>> dpi,
                            OutVector<accumulator_t<T>> dw, std::type_identity_t<Out<T>> dh) {
    using A = accumulator_t<T>;
    const Index rows = dy.rows, width = dy.cols, count = candidates.count;
    detail::check_attn_res<T>(rows, width, candidates, gamma, pi, p, r);
    detail::check_attn_res_gradients<T>(rows, width, count, dcandidates, dgamma, dpi);
    require_size("attn_res: w", w, width);
    require_size("attn_res: norm_r", norm_r, rows);
    require_size("attn_res: dw", dw, width);
    if (rows == 0) return;
    if (const auto parts =
            gpu::attn_res_rows_backward<true, T>(ctx, dy, candidates, {gamma, pi, w}, p, r, norm_r, dcandidates);
        parts.count > 0)
        return gpu::add_attn_res_sums<A>(ctx, parts, gamma, pi, dgamma, dpi, dw);
    const Candidates<const T> all = candidates;  // forward may have left h as it was
    gpu::for_rows(ctx, rows, width, [=] __device__(Index n, gpu::Team team) {
        for (Index c = team.rank; c < width; c += team.size) {
            A mix = A(0);
            for (Index j = 0; j < count; ++j) mix += p(n, j) * all.view[j](n, c);
            h(n, c) = static_cast<T>(mix);
        }
    });
    rms_norm_backward(ctx, dy, h, w, norm_r, dh, dw);
    attn_res_backward(ctx, dh, candidates, gamma, pi, p, r, h, dcandidates, dgamma, dpi);
}

}  // namespace kimik3
