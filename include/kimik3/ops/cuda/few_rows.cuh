#pragma once
// Products of few rows on the GPU, y [N, out] = x [N, K] w[out, K]^T, which wait for weights and not for arithmetic. A
// warp takes 32 columns of K at a time: with lane = 4 r + c, its lane holds eight numbers each, from column 8 c on, of
// the rows r and r + 8 of a tile of 16 rows of w and of row r of x, so that every load is 16 bytes wide; since the
// order of K does not matter to a sum, bf16 goes from there to the tensor cores as it is. The warps of a block share K,
// and their sums are added in the order of the warps: a row's bits do not depend on the other rows.
// Kernels of a decoding step follow one another by programmatic dependent launch: what does not depend on the kernel
// before, weights above all, is loaded before await_predecessor. All of them wait, so that the wait of one is for all
// before it.

#include "kimik3/ops/cuda/tensor_core.cuh"

namespace kimik3::gpu {

/// Eight numbers in a row.
template <class T>
struct alignas(16) Octet {
    T value[8];

    __device__ float operator[](int e) const { return value[e]; }
    __device__ static Octet of(const float (&from)[8]) {
        Octet octet;
        for (int e = 0; e < 8; ++e) octet.value[e] = from[e];
        return octet;
    }
};
template <>
struct alignas(16) Octet<bf16> {
    std::uint32_t pair[4];

    __device__ float operator[](int e) const {
        const float2 both = unpack_bf16(pair[e / 2]);
        return e % 2 == 0 ? both.x : both.y;
    }
    __device__ static Octet of(const float (&from)[8]) {
        Octet octet;
        for (int e = 0; e < 4; ++e) octet.pair[e] = pack_bf16(from[2 * e], from[2 * e + 1]);
        return octet;
    }
};

/// Numbers k to k + 7 of a row of count, zeros past its end and of a row that is nullptr. wide: rows begin at multiples
/// of 16 bytes and hold a multiple of eight.
template <bool wide, class T>
__device__ Octet<T> load_octet(const T* row, int k, int count) {
    Octet<T> octet{};
    if (row == nullptr || k >= count) return octet;
    if constexpr (wide) {
        uint4* to = reinterpret_cast<uint4*>(&octet);
        const uint4* from = reinterpret_cast<const uint4*>(row + k);
#pragma unroll
        for (int i = 0; i < static_cast<int>(sizeof(T)) / 2; ++i) to[i] = from[i];
        return octet;
    } else {
        float value[8] = {};
#pragma unroll
        for (int e = 0; e < 8; ++e)
            if (k + e < count) value[e] = row[k + e];
        return Octet<T>::of(value);
    }
}
/// Whether rows begin at multiples of 16 bytes and hold a multiple of eight; of a matrix without rows all do.
template <class T>
bool is_wide(const T* data, Index stride, Index count) {
    return reinterpret_cast<std::uintptr_t>(data) % 16 == 0 && stride % 8 == 0 && count % 8 == 0;
}
template <class T>
bool is_wide(MatrixView<const T> m) {
    return m.rows == 0 || is_wide(m.data, m.rows == 1 ? 8 : m.stride, m.cols);
}

/// Where the rows of a weight begin, one right below the other, as kernels here read them.
template <class T>
const T* dense(const char* name, MatrixView<const T> w, Index rows, Index cols) {
    require_shape(name, w, rows, cols);
    require(w.rows <= 1 || w.stride == w.cols, "{} has rows of {} one right below the other, got one every {}", name,
            w.cols, w.stride);
    return w.data;
}

/// A lane's place in a tile of 16 rows of w and eight of x.
struct TileLane {
    int warp = static_cast<int>(threadIdx.x) / 32, r = static_cast<int>(threadIdx.x) % 32 / 4,
        c = static_cast<int>(threadIdx.x) % 4;

    __device__ float quad_sum(float value) const {
        value += __shfl_xor_sync(0xffffffffu, value, 1);
        return value + __shfl_xor_sync(0xffffffffu, value, 2);
    }
};

/// Sixteen rows of w, eight from each of two places; fewer at the end.
template <class W>
struct TileRows {
    const W *first = nullptr, *second = nullptr;
    int first_count = 0, second_count = 0;

    /// Rows tile 16 ... of w.
    __device__ static TileRows of(const W* w, int rows, int inner, int tile) {
        const int left = rows - 16 * tile;
        return {w + Index{16} * tile * inner, w + (Index{16} * tile + 8) * inner, left < 8 ? left : 8,
                left < 16 ? left - 8 : 8};
    }
    /// Rows tile 8 ... of two matrices.
    __device__ static TileRows pair(const W* w, const W* other, int rows, int inner, int tile) {
        const int left = rows - 8 * tile;
        return {w + Index{8} * tile * inner, other + Index{8} * tile * inner, left < 8 ? left : 8, left < 8 ? left : 8};
    }
    template <bool wide>
    __device__ void load(Octet<W> (&to)[2], TileLane lane, int k, int inner) const {
        to[0] = load_octet<wide>(lane.r < first_count ? first + Index{lane.r} * inner : nullptr, k, inner);
        to[1] = load_octet<wide>(lane.r < second_count ? second + Index{lane.r} * inner : nullptr, k, inner);
    }
};

/// A warp's sums of a tile, 16 rows of w by eight of x, of which the first tokens are wanted.
template <class W>
struct TileSums {
    float sum[2][8] = {};

    template <class T>
    __device__ void add(const Octet<W> (&w)[2], const Octet<T>& x, TileLane lane, int tokens) {
#pragma unroll
        for (int t = 0; t < 8; ++t) {
            if (t >= tokens) continue;
#pragma unroll
            for (int e = 0; e < 8; ++e) {
                const float value = __shfl_sync(0xffffffffu, x[e], 4 * t + lane.c);
                sum[0][t] += w[0][e] * value;
                sum[1][t] += w[1][e] * value;
            }
        }
    }
    __device__ void store(float (*to)[8], TileLane lane, int tokens) {
#pragma unroll
        for (int t = 0; t < 8; ++t) {
            if (t >= tokens) continue;
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const float total = lane.quad_sum(sum[half][t]);
                if (lane.c == 0) to[lane.r + 8 * half][t] = total;
            }
        }
    }
};
template <>
struct TileSums<bf16> {
    float sum[4] = {};

    __device__ void add(const Octet<bf16> (&w)[2], const Octet<bf16>& x, TileLane, int) {
        multiply_add(sum, {w[0].pair[0], w[1].pair[0], w[0].pair[1], w[1].pair[1]}, x.pair[0], x.pair[1]);
        multiply_add(sum, {w[0].pair[2], w[1].pair[2], w[0].pair[3], w[1].pair[3]}, x.pair[2], x.pair[3]);
    }
    /// Eight rows of weights in float, as the sum of three of bf16, which hold all their bits.
    __device__ void add_wide(const Octet<float>& w, const Octet<bf16>& x) {
        float left[8];
        for (int e = 0; e < 8; ++e) left[e] = w[e];
#pragma unroll
        for (int part = 0; part < 3; ++part) {
            const Octet<bf16> now = Octet<bf16>::of(left);
            add({now, now}, x, TileLane{}, 8);
            for (int e = 0; e < 8; ++e) left[e] -= now[e];
        }
    }
    __device__ void store(float (*to)[8], TileLane lane, int) {
        *reinterpret_cast<float2*>(&to[lane.r][2 * lane.c]) = {sum[0], sum[1]};
        *reinterpret_cast<float2*>(&to[lane.r + 8][2 * lane.c]) = {sum[2], sum[3]};
    }
};

/// The sums of all warps of one element.
template <int warps>
__device__ float over_warps(const float (*parts)[16][8], int row, int token) {
    float total = parts[0][row][token];
#pragma unroll
    for (int w = 1; w < warps; ++w) total += parts[w][row][token];
    return total;
}

}  // namespace kimik3::gpu
