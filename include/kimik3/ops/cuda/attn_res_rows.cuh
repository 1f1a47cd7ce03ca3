#pragma once
// The kernels of AttnRes, with or without the RMSNorm that follows, for rows of Eights (vectors.cuh) and up to
// few_candidates candidates. Forward reads every candidate once: a team of lanes keeps its token's mixture, rescaled
// when a score exceeds those before it. Backward gives every Eight of a row a thread, and shares sums over the row
// among half-warps; candidates and gradients of the rows to come are on their way to shared memory, where what a thread
// copies it alone reads. With the norm it makes h again from the candidates, so forward need not write it.

#include "kimik3/ops/attn_res.hpp"
#include "kimik3/ops/cuda/tensor_core.cuh"
#include "kimik3/ops/cuda/vectors.cuh"

namespace kimik3::gpu {

inline constexpr int few_candidates = 16, attn_res_threads = 128;

/// Candidates small enough to be passed to a kernel by the hundred.
template <class T>
struct FewCandidates {
    T* data[few_candidates];
    Index stride;
    int count;

    explicit FewCandidates(const Candidates<T>& all) : stride(all.view[0].stride), count(static_cast<int>(all.count)) {
        for (int j = 0; j < count; ++j) data[j] = all.view[j].data;
    }
    __device__ T* row(int j, Index n) const { return data[j] + n * stride; }
};

template <class T>
bool few_in_eights(const Candidates<T>& all) {
    bool fit = all.count <= few_candidates;
    for (Index j = 0; fit && j < all.count; ++j)
        fit = in_eights<T>({all.view[j]}) && all.view[j].stride == all.view[0].stride;
    return fit;
}

/// What both directions read of the parameters. norm: of the RMSNorm that follows, or of no size.
template <class A>
struct AttnResWeights {
    VectorView<const A> gamma, pi, norm;

    /// gamma pi, and the weights of the norm, of the columns c ... c + 7.
    __device__ void get(int c, A (&product)[8], A (&of_norm)[8]) const {
        A other[8];
        load_eight(gamma.data + c, product), load_eight(pi.data + c, other);
#pragma unroll
        for (int i = 0; i < 8; ++i) product[i] *= other[i];
        if (norm.size != 0) load_eight(norm.data + c, of_norm);
    }
};

/// h: written where it has rows. y and norm_r: with the norm.
template <class T, int lanes, int vectors, bool normed>
__global__ void __launch_bounds__(attn_res_threads, 4)
    attn_res_forward_kernel(FewCandidates<const T> candidates, AttnResWeights<accumulator_t<T>> weights,
                            accumulator_t<T> eps, accumulator_t<T> norm_eps, MatrixView<T> h, MatrixView<T> y,
                            MatrixView<accumulator_t<T>> p, MatrixView<accumulator_t<T>> r,
                            VectorView<accumulator_t<T>> norm_r) {
    using A = accumulator_t<T>;
    __shared__ __align__(16) A w[8 * lanes * vectors];
    begin_in_turn();
    const Index rows = p.rows;
    const int width = static_cast<int>(weights.gamma.size), team = threadIdx.x / lanes;
    const Index teams = attn_res_threads / lanes, step = gridDim.x * teams;
    Eight<T> next[vectors];  // the candidate to come
    const auto fetch = [&](int j, Index n) {
#pragma unroll
        for (int v = 0; v < vectors; ++v) {
            const int c = 8 * (v * lanes + threadIdx.x % lanes);
            next[v] = n < rows && c < width ? Eight<T>::load(candidates.row(j, n) + c) : Eight<T>::zero();
        }
    };
    fetch(0, blockIdx.x * teams + team);
    for (int c = threadIdx.x; c < 8 * lanes * vectors; c += attn_res_threads)
        w[c] = c < width ? weights.gamma[c] * weights.pi[c] : A(0);
    __syncthreads();
    rows_of_team<lanes>(rows, [&](Index n, int lane) {
        const bool exists = n < rows;
        A mix[vectors][8] = {}, highest = -INFINITY, total = A(0), my_score = A(0), my_r = A(0);
#pragma unroll 1
        for (int j = 0; j < candidates.count; ++j) {
            Eight<T> row[vectors];
#pragma unroll
            for (int v = 0; v < vectors; ++v) row[v] = next[v];
            const bool last = j + 1 == candidates.count;
            fetch(last ? 0 : j + 1, last ? n + step : n);
            A squares = A(0), score = A(0);
#pragma unroll
            for (int v = 0; v < vectors; ++v) {
                A value[8], weight[8];
                row[v].get(value);
                load_eight(w + 8 * (v * lanes + lane), weight);
#pragma unroll
                for (int i = 0; i < 8; ++i) squares += value[i] * value[i], score += value[i] * weight[i];
            }
            const A scale = rsqrt(team_sum<lanes>(squares) / static_cast<A>(width) + eps);
            score = scale * team_sum<lanes>(score);
            if (lane == j) my_score = score, my_r = scale;
            const A above = score > highest ? score : highest, kept = exp(highest - above), share = exp(score - above);
            highest = above;
            total = total * kept + share;
#pragma unroll
            for (int v = 0; v < vectors; ++v) {
                A value[8];
                row[v].get(value);
#pragma unroll
                for (int i = 0; i < 8; ++i) mix[v][i] = mix[v][i] * kept + share * value[i];
            }
        }
        const A each = A(1) / total;
        A squares = A(0);
#pragma unroll
        for (int v = 0; v < vectors; ++v) {
#pragma unroll
            for (int i = 0; i < 8; ++i) mix[v][i] *= each, squares += mix[v][i] * mix[v][i];
        }
        const A scale = normed ? rsqrt(team_sum<lanes>(squares) / static_cast<A>(width) + norm_eps) : A(1);
        if (!exists) return;
        if (lane < candidates.count) p(n, lane) = exp(my_score - highest) * each, r(n, lane) = my_r;
        if (normed && lane == 0) norm_r[n] = scale;
#pragma unroll
        for (int v = 0; v < vectors; ++v) {
            const int c = 8 * (v * lanes + lane);
            if (c >= width) continue;
            if (h.rows != 0) Eight<T>::of(mix[v]).store(h.row(n) + c);
            if constexpr (normed) {
                A weight[8];
                load_eight(weights.norm.data + c, weight);
#pragma unroll
                for (int i = 0; i < 8; ++i) mix[v][i] *= scale * weight[i];
                Eight<T>::of(mix[v]).store(y.row(n) + c);
            }
        }
    });
}

/// Bytes of shared memory for the rows that a block has at a time: dy, the candidates, their gradients.
template <class T>
Index attn_res_step_bytes(Index count, int threads) {
    return (2 * count + 1) * threads * static_cast<Index>(sizeof(Eight<T>));
}

/// dy: the gradient of y with the norm, of h without. A block leaves a row of parts: the sums of slope_j v_j and, with
/// the norm, those of dy h norm_r. Lane j of a half-warp holds what is of candidate j.
template <class T, int halves, bool normed>
__global__ void __launch_bounds__(RowThreads<halves>::most)
    attn_res_backward_kernel(RowThreads<halves> at, int steps, MatrixView<const T> dy,
                             FewCandidates<const T> candidates, AttnResWeights<accumulator_t<T>> weights,
                             MatrixView<const accumulator_t<T>> p, MatrixView<const accumulator_t<T>> r,
                             VectorView<const accumulator_t<T>> norm_r, FewCandidates<T> gradients,
                             accumulator_t<T>* parts) {
    using A = accumulator_t<T>;
    constexpr int words = Eight<T>::words;
    extern __shared__ uint4 attn_res_memory[];
    __shared__ typename RowThreads<halves>::template Sums<A, 1> along_of;
    __shared__ typename RowThreads<halves>::template Sums<A, 16> dh_v_of, w_v_of;
    begin_in_turn();
    along_of.clear(), dh_v_of.clear(), w_v_of.clear();
    const int width = static_cast<int>(dy.cols), count = candidates.count, lane = threadIdx.x % 16, c = at.column();
    const Index rows = dy.rows, step = Index{gridDim.x} * at.rows;
    const auto exists = [&](Index n) { return n < rows && c < width; };
    uint4* mine = attn_res_memory + threadIdx.x;  // of a step: dy, candidates, gradients
    const int apart = words * static_cast<int>(blockDim.x);
    const auto copy = [&](int m, const T* from, bool exists) {
#pragma unroll
        for (int i = 0; i < words; ++i)
            copy_16_bytes(mine + m * apart + i * blockDim.x, reinterpret_cast<const uint4*>(from + c) + i, exists);
    };
    const auto copy_candidate = [&](int j, Index n) {
        copy(1 + j, candidates.row(j, n), exists(n)), copy(1 + count + j, gradients.row(j, n), exists(n));
    };
    const auto held = [&](int m, A(&to)[8]) {
        Eight<T> e;
#pragma unroll
        for (int i = 0; i < words; ++i) e.word[i] = mine[m * apart + i * blockDim.x];
        e.get(to);
    };
    const auto half_sum = [](A value) { return team_sum<16>(value); };
    int turn = 0;
    const auto next_step = [&] {
        turn = turn + 1 == steps ? 0 : turn + 1;
        mine = attn_res_memory + turn * (2 * count + 1) * apart + threadIdx.x;
    };
    A w[8] = {}, w_norm[8] = {}, sums[1][8] = {}, norm_sums[1][8] = {};
    if (c < width) weights.get(c, w, w_norm);

    Index n = Index{blockIdx.x} * at.rows + at.row();
    for (int s = 0; s < steps; ++s) {
        copy(0, dy.row(n + s * step), exists(n + s * step));
        for (int j = 0; j < count; ++j) copy_candidate(j, n + s * step);
        commit_copies();
        next_step();
    }
    A next_p = A(0), next_r = A(0), next_scale = A(0);
    const auto fetch = [&](Index n) {
        if (n >= rows) return;
        if (lane < count) next_p = p(n, lane), next_r = r(n, lane);
        if (normed) next_scale = norm_r[n];
    };
    fetch(n);
    const A each = A(1) / static_cast<A>(width);
    for (Index first = Index{blockIdx.x} * at.rows; first < rows; first += step, n += step) {
        const A my_p = next_p, my_r = next_r, scale = next_scale;
        fetch(n + step);
        if (steps == 1) wait_for_copies<0>();
        else wait_for_copies<1>();
        A dh[8], mix[8] = {}, my_w_v = A(0), my_dh_v = A(0);
        held(0, dh);
#pragma unroll 2
        for (int j = 0; j < count; ++j) {
            const A share = __shfl_sync(0xffffffffu, my_p, j, 16);
            A value[8], w_v = A(0);
            held(1 + j, value);
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                if constexpr (normed) mix[i] += share * value[i];
                w_v += w[i] * value[i];
            }
            w_v = half_sum(w_v);
            if (lane == j) my_w_v = w_v;
        }
        if constexpr (normed) {
            A along = A(0);
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                norm_sums[0][i] += dh[i] * mix[i] * scale;
                dh[i] *= w_norm[i];
                along += dh[i] * mix[i];
            }
            along = half_sum(along);
            if (lane == 0) along_of.put(at, 0, along);
            __syncthreads();
            const A pull = scale * scale * scale * along_of.take(at, 0) * each;
#pragma unroll
            for (int i = 0; i < 8; ++i) dh[i] = dh[i] * scale - mix[i] * pull;
        }
#pragma unroll 2
        for (int j = 0; j < count; ++j) {
            A value[8], dh_v = A(0);
            held(1 + j, value);
#pragma unroll
            for (int i = 0; i < 8; ++i) dh_v += dh[i] * value[i];
            dh_v = half_sum(dh_v);
            if (lane == j) my_dh_v = dh_v;
        }
        dh_v_of.put(at, lane, my_dh_v), w_v_of.put(at, lane, my_w_v);
        __syncthreads();
        my_dh_v = dh_v_of.take(at, lane), my_w_v = w_v_of.take(at, lane);
        const A pulled = half_sum(my_p * my_dh_v);  // dh . h, without the rounding of h
        const A my_slope = my_p * (my_dh_v - pulled) * my_r, my_along_v = my_slope * my_w_v * my_r * my_r * each;
        const Index later = n + steps * step;
        copy(0, dy.row(later), exists(later));
        for (int j = 0; j < count; ++j) {
            const A share = __shfl_sync(0xffffffffu, my_p, j, 16), slope = __shfl_sync(0xffffffffu, my_slope, j, 16),
                    along_v = __shfl_sync(0xffffffffu, my_along_v, j, 16);
            A value[8], gradient[8];
            held(1 + j, value), held(1 + count + j, gradient);
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                gradient[i] += share * dh[i] + slope * w[i] - along_v * value[i];
                sums[0][i] += slope * value[i];
            }
            if (exists(n)) Eight<T>::of(gradient).store(gradients.row(j, n) + c);
            copy_candidate(j, later);
        }
        commit_copies();
        next_step();
    }
    wait_for_copies<0>();
    __syncthreads();
    A* shared = reinterpret_cast<A*>(attn_res_memory);
    A* to = parts + Index{blockIdx.x} * (normed ? 2 : 1) * width;
    leave_column_sums(at.row_threads, sums, width / 8, shared, to);
    if constexpr (normed) leave_column_sums(at.row_threads, norm_sums, width / 8, shared, to + width);
}

}  // namespace kimik3::gpu
