#pragma once
// Where a decoding step's products get their input: rows as they are, or rows that a block mixes from candidates or
// sums from the experts, and norms, in shared memory.

#include "kimik3/ops/cuda/few_rows.cuh"
#include "kimik3/ops/step_products.hpp"

namespace kimik3::gpu {

/// Eight warps, each with up to four times 32 columns at a time.
inline constexpr int step_warps = 8, step_stage = 4, step_width = 32 * step_warps * step_stage;

/// Eight rows of x that a block has mixed and normed, and what it needs to do so. Columns from the width on to the next
/// multiple of 32 are zero.
template <class T>
struct StepRows {
    static constexpr int stride = step_width + 32;
    T x[8][stride];
    float slope[step_width], norm[step_width];
    float score[8][most_step_candidates];

    /// x of a row from what a warp's lanes hold of it: octets lane, lane + 32, ...
    __device__ void store(float (&h)[step_stage][8], int token, int width, bool normed, float eps) {
        const int lane = static_cast<int>(threadIdx.x) % 32, octets = ceil_div(width, 32) * 4;
        Octet<T> row[step_stage];
        float r = 1.0f;
#pragma unroll
        for (int i = 0; i < step_stage; ++i) row[i] = Octet<T>::of(h[i]);
        if (normed) {
            float squares = 0;
#pragma unroll
            for (int i = 0; i < step_stage; ++i)
                for (int e = 0; e < 8; ++e) squares += row[i][e] * row[i][e];
            r = 1.0f / sqrtf(warp_sum(squares) / static_cast<float>(width) + eps);
        }
#pragma unroll
        for (int i = 0; i < step_stage; ++i) {
            const int octet = lane + 32 * i;
            if (octet >= octets) continue;
            float value[8];
            for (int e = 0; e < 8; ++e) value[e] = normed ? row[i][e] * r * norm[8 * octet + e] : row[i][e];
            store_octet(&x[token][8 * octet], Octet<T>::of(value));
        }
    }
};

/// Sources of x. Those that hold it put rows first ... of x into shared memory: prepare needs no input of the step,
/// hold makes count rows and ends with a barrier.
template <class T, bool is_wide>
struct RowSource {
    static constexpr bool wide = is_wide, holds = false;
    struct Shared {};
    MatrixView<const T> x;

    __device__ int width() const { return static_cast<int>(x.cols); }
    __device__ Octet<T> octet(int token, int k) const {
        return load_octet<wide>(token < x.rows ? x.row(token) : nullptr, k, width());
    }
};

template <class T, bool is_wide>
struct MixSource {
    static constexpr bool wide = is_wide, holds = true;
    using Shared = StepRows<T>;
    MatrixView<const T> candidate[most_step_candidates];
    int count;
    const float *gamma, *pi, *norm;
    float mix_eps, eps;

    __device__ int width() const { return static_cast<int>(candidate[0].cols); }
    __device__ void prepare(Shared& shared) const {
        const int size = width();
#pragma unroll 1
        for (int k = static_cast<int>(threadIdx.x); k < round_up(size, 32); k += 32 * step_warps) {
            shared.norm[k] = norm != nullptr && k < size ? norm[k] : 0.0f;
            shared.slope[k] = count > 1 && k < size ? gamma[k] * pi[k] : 0.0f;
        }
        __syncthreads();
    }
    __device__ void hold(int first, int tokens, Shared& shared) const {
        const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32, size = width();
        if (count > 1) {
#pragma unroll 1
            for (int pair = warp; pair < tokens * count; pair += step_warps) {
                const int j = pair % count, token = pair / count;
                const T* row = candidate[j].row(first + token);
                Octet<T> v[step_stage];
#pragma unroll
                for (int i = 0; i < step_stage; ++i) v[i] = load_octet<wide>(row, 8 * (lane + 32 * i), size);
                float squares = 0, score = 0;
#pragma unroll
                for (int i = 0; i < step_stage; ++i) {
                    if (8 * (lane + 32 * i) >= size) continue;
                    for (int e = 0; e < 8; ++e)
                        squares += v[i][e] * v[i][e], score += v[i][e] * shared.slope[8 * (lane + 32 * i) + e];
                }
                squares = warp_sum(squares), score = warp_sum(score);
                if (lane == 0)
                    shared.score[token][j] = score / sqrtf(squares / static_cast<float>(size) + mix_eps);
            }
            __syncthreads();
        }
        if (warp < tokens) {
            const float score = count == 1 ? 0.0f : lane < count ? shared.score[warp][lane] : -INFINITY;
            float share = count == 1 ? 1.0f : expf(score - warp_max(score));
            if (count > 1) share /= warp_sum(share);
            float h[step_stage][8] = {};
#pragma unroll 2
            for (int j = 0; j < count; ++j) {
                const float weight = __shfl_sync(0xffffffffu, share, j);
#pragma unroll
                for (int i = 0; i < step_stage; ++i) {
                    const Octet<T> v = load_octet<wide>(candidate[j].row(first + warp), 8 * (lane + 32 * i), size);
                    for (int e = 0; e < 8; ++e) h[i][e] += weight * v[e];
                }
            }
            shared.store(h, warp, size, norm != nullptr, eps);
        }
        __syncthreads();
    }
};

template <class T, bool is_wide>
struct SumSource {
    static constexpr bool wide = is_wide, holds = true;
    using Shared = StepRows<T>;
    MatrixView<const T> parts;
    MatrixView<const float> weights;
    const float* norm;
    float eps;

    __device__ int width() const { return static_cast<int>(parts.cols); }
    __device__ void prepare(Shared& shared) const {
#pragma unroll 1
        for (int k = static_cast<int>(threadIdx.x); k < round_up(width(), 32); k += 32 * step_warps)
            shared.norm[k] = norm != nullptr && k < width() ? norm[k] : 0.0f;
        __syncthreads();
    }
    __device__ void hold(int first, int tokens, Shared& shared) const {
        const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32,
                  count = static_cast<int>(weights.cols);
        if (warp < tokens) {
            float h[step_stage][8] = {};
#pragma unroll 2
            for (int j = 0; j < count; ++j) {
                const float weight = weights(first + warp, j);
#pragma unroll
                for (int i = 0; i < step_stage; ++i) {
                    const Octet<T> v =
                        load_octet<wide>(parts.row(Index{first + warp} * count + j), 8 * (lane + 32 * i), width());
                    for (int e = 0; e < 8; ++e) h[i][e] += weight * v[e];
                }
            }
            shared.store(h, warp, width(), norm != nullptr, eps);
        }
        __syncthreads();
    }
};

}  // namespace kimik3::gpu
