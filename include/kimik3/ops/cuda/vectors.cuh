#pragma once
// Rows in registers: how memory-bound operations reach the speed of a copy. Eight is eight numbers side by side, moved
// by accesses of 16 bytes. A team of 16 or 32 lanes holds a row, lane l the Eights l, l + lanes, ...; rows_of_team
// walks whole warps over the rows, so that shuffles see all their lanes. Where a width, a stride or an address is no
// multiple of an Eight (in_eights), operations take their plain form instead (launch.cuh).
// Sums over rows: each block keeps its own in registers over all of its rows, leaves them in scratch memory
// (leave_column_sums), and sum_parts adds up what the blocks left, in their order.

#include <initializer_list>

#include "kimik3/ops/cuda/launch.cuh"

namespace kimik3::gpu {

/// Eight numbers in their storage format.
template <class T>
struct Eight {
    using A = accumulator_t<T>;
    static constexpr int words = sizeof(T) / 2;
    uint4 word[words];

    __device__ static Eight load(const T* from) {
        Eight e;
#pragma unroll
        for (int i = 0; i < words; ++i) e.word[i] = reinterpret_cast<const uint4*>(from)[i];
        return e;
    }
    __device__ static Eight zero() {
        Eight e;
#pragma unroll
        for (int i = 0; i < words; ++i) e.word[i] = make_uint4(0, 0, 0, 0);
        return e;
    }
    __device__ static Eight of(const A (&from)[8]) {
        Eight e;
        if constexpr (sizeof(T) == 2) {
            e.word[0] = make_uint4(pair(from[0], from[1]), pair(from[2], from[3]), pair(from[4], from[5]),
                                   pair(from[6], from[7]));
        } else {
            __builtin_memcpy(e.word, from, sizeof(from));
        }
        return e;
    }
    __device__ void store(T* to) const {
#pragma unroll
        for (int i = 0; i < words; ++i) reinterpret_cast<uint4*>(to)[i] = word[i];
    }
    __device__ void get(A (&to)[8]) const {
        if constexpr (sizeof(T) == 2) {
            const unsigned pairs[4] = {word[0].x, word[0].y, word[0].z, word[0].w};
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                to[2 * i] = __uint_as_float(pairs[i] << 16);
                to[2 * i + 1] = __uint_as_float(pairs[i] & 0xffff0000u);
            }
        } else {
            __builtin_memcpy(to, word, sizeof(to));
        }
    }

private:
    __device__ static unsigned pair(float first, float second) {
        unsigned both;
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
        return both;
    }
};

template <class T>
__device__ void load_eight(const T* from, accumulator_t<T> (&to)[8]) {
    Eight<T>::load(from).get(to);
}

/// Whether rows can be read and written as Eights.
template <class T>
bool in_eights(std::initializer_list<MatrixView<T>> matrices) {
    for (const MatrixView<T>& m : matrices) {
        if (m.cols % 8 != 0 || m.stride * static_cast<Index>(sizeof(T)) % 16 != 0 ||
            reinterpret_cast<std::uintptr_t>(m.data) % 16 != 0)
            return false;
    }
    return true;
}
template <class A>
bool in_eights(std::initializer_list<VectorView<A>> vectors) {
    for (const VectorView<A>& v : vectors)
        if (v.size % 8 != 0 || reinterpret_cast<std::uintptr_t>(v.data) % 16 != 0) return false;
    return true;
}

template <int value>
using Constant = std::integral_constant<int, value>;

/// launch(lanes, vectors) with the least split of a row of width numbers, or false where a row is too long for it.
template <class Launch>
bool split_row(Index width, Launch&& launch) {
    if (width <= 128) launch(Constant<16>{}, Constant<1>{});
    else if (width <= 256) launch(Constant<16>{}, Constant<2>{});
    else if (width <= 640) launch(Constant<16>{}, Constant<5>{});
    else if (width <= 1280) launch(Constant<32>{}, Constant<5>{});
    else return false;
    return true;
}

/// The sum over the lanes of a team; all lanes of the warp take part.
template <int lanes, class A>
__device__ A team_sum(A value) {
#pragma unroll
    for (int apart = lanes / 2; apart > 0; apart /= 2) value += __shfl_xor_sync(0xffffffffu, value, apart);
    return value;
}

/// body(n, lane) for every row of this thread's team. All lanes of a warp stay together: n may be rows or more, for
/// which nothing exists to be read or written.
template <int lanes, class Body>
__device__ void rows_of_team(Index rows, Body&& body) {
    const Index teams = blockDim.x / lanes, step = gridDim.x * teams;
    const int lane = threadIdx.x % lanes, inside = threadIdx.x % 32 / lanes;
    for (Index first = blockIdx.x * teams + threadIdx.x / 32 * (32 / lanes); first < rows; first += step)
        body(first + inside, lane);
}

template <class Body>
__global__ void __launch_bounds__(block_threads) for_eights_kernel(Index count, Index per_row, Body body) {
    const Index step = Index{gridDim.x} * blockDim.x;
    for (Index i = Index{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
        const Index n = count >> 32 == 0 ? static_cast<unsigned>(i) / static_cast<unsigned>(per_row) : i / per_row;
        body(n, 8 * (i - n * per_row));
    }
}

/// body(n, c) for every Eight (n, c ... c + 7) of a matrix.
template <class Body>
void for_eights(const Context<Cuda>& ctx, Index rows, Index cols, Body body,
                std::source_location at = std::source_location::current()) {
    const Index count = rows * (cols / 8);
    if (count <= 0) return;
    for_eights_kernel<<<grid_of(ceil_div(count, block_threads)), block_threads, 0, ctx.stream()>>>(count, cols / 8,
                                                                                                   body);
    check_launch(at);
}

/// Lets blocks of a kernel have that many bytes of dynamic shared memory.
template <class Kernel>
void allow_shared_memory(Kernel kernel, Index bytes) {
    if (bytes > 48 * 1024)
        KIMIK3_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)));
}

/// Blocks of that many threads, with that many bytes of dynamic shared memory, that the GPU runs at the same time.
template <class Kernel>
Index resident_blocks(Kernel kernel, int threads, Index bytes = 0) {
    int each = 0;
    KIMIK3_CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, kernel, threads, to_size(bytes)));
    return Index{multiprocessors()} * (std::max)(each, 1);
}

/// The sums that the teams of this block hold of their columns, the first count Eights of a row, go to to[0 ... 8
/// count). shared: room for as many.
template <int lanes, int vectors, class A>
__device__ void leave_column_sums(const A (&sums)[vectors][8], int count, A* shared, A* to) {
    const int lane = threadIdx.x % lanes, team = threadIdx.x / lanes, teams = blockDim.x / lanes;
    for (int t = 0; t < teams; ++t) {
        if (t == team) {
#pragma unroll
            for (int v = 0; v < vectors; ++v) {
                if (v * lanes + lane >= count) continue;
                A* place = shared + 8 * (v * lanes + lane);
#pragma unroll
                for (int i = 0; i < 8; ++i) place[i] = t == 0 ? sums[v][i] : place[i] + sums[v][i];
            }
        }
        __syncthreads();
    }
    for (int c = threadIdx.x; c < 8 * count; c += blockDim.x) to[c] = shared[c];
    __syncthreads();
}

/// A block for 32 columns: each of its warps sums every 32nd part, then the warps' sums are added.
template <class A, class Finish>
__global__ void __launch_bounds__(1024) sum_parts_kernel(const A* partial, Index parts, Index cols, Finish finish) {
    __shared__ A sums[32][33];
    const int slice = threadIdx.x / 32;
    const Index c = Index{blockIdx.x} * 32 + threadIdx.x % 32;
    A sum = A(0);
    if (c < cols) {
#pragma unroll 4
        for (Index part = slice; part < parts; part += 32) sum += partial[part * cols + c];
    }
    sums[slice][threadIdx.x % 32] = sum;
    __syncthreads();
    const A total = warp_sum(sums[threadIdx.x % 32][slice]);
    const Index mine = Index{blockIdx.x} * 32 + slice;
    if (threadIdx.x % 32 == 0 && mine < cols) finish(mine, total);
}

/// finish(c, sum over parts of partial[part cols + c]) for every column.
template <class A, class Finish>
void sum_parts(const Context<Cuda>& ctx, const A* partial, Index parts, Index cols, Finish finish,
               std::source_location at = std::source_location::current()) {
    sum_parts_kernel<<<exact_grid(ceil_div(cols, 32)), 1024, 0, ctx.stream()>>>(partial, parts, cols, finish);
    check_launch(at);
}

}  // namespace kimik3::gpu
