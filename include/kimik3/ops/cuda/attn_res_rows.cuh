#pragma once
// The kernels of AttnRes, with or without the RMSNorm that follows, for rows of Eights (vectors.cuh) and up to
// few_candidates candidates. Forward reads every candidate once: a team of lanes keeps its token's mixture, rescaled
// when a score exceeds those before it. Backward has a warp a token, with its candidates and their gradients in shared
// memory; with the norm it makes h again from the candidates, so forward need not write it. What a lane copies to
// shared memory it alone reads: there is nothing to wait for but its own copies.

#include "kimik3/ops/attn_res.hpp"
#include "kimik3/ops/cuda/tensor_core.cuh"
#include "kimik3/ops/cuda/vectors.cuh"

namespace kimik3::gpu {

inline constexpr int few_candidates = 16, attn_res_threads = 128;

/// Candidates small enough to be passed to a kernel by the hundred.
template <class T>
struct FewCandidates {
    T* data[few_candidates];
    Index stride[few_candidates];
    int count;

    explicit FewCandidates(const Candidates<T>& all) : count(static_cast<int>(all.count)) {
        for (int j = 0; j < count; ++j) data[j] = all.view[j].data, stride[j] = all.view[j].stride;
    }
    __device__ T* row(int j, Index n) const { return data[j] + n * stride[j]; }
};

template <class T>
bool few_in_eights(const Candidates<T>& all) {
    bool fit = all.count <= few_candidates;
    for (Index j = 0; fit && j < all.count; ++j) fit = in_eights<T>({all.view[j]});
    return fit;
}

/// What both directions read of the parameters. norm: of the RMSNorm that follows, or of no size.
template <class A>
struct AttnResWeights {
    VectorView<const A> gamma, pi, norm;

    /// gamma pi in shared memory.
    __device__ void put_product(A* shared) const {
        for (int c = threadIdx.x; c < gamma.size; c += blockDim.x) shared[c] = gamma[c] * pi[c];
        __syncthreads();
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
    weights.put_product(w);
    const Index rows = p.rows;
    const int width = static_cast<int>(weights.gamma.size);
    rows_of_team<lanes>(rows, [&](Index n, int lane) {
        const bool exists = n < rows;
        Eight<T> next[vectors];
        const auto fetch = [&](int j) {
#pragma unroll
            for (int v = 0; v < vectors; ++v) {
                const int c = 8 * (v * lanes + lane);
                next[v] = exists && c < width ? Eight<T>::load(candidates.row(j, n) + c) : Eight<T>::zero();
            }
        };
        fetch(0);
        A mix[vectors][8] = {}, highest = -INFINITY, total = A(0), my_score = A(0), my_r = A(0);
#pragma unroll 2
        for (int j = 0; j < candidates.count; ++j) {
            Eight<T> row[vectors];
#pragma unroll
            for (int v = 0; v < vectors; ++v) row[v] = next[v];
            if (j + 1 < candidates.count) fetch(j + 1);
            A squares = A(0), score = A(0);
#pragma unroll
            for (int v = 0; v < vectors; ++v) {
                const int c = 8 * (v * lanes + lane);
                if (c >= width) continue;
                A value[8], weight[8];
                row[v].get(value);
                load_eight(w + c, weight);
#pragma unroll
                for (int i = 0; i < 8; ++i) squares += value[i] * value[i], score += value[i] * weight[i];
            }
            const A scale = A(1) / sqrt(team_sum<lanes>(squares) / static_cast<A>(width) + eps);
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
        const A scale = normed ? A(1) / sqrt(team_sum<lanes>(squares) / static_cast<A>(width) + norm_eps) : A(1);
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

/// Warps of a block of the backward kernel, and the bytes of shared memory that it takes.
inline constexpr int attn_res_warps = 4;
template <class T>
Index attn_res_backward_bytes(Index width, Index count) {
    return width * static_cast<Index>(sizeof(accumulator_t<T>)) +
           attn_res_warps * 2 * count * width * static_cast<Index>(sizeof(T));
}

/// dy: the gradient of y with the norm, of h without; h: read without the norm only. A block leaves a row of parts: the
/// sums of slope_j v_j and, with the norm, those of dy h norm_r.
template <class T, int vectors, bool normed>
__global__ void __launch_bounds__(32 * attn_res_warps)
    attn_res_backward_kernel(MatrixView<const T> dy, FewCandidates<const T> candidates,
                             AttnResWeights<accumulator_t<T>> weights, MatrixView<const accumulator_t<T>> p,
                             MatrixView<const accumulator_t<T>> r, VectorView<const accumulator_t<T>> norm_r,
                             MatrixView<const T> h, FewCandidates<T> gradients, accumulator_t<T>* parts) {
    using A = accumulator_t<T>;
    extern __shared__ __align__(16) unsigned char attn_res_memory[];
    const int width = static_cast<int>(dy.cols), count = candidates.count;
    A* w = reinterpret_cast<A*>(attn_res_memory);
    T* held = reinterpret_cast<T*>(w + width) + threadIdx.x / 32 * 2 * count * width;  // candidates, then gradients
    weights.put_product(w);
    A sums[vectors][8] = {}, norm_sums[vectors][8] = {};
    rows_of_team<32>(dy.rows, [&](Index n, int lane) {
        const auto each_eight = [&](auto&& body) {
#pragma unroll
            for (int v = 0; v < vectors; ++v)
                if (const int c = 8 * (v * 32 + lane); c < width) body(v, c);
        };
        const auto copy_row = [&](T* to, const T* from) {
            each_eight([&](int, int c) {
#pragma unroll
                for (int i = 0; i < Eight<T>::words; ++i)
                    copy_16_bytes(reinterpret_cast<uint4*>(to + c) + i, reinterpret_cast<const uint4*>(from + c) + i);
            });
        };
        for (int j = 0; j < count; ++j) copy_row(held + j * width, candidates.row(j, n));
        commit_copies();
        for (int j = 0; j < count; ++j) copy_row(held + (count + j) * width, gradients.row(j, n));
        commit_copies();
        Eight<T> incoming[vectors];
        each_eight([&](int v, int c) { incoming[v] = Eight<T>::load(dy.row(n) + c); });
        const A my_p = lane < count ? p(n, lane) : A(0), my_r = lane < count ? r(n, lane) : A(0);

        A dh[vectors][8] = {}, mix[vectors][8] = {};
        if constexpr (normed) {
            const A scale = norm_r[n];
            wait_for_copies<1>();
            for (int j = 0; j < count; ++j) {
                const A share = __shfl_sync(0xffffffffu, my_p, j);
                each_eight([&](int v, int c) {
                    A value[8];
                    load_eight(held + j * width + c, value);
#pragma unroll
                    for (int i = 0; i < 8; ++i) mix[v][i] += share * value[i];
                });
            }
            A along = A(0);
            each_eight([&](int v, int c) {
                A weight[8];
                incoming[v].get(dh[v]);
                load_eight(weights.norm.data + c, weight);
#pragma unroll
                for (int i = 0; i < 8; ++i) {
                    norm_sums[v][i] += dh[v][i] * mix[v][i] * scale;
                    dh[v][i] *= weight[i];
                    along += dh[v][i] * mix[v][i];
                }
            });
            const A pull = scale * scale * scale * (team_sum<32>(along) / static_cast<A>(width));
            each_eight([&](int v, int) {
#pragma unroll
                for (int i = 0; i < 8; ++i) dh[v][i] = dh[v][i] * scale - mix[v][i] * pull;
            });
        } else {
            each_eight([&](int v, int c) { incoming[v].get(dh[v]), load_eight(h.row(n) + c, mix[v]); });
        }
        A pulled = A(0);
        each_eight([&](int v, int) {
#pragma unroll
            for (int i = 0; i < 8; ++i) pulled += dh[v][i] * mix[v][i];
        });
        pulled = team_sum<32>(pulled);
        wait_for_copies<0>();
        for (int j = 0; j < count; ++j) {
            A dh_v = A(0), w_v = A(0);
            Eight<T> row[vectors];
            each_eight([&](int v, int c) {
                A value[8], weight[8];
                row[v] = Eight<T>::load(held + j * width + c);
                row[v].get(value);
                load_eight(w + c, weight);
#pragma unroll
                for (int i = 0; i < 8; ++i) dh_v += dh[v][i] * value[i], w_v += weight[i] * value[i];
            });
            const A share = __shfl_sync(0xffffffffu, my_p, j), scale = __shfl_sync(0xffffffffu, my_r, j);
            const A slope = share * (team_sum<32>(dh_v) - pulled) * scale;
            const A along_v = slope * team_sum<32>(w_v) * scale * scale / static_cast<A>(width);
            each_eight([&](int v, int c) {
                A value[8], weight[8], gradient[8];
                row[v].get(value);
                load_eight(w + c, weight);
                load_eight(held + (count + j) * width + c, gradient);
#pragma unroll
                for (int i = 0; i < 8; ++i) {
                    gradient[i] += share * dh[v][i] + slope * weight[i] - along_v * value[i];
                    sums[v][i] += slope * value[i];
                }
                Eight<T>::of(gradient).store(gradients.row(j, n) + c);
            });
        }
    });
    __syncthreads();
    A* to = parts + Index{blockIdx.x} * (normed ? 2 : 1) * width;
    leave_column_sums<32, vectors>(sums, width / 8, w, to);
    if constexpr (normed) leave_column_sums<32, vectors>(norm_sums, width / 8, w, to + width);
}

}  // namespace kimik3::gpu
