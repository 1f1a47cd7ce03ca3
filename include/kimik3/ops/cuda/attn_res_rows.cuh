#pragma once
// The kernels of AttnRes, with or without the RMSNorm that follows, for rows of Eights (vectors.cuh) and up to
// few_candidates candidates. Forward reads every candidate once: a team of lanes keeps its token's mixture, rescaled
// when a score exceeds those before it. Backward has a warp a token, with its candidates and their gradients in shared
// memory; with the norm it makes h again from the candidates, so forward need not write it. What a lane copies to shared
// memory it alone reads: there is nothing to wait for but its own copies.

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
__global__ void __launch_bounds__(attn_res_threads, 5)
    attn_res_forward_kernel(FewCandidates<const T> candidates, AttnResWeights<accumulator_t<T>> weights,
                            accumulator_t<T> eps, accumulator_t<T> norm_eps, MatrixView<T> h, MatrixView<T> y,
                            MatrixView<accumulator_t<T>> p, MatrixView<accumulator_t<T>> r,
                            VectorView<accumulator_t<T>> norm_r) {
    using A = accumulator_t<T>;
    constexpr int words = Eight<T>::words, ahead = 4 / words;
    __shared__ __align__(16) A w[8 * lanes * vectors];
    __shared__ uint4 held[ahead][vectors][words][attn_res_threads];
    const int lane = threadIdx.x % lanes, width = static_cast<int>(weights.gamma.size), count = candidates.count;
    const Index rows = p.rows, step = Index{gridDim.x} * (attn_res_threads / lanes);
    Index n = Index{blockIdx.x} * (attn_res_threads / lanes) + threadIdx.x / lanes;

    Index next_n = n;
    int next_j = 0, next_slot = 0, slot = 0;
    const auto fetch = [&] {
        if (next_n < rows) {
            const T* from = candidates.row(next_j, next_n);
#pragma unroll
            for (int v = 0; v < vectors; ++v) {
                const int c = 8 * (v * lanes + lane);
                if (c >= width) continue;
#pragma unroll
                for (int i = 0; i < words; ++i)
                    copy_16_bytes(&held[next_slot][v][i][threadIdx.x], reinterpret_cast<const uint4*>(from + c) + i);
            }
        }
        commit_copies();
        if (++next_j == count) next_j = 0, next_n += step;
        next_slot = (next_slot + 1) % ahead;
    };
    for (int k = 0; k < ahead - 1; ++k) fetch();
    weights.put_product(w);

    for (Index first = n - threadIdx.x % 32 / lanes; first < rows; first += step, n += step) {  // whole warps
        A mix[vectors][8] = {}, highest = -INFINITY, total = A(0), my_score = A(0), my_r = A(0);
        for (int j = 0; j < count; ++j) {
            fetch();
            wait_for_copies<ahead - 1>();
            const auto get = [&](int v, A (&value)[8]) {
                Eight<T> e;
#pragma unroll
                for (int i = 0; i < words; ++i) e.word[i] = held[slot][v][i][threadIdx.x];
                e.get(value);
            };
            A squares = A(0), score = A(0);
#pragma unroll
            for (int v = 0; v < vectors; ++v) {
                const int c = 8 * (v * lanes + lane);
                if (c >= width) continue;
                A value[8], weight[8];
                get(v, value);
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
                if (8 * (v * lanes + lane) >= width) continue;
                A value[8];
                get(v, value);
#pragma unroll
                for (int i = 0; i < 8; ++i) mix[v][i] = mix[v][i] * kept + share * value[i];
            }
            slot = (slot + 1) % ahead;
        }
        const A each = A(1) / total;
        A squares = A(0);
#pragma unroll
        for (int v = 0; v < vectors; ++v) {
#pragma unroll
            for (int i = 0; i < 8; ++i) mix[v][i] *= each, squares += mix[v][i] * mix[v][i];
        }
        const A scale = normed ? A(1) / sqrt(team_sum<lanes>(squares) / static_cast<A>(width) + norm_eps) : A(1);
        if (n >= rows) continue;
        if (lane < count) p(n, lane) = exp(my_score - highest) * each, r(n, lane) = my_r;
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
    }
}

/// Warps of a block of the backward kernel, and the bytes of shared memory that it takes.
inline constexpr int attn_res_warps = 4;
template <class T>
Index attn_res_backward_bytes(Index width, Index count, bool takes) {
    const Index weights = takes ? 2 : 1, rows = 2 * count + (takes ? 1 : 0);
    return weights * width * static_cast<Index>(sizeof(accumulator_t<T>)) +
           attn_res_warps * rows * width * static_cast<Index>(sizeof(T));
}

/// dy: the gradient of y with the norm, of h without; h: read without the norm only. taken: added where the kernel
/// takes, left: not added. A block leaves the sums of slope_j v_j at parts, and of dy h norm_r at norm_parts.
template <class T, int vectors, bool normed, bool takes>
__global__ void __launch_bounds__(32 * attn_res_warps)
    attn_res_backward_kernel(MatrixView<const T> dy, FewCandidates<const T> candidates,
                             AttnResWeights<accumulator_t<T>> weights, MatrixView<const accumulator_t<T>> p,
                             MatrixView<const accumulator_t<T>> r, VectorView<const accumulator_t<T>> norm_r,
                             MatrixView<const T> h, FewCandidates<T> gradients, AttnResLater<T> taken,
                             AttnResLater<T> left, accumulator_t<T>* parts, accumulator_t<T>* norm_parts) {
    using A = accumulator_t<T>;
    extern __shared__ __align__(16) unsigned char attn_res_memory[];
    const int width = static_cast<int>(dy.cols), count = candidates.count;
    A* w = reinterpret_cast<A*>(attn_res_memory);
    A* taken_w = w + (takes ? width : 0);
    T* held = reinterpret_cast<T*>(taken_w + width) +  // candidates, their gradients, the taken dh
              threadIdx.x / 32 * (2 * count + (takes ? 1 : 0)) * width;
    A sums[vectors][8] = {}, norm_sums[vectors][8] = {};
    const int lane = threadIdx.x % 32;
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
    // The next row's candidates come while this row's are used up; its gradient and statistics wait in registers.
    Eight<T> next_dy[vectors];
    A next_p = A(0), next_r = A(0), next_norm_r = A(0), next_taken_p = A(0), next_taken_slope = A(0);
    const auto fetch_candidate = [&](Index n, int j) {
        copy_row(held + j * width, candidates.row(j, n));
        if (j >= left.count) copy_row(held + (count + j) * width, gradients.row(j, n));
    };
    const auto fetch_taken_dh = [&](Index n) {
        if constexpr (takes) copy_row(held + 2 * count * width, taken.dh.row(n));
    };
    const auto fetch_rest = [&](Index n) {
        each_eight([&](int v, int c) { next_dy[v] = Eight<T>::load(dy.row(n) + c); });
        if (lane < count) next_p = p(n, lane), next_r = r(n, lane);
        if constexpr (normed) next_norm_r = norm_r[n];
        if (takes && lane < taken.count) next_taken_p = taken.p(n, lane), next_taken_slope = taken.slope(n, lane);
    };
    const Index step = Index{gridDim.x} * attn_res_warps;
    Index n = Index{blockIdx.x} * attn_res_warps + threadIdx.x / 32;
    if (n < dy.rows) {
        for (int j = 0; j < count; ++j) fetch_candidate(n, j);
        fetch_taken_dh(n), fetch_rest(n);
    }
    weights.put_product(w);
    if constexpr (takes) AttnResWeights<A>{taken.gamma, taken.pi, {}}.put_product(taken_w);
    for (; n < dy.rows; n += step) {
        const A my_p = next_p, my_r = next_r, my_taken_p = next_taken_p, my_taken_slope = next_taken_slope;
        commit_copies();
        wait_for_copies<0>();
        A dh[vectors][8] = {}, mix[vectors][8] = {};
        if constexpr (normed) {
            const A scale = next_norm_r;
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
                next_dy[v].get(dh[v]);
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
            each_eight([&](int v, int c) { next_dy[v].get(dh[v]), load_eight(h.row(n) + c, mix[v]); });
        }
        A pulled = A(0);
        each_eight([&](int v, int) {
#pragma unroll
            for (int i = 0; i < 8; ++i) pulled += dh[v][i] * mix[v][i];
        });
        pulled = team_sum<32>(pulled);
        const bool goes_on = n + step < dy.rows;
        if (goes_on) fetch_rest(n + step);
        if (left.count > 0) each_eight([&](int v, int c) { Eight<T>::of(dh[v]).store(left.dh.row(n) + c); });
        A my_slope = A(0);
        for (int j = 0; j < count; ++j) {
            const bool with_taken = takes && j < taken.count;
            A dh_v = A(0), w_v = A(0), taken_w_v = A(0);
            Eight<T> row[vectors];
            each_eight([&](int v, int c) {
                A value[8], weight[8];
                row[v] = Eight<T>::load(held + j * width + c);
                row[v].get(value);
                load_eight(w + c, weight);
#pragma unroll
                for (int i = 0; i < 8; ++i) dh_v += dh[v][i] * value[i], w_v += weight[i] * value[i];
                if (!with_taken) return;
                load_eight(taken_w + c, weight);
#pragma unroll
                for (int i = 0; i < 8; ++i) taken_w_v += weight[i] * value[i];
            });
            const A share = __shfl_sync(0xffffffffu, my_p, j), scale = __shfl_sync(0xffffffffu, my_r, j);
            const A slope = share * (team_sum<32>(dh_v) - pulled) * scale;
            if (lane == j) my_slope = slope;
            const A taken_share = __shfl_sync(0xffffffffu, my_taken_p, j),
                    taken_slope = __shfl_sync(0xffffffffu, my_taken_slope, j);
            A along_v = slope * team_sum<32>(w_v);
            if (with_taken) along_v += taken_slope * team_sum<32>(taken_w_v);
            along_v *= scale * scale / static_cast<A>(width);
            each_eight([&](int v, int c) {
                A value[8], weight[8], gradient[8];
                row[v].get(value);
#pragma unroll
                for (int i = 0; i < 8; ++i) sums[v][i] += slope * value[i];
                if (j < left.count) return;
                load_eight(w + c, weight);
                load_eight(held + (count + j) * width + c, gradient);
#pragma unroll
                for (int i = 0; i < 8; ++i) gradient[i] += share * dh[v][i] + slope * weight[i] - along_v * value[i];
                if (with_taken) {
                    A taken_dh[8];
                    load_eight(held + 2 * count * width + c, taken_dh);
                    load_eight(taken_w + c, weight);
#pragma unroll
                    for (int i = 0; i < 8; ++i) gradient[i] += taken_share * taken_dh[i] + taken_slope * weight[i];
                }
                Eight<T>::of(gradient).store(gradients.row(j, n) + c);
            });
            if (goes_on) fetch_candidate(n + step, j);
        }
        if (goes_on) fetch_taken_dh(n + step);
        if (lane < left.count) left.slope(n, lane) = my_slope;
    }
    __syncthreads();
    leave_column_sums<32, vectors>(sums, width / 8, w, parts + Index{blockIdx.x} * width);
    if constexpr (normed)
        leave_column_sums<32, vectors>(norm_sums, width / 8, w, norm_parts + Index{blockIdx.x} * width);
}

}  // namespace kimik3::gpu
