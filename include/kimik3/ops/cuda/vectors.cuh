#pragma once
// Rows in registers: how memory-bound operations reach the speed of a copy. Eight is eight numbers side by side, moved
// by accesses of 16 bytes. A team of 16 or 32 lanes holds a row, lane l the Eights l, l + lanes, ...; rows_of_team
// walks whole warps over the rows, so that shuffles see all their lanes. What needs many registers for every number
// gives each Eight of a row a thread (RowThreads). Where a width, a stride or an address is no
// multiple of an Eight (in_eights), operations take their plain form instead (launch.cuh).
// Sums over rows: each block keeps its own in registers over all of its rows, leaves them in scratch memory
// (leave_column_sums), and sum_parts adds up what the blocks left, in their order.

#include <initializer_list>

#include "kimik3/ops/cuda/tensor_core.cuh"

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
            e.word[0] = make_uint4(pack_bf16(from[0], from[1]), pack_bf16(from[2], from[3]),
                                   pack_bf16(from[4], from[5]), pack_bf16(from[6], from[7]));
        } else {
            __builtin_memcpy(e.word, from, sizeof(from));
        }
        return e;
    }
    /// To device memory, by an instruction that the compiler cannot take apart.
    __device__ void store(T* to) const {
#pragma unroll
        for (int i = 0; i < words; ++i)
            asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(reinterpret_cast<uint4*>(to) + i),
                         "r"(word[i].x), "r"(word[i].y), "r"(word[i].z), "r"(word[i].w)
                         : "memory");
    }
    __device__ void get(A (&to)[8]) const {
        if constexpr (sizeof(T) == 2) {
            const unsigned pairs[4] = {word[0].x, word[0].y, word[0].z, word[0].w};
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float2 both = unpack_bf16(pairs[i]);
                to[2 * i] = both.x, to[2 * i + 1] = both.y;
            }
        } else {
            __builtin_memcpy(to, word, sizeof(to));
        }
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

/// Blocks that have a thread for each Eight of a few rows, in half-warps, at most so many a row.
template <int halves>
struct RowThreads {
    static constexpr int most = halves <= 6 ? 192 : 32 * halves, most_rows = 8;
    int row_threads, rows;

    explicit RowThreads(Index width)
        : row_threads(static_cast<int>(16 * ceil_div(width, 128))),
          rows(std::clamp(96 / row_threads * 2, 2, most_rows)) {}
    int threads() const { return row_threads * rows; }
    __device__ int row() const { return static_cast<int>(threadIdx.x) / row_threads; }
    __device__ int column() const { return 8 * (static_cast<int>(threadIdx.x) % row_threads); }

    /// Sums over each row: half-warps put theirs, then, after a barrier, all threads take the row's. lane: which of 16
    /// sums, or always the first.
    template <class A, int lanes>
    struct Sums {
        A of[most_rows][halves][lanes];

        __device__ void clear() {
            for (int i = threadIdx.x; i < most_rows * halves * lanes; i += blockDim.x) of[0][0][i] = A(0);
            __syncthreads();
        }
        __device__ void put(const RowThreads& at, int lane, A value) {
            of[at.row()][at.column() / 128][lane] = value;
        }
        __device__ A take(const RowThreads& at, int lane) const {
            A sum = of[at.row()][0][lane];
#pragma unroll
            for (int h = 1; h < halves; ++h) sum += of[at.row()][h][lane];
            return sum;
        }
    };
};

/// launch(halves) with the kernel for rows of so many numbers, or false where they are too long.
template <class Launch>
bool share_row(Index width, Launch&& launch) {
    if (width <= 768) launch(Constant<6>{});
    else if (width <= 1536) launch(Constant<12>{});
    else return false;
    return true;
}

template <class Body>
__global__ void __launch_bounds__(block_threads) for_eights_kernel(Index count, Index per_row, Body body) {
    await_predecessor();
    const Index step = Index{gridDim.x} * blockDim.x;
    for (Index i = Index{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
        const Index n = count >> 32 == 0 ? static_cast<unsigned>(i) / static_cast<unsigned>(per_row) : i / per_row;
        body(n, 8 * (i - n * per_row));
    }
}

/// body(n, c) for every Eight (n, c ... c + 7) of a matrix.
template <class Body>
void for_eights(const Context<Cuda>& ctx, Index rows, Index cols, Body body) {
    const Index count = rows * (cols / 8);
    launch_early(ctx, grid_of(ceil_div(count, block_threads)), block_threads, 0, for_eights_kernel<Body>, count,
                 cols / 8, body);
}

/// Lets blocks of a kernel have that many bytes of dynamic shared memory, beside the little that it declares.
template <class Kernel>
void allow_shared_memory(Kernel kernel, Index bytes) {
    if (bytes > 40 * 1024)
        KIMIK3_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)));
}

/// Blocks of that many threads, with that many bytes of dynamic shared memory, that the GPU runs at the same time.
template <class Kernel>
Index resident_blocks(Kernel kernel, int threads, Index bytes = 0) {
    int each = 0;
    KIMIK3_CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, kernel, threads, to_size(bytes)));
    return multiprocessors() * (std::max)(each, 1);
}

/// The sums that the teams of this block hold of their columns, the first count Eights of a row, go to to[0 ... 8
/// count). shared: room for as many, aligned to 16 bytes.
template <int vectors, class A>
__device__ void leave_column_sums(int lanes, const A (&sums)[vectors][8], int count, A* shared, A* to) {
    const int lane = threadIdx.x % lanes, team = threadIdx.x / lanes, teams = blockDim.x / lanes;
    Eight<A>* place = reinterpret_cast<Eight<A>*>(shared) + lane;
    for (int t = 0; t < teams; ++t) {
        if (t == team) {
#pragma unroll
            for (int v = 0; v < vectors; ++v) {
                if (v * lanes + lane >= count) continue;
                A sum[8] = {};
                if (t > 0) place[v * lanes].get(sum);
#pragma unroll
                for (int i = 0; i < 8; ++i) sum[i] += sums[v][i];
                place[v * lanes] = Eight<A>::of(sum);
            }
        }
        __syncthreads();
    }
    for (int c = threadIdx.x; c < 8 * count; c += blockDim.x) to[c] = shared[c];
    __syncthreads();
}

/// A block for 8 columns: 128 slices of the parts, 8 loads of each on their way together; then the slices are added.
template <class A, class Finish>
__global__ void __launch_bounds__(1024) sum_parts_kernel(const A* partial, Index parts, Index cols, Finish finish) {
    constexpr int columns = 8, slices = 1024 / columns, ahead = 8;
    begin_in_turn();
    __shared__ A sums[slices][columns + 1];
    const int slice = threadIdx.x / columns, column = threadIdx.x % columns, warp = threadIdx.x / 32;
    const Index c = Index{blockIdx.x} * columns + column, mine = Index{blockIdx.x} * columns + warp;
    A sum = A(0);
    for (Index first = slice; first < parts && c < cols; first += slices * ahead) {
        A loaded[ahead];
#pragma unroll
        for (int i = 0; i < ahead; ++i) {
            const Index part = first + slices * i;
            loaded[i] = part < parts ? partial[part * cols + c] : A(0);
        }
#pragma unroll
        for (int i = 0; i < ahead; ++i) sum += loaded[i];
    }
    sums[slice][column] = sum;
    __syncthreads();
    if (warp >= columns) return;
    sum = A(0);
    for (int s = threadIdx.x % 32; s < slices; s += 32) sum += sums[s][warp];
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0 && mine < cols) finish(mine, sum);
}

/// finish(c, sum over parts of partial[part cols + c]) for every column.
template <class A, class Finish>
void sum_parts(const Context<Cuda>& ctx, const A* partial, Index parts, Index cols, Finish finish) {
    launch_early(ctx, ceil_div(cols, 8), 1024, 0, sum_parts_kernel<A, Finish>, partial, parts, cols, finish);
}

}  // namespace kimik3::gpu
