#pragma once
// Where a decoding step's products get their input: rows as they are, or rows that a block mixes from candidates or
// sums from the experts, and norms, in shared memory.

#include "kimik3/ops/cuda/few_rows.cuh"
#include "kimik3/ops/cuda/quick_formulas.cuh"
#include "kimik3/ops/step_products.hpp"

namespace kimik3::gpu {

/// Eight warps, each with up to four times 32 columns at a time; or a thread for four columns.
inline constexpr int step_warps = 8, step_threads = 32 * step_warps, step_stage = 4, step_width = 4 * step_threads;

/// The rows of x that a block has mixed and normed, and what it needs to do so. Columns from the width on to the next
/// multiple of 32 are zero.
template <class T>
struct StepRows {
    static constexpr int stride = step_width + 32;
    T x[most_held_rows][stride];
    float slope[step_width];
    float score[most_held_rows][most_step_candidates], squares[most_held_rows][step_warps];
};

/// Four numbers in a row.
template <class T>
struct alignas(4 * sizeof(T)) Quad {
    T value[4];

    __device__ float operator[](int e) const { return value[e]; }
    __device__ static Quad of(float a, float b, float c, float d) { return {a, b, c, d}; }
};
template <>
struct alignas(8) Quad<bf16> {
    std::uint32_t pair[2];

    __device__ float operator[](int e) const {
        const float2 both = unpack_bf16(pair[e / 2]);
        return e % 2 == 0 ? both.x : both.y;
    }
    __device__ static Quad of(float a, float b, float c, float d) { return {pack_bf16(a, b), pack_bf16(c, d)}; }
};

/// x: rows as they are, or norm(sum over j of share(token, j) rows of j), where share is the softmax of scores, the
/// weight of an expert, or 1. What is made lies in shared memory: prepare needs no input of the step, hold makes rows
/// first ... and ends with a barrier. A row's bits do not depend on the other rows.
template <class T, bool wide>
struct StepSource {
    struct Rows {
        const T* data;
        Index stride;  // from a token to the next
    };
    Rows from[most_step_candidates];
    int count, width;
    bool holds;
    const float* weights;  // [N, count], or nullptr
    Index weights_stride;
    const float *gamma, *pi, *norm;
    float mix_eps, eps;

    __device__ bool scores() const { return count > 1 && weights == nullptr; }
    __device__ static int column() { return 4 * static_cast<int>(threadIdx.x); }

    /// Four numbers of a row from the thread's column on, zeros past its end.
    template <class U>
    __device__ Quad<U> quad(const U* row) const {
        const int k = column();
        if constexpr (wide) {
            return k < width ? *reinterpret_cast<const Quad<U>*>(row + k) : Quad<U>{};
        } else {
            float value[4] = {};
            for (int e = 0; e < 4; ++e)
                if (k + e < width) value[e] = row[k + e];
            return Quad<U>::of(value[0], value[1], value[2], value[3]);
        }
    }

    /// The thread's part of the norm.
    __device__ Quad<float> prepare(StepRows<T>& shared) const {
        if (scores()) {
            const Quad<float> a = quad(gamma), b = quad(pi);
            for (int e = 0; e < 4; ++e) shared.slope[column() + e] = a[e] * b[e];
        }
        __syncthreads();
        return norm != nullptr ? quad(norm) : Quad<float>{};
    }
    __device__ void hold(int first, int tokens, Quad<float> slope, StepRows<T>& shared) const {
        const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
        if (scores()) {
            int token = 0;
#pragma unroll 1
            for (int j = warp;; j += step_warps) {
                while (j >= count) j -= count, ++token;
                if (token >= tokens) break;
                score(shared, from[j].data + (first + token) * from[j].stride, token, j, lane);
            }
            __syncthreads();
        }
        T* mine = &shared.x[0][column()];
#pragma unroll 1
        for (int token = 0; token < tokens; ++token) {
            const Quad<T> row = mix(shared, first, token);
            if (column() < round_up(width, 32)) *reinterpret_cast<Quad<T>*>(mine + token * StepRows<T>::stride) = row;
            float squares = 0;
            for (int e = 0; e < 4; ++e) squares += row[e] * row[e];
            squares = warp_sum(squares);
            if (lane == 0) shared.squares[token][warp] = squares;
        }
        __syncthreads();
        if (norm == nullptr) return;
        if (column() < round_up(width, 32)) {
#pragma unroll 1
            for (int token = 0; token < tokens; ++token) {
                float squares = 0;
                for (int w = 0; w < step_warps; ++w) squares += shared.squares[token][w];
                const float r = rsqrtf(squares / static_cast<float>(width) + eps);
                Quad<T>& row = *reinterpret_cast<Quad<T>*>(mine + token * StepRows<T>::stride);
                row = Quad<T>::of(row[0] * r * slope[0], row[1] * r * slope[1], row[2] * r * slope[2],
                                  row[3] * r * slope[3]);
            }
        }
        __syncthreads();
    }

private:
    /// A warp's score of a candidate.
    __device__ void score(StepRows<T>& shared, const T* row, int token, int j, int lane) const {
        Octet<T> v[step_stage];
#pragma unroll
        for (int i = 0; i < step_stage; ++i) v[i] = load_octet<wide>(row, 8 * (lane + 32 * i), width);
        float squares = 0, sum = 0;
#pragma unroll
        for (int i = 0; i < step_stage; ++i) {
            if (8 * (lane + 32 * i) >= width) continue;
            const float4* slope = reinterpret_cast<const float4*>(&shared.slope[8 * (lane + 32 * i)]);
            const float4 a = slope[0], b = slope[1];
            const float of[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
            for (int e = 0; e < 8; ++e) squares += v[i][e] * v[i][e], sum += v[i][e] * of[e];
        }
        squares = warp_sum(squares), sum = warp_sum(sum);
        if (lane == 0) shared.score[token][j] = sum * rsqrtf(squares / static_cast<float>(width) + mix_eps);
    }
    /// The thread's four numbers of a row.
    __device__ Quad<T> mix(const StepRows<T>& shared, int first, int token) const {
        float h[4] = {}, highest = 0, total = 1;
        if (scores()) {
            highest = shared.score[token][0], total = 0;
#pragma unroll 4
            for (int j = 1; j < count; ++j) highest = fmaxf(highest, shared.score[token][j]);
        }
#pragma unroll 4
        for (int j = 0; j < count; ++j) {
            const Quad<T> v = quad(from[j].data + (first + token) * from[j].stride);
            float share = 1;
            if (weights != nullptr) share = weights[(first + token) * weights_stride + j];
            else if (count > 1) share = exp_of<T>(shared.score[token][j] - highest), total += share;
            for (int e = 0; e < 4; ++e) h[e] += share * v[e];
        }
        const float part = 1.0f / total;
        return Quad<T>::of(h[0] * part, h[1] * part, h[2] * part, h[3] * part);
    }
};

}  // namespace kimik3::gpu
