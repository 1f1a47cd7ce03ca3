#pragma once
// A product of 32 x 32 elements by one block, for operations whose shapes are known on the device only.

#include "kimik3/ops/cuda/launch.cuh"

namespace kimik3::gpu {

/// Thread t of 256 holds the elements (t / 32 + 8 i, t % 32) of a tile of 32 x 32.
template <class T>
struct TileProduct {
    T value[4];

    /// value = sum over c < width of a(row, c) b(col, c), through two tiles of shared memory.
    template <class A, class B>
    __device__ void dot(Index width, T (*left)[33], T (*right)[33], A a, B b) {
        const int row = threadIdx.x / 32, col = threadIdx.x % 32;
        for (T& v : value) v = T(0);
        for (Index begin = 0; begin < width; begin += 32) {
            __syncthreads();
            for (int i = row; i < 32; i += 8) {
                const bool inside = begin + col < width;
                left[i][col] = inside ? a(i, begin + col) : T(0);
                right[i][col] = inside ? b(i, begin + col) : T(0);
            }
            __syncthreads();
            for (int c = 0; c < 32; ++c)
                for (int i = 0; i < 4; ++i) value[i] += left[row + 8 * i][c] * right[col][c];
        }
    }
};

}  // namespace kimik3::gpu
