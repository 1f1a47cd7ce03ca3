#pragma once
// Products of the experts' rows with their weights on Hopper's tensor cores: c_e [rows, cols] = a_e [rows, K] b_e, all
// experts by one grid as large as the GPU. A block of four warpgroups makes tiles of 256 rows, one after another, 64 a
// warpgroup; its operands come in steps of 64 along K through a ring of stages in shared memory, which runs on from
// tile to tile. A job says what a and b are and what becomes of a finished tile.

#include "kimik3/ops/cuda/pieces.cuh"
#include "kimik3/ops/cuda/expert_warpgroup.cuh"
#include "kimik3/ops/expert_dispatch.hpp"

namespace kimik3::gpu {

inline constexpr int tile_threads = 512, tile_rows = 256, tile_stages = 4, tiled_experts = 512;
/// Steps that are loaded ahead. Two stages more than these are free when a tile is finished.
inline constexpr int tile_ahead = tile_stages - 2;

/// Up to 256 rows of an expert, from first on, and the number of the tile in its row of tiles.
struct RowTile {
    int expert, count, col;
    Index first;
};

/// starts[e] = tiles of unit rows of the experts before e, for e in [0, E]. By a warp.
__device__ inline void count_tiles(const ExpertDispatch& d, int unit, int* starts) {
    const int experts = static_cast<int>(d.offset.size) - 1, lane = threadIdx.x % 32;
    int before = 0;
    for (int first = 0; first < experts; first += 32) {
        const int e = first + lane;
        const int tiles = e < experts ? static_cast<int>(ceil_div(d.offset[e + 1] - d.offset[e], Index{unit})) : 0;
        int sum = tiles;
        for (int apart = 1; apart < 32; apart *= 2) {
            const int other = __shfl_up_sync(0xffffffffu, sum, apart);
            if (lane >= apart) sum += other;
        }
        if (e < experts) starts[e] = before + sum - tiles;
        before += __shfl_sync(0xffffffffu, sum, 31);
    }
    if (lane == 0) starts[experts] = before;
}
/// The expert whose tiles tile is among.
__device__ inline int expert_of(const int* starts, int experts, int tile) {
    int low = 0, high = experts;
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        (starts[middle] <= tile ? low : high) = middle;
    }
    return low;
}

/// 16 rows x 64 columns of bf16 in shared memory, in a warp's registers as products and in device memory as rows.
struct StagedRows {
    unsigned char* memory;

    /// The groups j and j + 1 of eight columns: of each, the rows lane / 4 and those 8 below.
    __device__ void put(int j, const std::uint32_t (&from)[4]) const { store_matrices(matrix_row(j), from); }
    __device__ void get(int j, std::uint32_t (&to)[4]) const {
        load_matrices(to, static_cast<const bf16*>(matrix_row(j)));
    }
    /// The columns 8 j .. 8 j + 7 of a row.
    __device__ uint4& piece(int row, int j) const {
        return *reinterpret_cast<uint4*>(memory + operand_bytes(row, j));
    }
    /// The first rows and cols of them to a matrix; pieces: how many of eight columns there can be.
    template <int pieces>
    __device__ void store(bf16* to, Index stride, int rows, int cols) const {
        const int j = threadIdx.x % pieces, row0 = threadIdx.x % 32 / pieces;
        to += row0 * stride + 8 * j;
        __syncwarp();
#pragma unroll
        for (int row = 0; row < 16; row += 32 / pieces)
            if (row0 + row < rows && 8 * j < cols)
                *reinterpret_cast<uint4*>(to + row * stride) = piece(row0 + row, j);
    }

private:
    __device__ void* matrix_row(int j) const {
        const int lane = threadIdx.x % 32;
        return memory + operand_bytes(lane % 16, j + lane / 16);
    }
};

/// Two groups of eight columns of a warp's products as bf16.
__device__ inline void pack_groups(const float* first, const float* second, std::uint32_t (&to)[4]) {
    to[0] = pack_bf16(first[0], first[1]), to[1] = pack_bf16(first[2], first[3]);
    to[2] = pack_bf16(second[0], second[1]), to[3] = pack_bf16(second[2], second[3]);
}

/// pair / chosen without a division, for pair x chosen < 2^32.
struct TokenOf {
    std::uint32_t factor;  // 2^32 / chosen, rounded up; 0: chosen is 1

    explicit TokenOf(Index chosen)
        : factor(chosen == 1 ? 0 : static_cast<std::uint32_t>(((Index{1} << 32) + chosen - 1) / chosen)) {}
    __device__ int operator()(int pair) const {
        return factor == 0 ? pair : static_cast<int>(__umulhi(static_cast<std::uint32_t>(pair), factor));
    }
};

/// a [rows, segments x width]: row r of the dispatch stands in a[segment] as row r, or, gathered, as that of its token.
/// b: of each expert cols_of_b rows of width numbers (as c = a b^T reads them) in w[0], in paired jobs half of a tile's
/// from w[0] and half from w[1]; turned: width rows of cols_of_b numbers in w[segment].
template <int cols_, bool turned_, bool paired_>
struct ExpertTiles {
    static constexpr int cols = cols_;
    static constexpr bool turned = turned_, paired = paired_;
    static constexpr int a_bytes = tile_rows * 128, b_bytes = turned ? (cols + 63) / 64 * 8192 : cols * 128,
                         stage_bytes = a_bytes + b_bytes;
    static constexpr int own_cols = paired ? cols / 2 : cols;  // that a tile advances by

    ExpertDispatch d;
    const bf16 *a[2], *w[2];
    Index a_stride, w_stride;
    int width, segments, cols_of_b;
    TokenOf token_of;
    bool gathered;

    __host__ __device__ int col_tiles() const { return (cols_of_b + own_cols - 1) / own_cols; }
    __device__ int steps() const { return (width + 63) / 64 * segments; }
};

/// What a thread copies of the operands of a tile: 16-byte pieces at fixed places of every step.
template <class Job>
class TileLoader {
public:
    __device__ TileLoader(const Job& job, unsigned char* stages) : job_(job), stages_(stages) {}

    __device__ void enter(const RowTile& at) {
        if (job_.gathered) {
            int pairs[a_rows];
#pragma unroll
            for (int i = 0; i < a_rows; ++i)
                pairs[i] = static_cast<int>(job_.d.source[at.first + min(row() + step_rows * i, at.count - 1)]);
#pragma unroll
            for (int i = 0; i < a_rows; ++i)
                row_[i] = row() + step_rows * i < at.count && pairs[i] >= 0 ? job_.token_of(pairs[i]) : -1;
        } else {
#pragma unroll
            for (int i = 0; i < a_rows; ++i)
                row_[i] = row() + step_rows * i < at.count ? static_cast<int>(at.first) + row() + step_rows * i : -1;
        }
        if constexpr (Job::turned) {
            const int col = at.col * Job::cols + 8 * b_piece();
            b_ = Index{at.expert} * job_.width * job_.w_stride + col;
            b_exists_ = b_piece() < Job::cols / 8 && col < job_.cols_of_b;
        } else {
            col_ = at.col * Job::own_cols;
            b_ = (Index{at.expert} * job_.cols_of_b + col_) * job_.w_stride;
        }
    }

    /// The step that begins at k of a segment.
    __device__ void load(int segment, int k0, int stage) const {
        unsigned char* to = stages_ + stage * Job::stage_bytes + operand_bytes(row(), piece());
        const int k = k0 + 8 * piece();
        const bf16* a = job_.a[segment] + k;
        const int stride = static_cast<int>(job_.a_stride);
#pragma unroll
        for (int i = 0; i < a_rows; ++i)
            copy_16_bytes(to + 128 * step_rows * i, a + Index{row_[i]} * stride, k < job_.width && row_[i] >= 0);
        if constexpr (Job::turned) {
            if (b_piece() >= Job::cols / 8) return;
            unsigned char* b_to = stages_ + stage * Job::stage_bytes + Job::a_bytes + b_piece() / 8 * 8192 +
                                  operand_bytes(b_k(), b_piece() % 8);
            const bf16* b = job_.w[segment] + b_ + (k0 + b_k()) * job_.w_stride;
#pragma unroll
            for (int i = 0; i < 4; ++i)
                copy_16_bytes(b_to + 2048 * i, b + 16 * i * job_.w_stride,
                              b_exists_ && k0 + b_k() + 16 * i < job_.width);
        } else {
#pragma unroll
            for (int i = 0; i < (Job::cols + step_rows - 1) / step_rows; ++i) {
                const int n = row() + step_rows * i, own = n % Job::own_cols;
                if (n < Job::cols)
                    copy_16_bytes(to + Job::a_bytes + 128 * step_rows * i,
                                  job_.w[n / Job::own_cols] + b_ + own * job_.w_stride + k,
                                  k < job_.width && col_ + own < job_.cols_of_b);
            }
        }
    }

private:
    static constexpr int step_rows = tile_threads / 8, a_rows = tile_rows / step_rows;
    __device__ static int piece() { return threadIdx.x % 8; }
    __device__ static int row() { return threadIdx.x / 8; }
    __device__ static int b_piece() { return threadIdx.x % 32; }
    __device__ static int b_k() { return threadIdx.x / 32; }

    const Job& job_;
    unsigned char* stages_;
    int row_[a_rows];  // of a, in steps of step_rows; -1: zeros
    Index b_ = 0;      // where the tile's part of b begins
    int col_ = 0;
    bool b_exists_ = false;
};

template <class Job>
__global__ void __launch_bounds__(tile_threads, 1) expert_tiles_kernel(const Job job) {
    extern __shared__ __align__(1024) unsigned char stages[];
    int* starts = reinterpret_cast<int*>(stages + tile_stages * Job::stage_bytes);
    const int experts = static_cast<int>(job.d.offset.size) - 1;
    if (threadIdx.x < 32) count_tiles(job.d, tile_rows, starts);
    __syncthreads();
    const int col_tiles = job.col_tiles(), total = starts[experts] * col_tiles, steps = job.steps();
    const auto place = [&](int tile) {
        const int row_tile = tile / col_tiles, e = expert_of(starts, experts, row_tile);
        const Index first = job.d.offset[e] + Index{tile_rows} * (row_tile - starts[e]);
        const Index left = job.d.offset[e + 1] - first;
        return RowTile{e, left < tile_rows ? static_cast<int>(left) : tile_rows, tile % col_tiles, first};
    };

    TileLoader<Job> loader(job, stages);
    int next_tile = blockIdx.x, next_segment = 0, next_k = 0;
    RowTile next{};
    const auto load = [&](int stage) {
        if (next_tile < total) {
            loader.load(next_segment, next_k, stage);
            next_k += 64;
            if (next_k >= job.width) {
                next_k = 0;
                if (++next_segment == job.segments) {
                    next_segment = 0;
                    next_tile += gridDim.x;
                    if (next_tile < total) next = place(next_tile), loader.enter(next);
                }
            }
        }
        commit_copies();
    };
    if (next_tile < total) next = place(next_tile), loader.enter(next);
    for (int s = 0; s < tile_ahead; ++s) load(s);

    const int group = threadIdx.x / 128, own_row = threadIdx.x / 32 * 16;
    const std::uint32_t memory = shared_address(stages);
    float sums[Job::cols / 2];
    int step = 0;
    for (int tile = blockIdx.x; tile < total; tile += gridDim.x) {
        const RowTile at = place(tile);
        // Whether the warpgroup has rows: the same in all threads of a warp, which the compiler does not see.
        const bool works = __shfl_sync(0xffffffffu, 64 * group < at.count, 0);
        int k0 = 0;
        for (int k_step = 0; k_step < steps; ++k_step, ++step) {
            wait_for_copies<tile_ahead - 1>();
            show_to_products();
            __syncthreads();
            const std::uint32_t a = memory + step % tile_stages * Job::stage_bytes, b = a + Job::a_bytes;
            if (works) {
                begin_products();
#pragma unroll
                for (int k = 0; k < 4; ++k)
                    if (k0 + 16 * k < job.width)
                        multiply_add<false, Job::turned>(sums, operand(a + 8192 * group + 32 * k),
                                                         operand(b + (Job::turned ? 2048 : 32) * k, 8192),
                                                         k_step + k > 0);
                commit_products();
            }
            k0 = k0 + 64 < job.width ? k0 + 64 : 0;
            load((step + tile_ahead) % tile_stages);
            wait_for_products<1>();
        }
        wait_for_products<0>();
        // The warp's rows of a in the last two stages, which are free.
        const auto own = [&](int s) {
            return StagedRows{stages + s % tile_stages * Job::stage_bytes + own_row * 128};
        };
        if (own_row < at.count) job.finish(sums, at, own_row, own(step + tile_stages - 1), own(step + tile_stages - 2));
    }
}

inline unsigned multiprocessors() {
    int device = 0, count = 0;
    KIMIK3_CUDA(cudaGetDevice(&device));
    KIMIK3_CUDA(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device));
    return static_cast<unsigned>(count);
}

template <class Job>
void run_expert_tiles(const Context<Cuda>& ctx, const Job& job) {
    const int bytes = tile_stages * Job::stage_bytes + (static_cast<int>(job.d.experts()) + 1) * 4;
    KIMIK3_CUDA(cudaFuncSetAttribute(expert_tiles_kernel<Job>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    expert_tiles_kernel<Job><<<multiprocessors(), tile_threads, to_size(bytes), ctx.stream()>>>(job);
    check_launch();
}

}  // namespace kimik3::gpu
