#pragma once
// Products of the experts' rows with their weights on Hopper's tensor cores: c_e [rows, cols] = a_e [rows, K] b_e, all
// experts by one grid as large as the GPU. A block of two warpgroups makes tiles of 256 rows, one after another; its
// operands come in steps of 64 along K through a ring of stages in shared memory, which runs on from tile to tile. A
// job says what a and b are and what becomes of a finished tile.

#include "kimik3/ops/cuda/expert_warpgroup.cuh"
#include "kimik3/ops/expert_dispatch.hpp"

namespace kimik3::gpu {

inline constexpr int tile_threads = 256, tile_rows = 256, tile_stages = 4, tiled_experts = 512;
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

/// 16 rows x 64 columns of bf16 in shared memory between a warp's registers and device memory, in 16-byte pieces.
struct StagedRows {
    unsigned char* memory;

    /// The columns 8 j + 2 (lane % 4) and the next of a row.
    __device__ std::uint32_t& pair(int row, int j) const {
        return *reinterpret_cast<std::uint32_t*>(memory + operand_bytes(row, j) + threadIdx.x % 4 * 4);
    }
    __device__ uint4& piece(int row, int j) const {
        return *reinterpret_cast<uint4*>(memory + operand_bytes(row, j));
    }
    /// The first rows and cols of them to a matrix; pieces: 16-byte pieces of a row.
    template <int pieces>
    __device__ void store(bf16* to, Index stride, int rows, int cols) const {
        __syncwarp();
#pragma unroll
        for (int i = threadIdx.x % 32; i < 16 * pieces; i += 32) {
            const int row = i / pieces, j = i % pieces;
            if (row < rows && 8 * j < cols) *reinterpret_cast<uint4*>(to + row * stride + 8 * j) = piece(row, j);
        }
    }
};

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
    /// The rows of a are first_row + 32 i, those of b likewise, or, turned, first_k + 8 i along K.
    __device__ TileLoader(const Job& job, unsigned char* stages) : job_(job), stages_(stages) {}

    __device__ void enter(const RowTile& at) {
        int rows[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const int row = first_row() + 32 * i;
            rows[i] = row < at.count ? row : -1;
        }
        if (job_.gathered) {
            Index pairs[8];
#pragma unroll
            for (int i = 0; i < 8; ++i) pairs[i] = job_.d.source[at.first + max(rows[i], 0)];
#pragma unroll
            for (int i = 0; i < 8; ++i)
                rows[i] = rows[i] < 0 || pairs[i] < 0 ? -1 : job_.token_of(static_cast<int>(pairs[i]));
        } else {
#pragma unroll
            for (int i = 0; i < 8; ++i)
                if (rows[i] >= 0) rows[i] += static_cast<int>(at.first);
        }
        exist_ = 0;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            row_[i] = max(rows[i], 0);
            exist_ |= (rows[i] >= 0 ? 1u : 0u) << i;
        }
        if constexpr (Job::turned) {
            const int col = at.col * Job::cols + 8 * b_piece();
            b_begin_ = Index{at.expert} * job_.width * job_.w_stride + col;
            if (b_piece() < Job::cols / 8 && col < job_.cols_of_b) exist_ |= 0x100u;
        } else {
            b_begin_ = Index{at.expert} * job_.cols_of_b * job_.w_stride;
#pragma unroll
            for (int i = 0; i < (Job::cols + 31) / 32; ++i)
                if (first_row() + 32 * i < Job::cols && col_of(at, i) < job_.cols_of_b) exist_ |= 0x100u << i;
        }
    }

    /// The step that begins at k of a segment.
    __device__ void load(const RowTile& at, int segment, int k0, int stage) const {
        unsigned char* to = stages_ + stage * Job::stage_bytes + operand_bytes(first_row(), piece());
        const int k = k0 + 8 * piece();
        const bf16* a = job_.a[segment] + k;
#pragma unroll
        for (int i = 0; i < 8; ++i)
            copy_16_bytes(to + 4096 * i, a + row_[i] * job_.a_stride, k < job_.width && (exist_ >> i & 1u) != 0);
        if constexpr (Job::turned) {
            if (b_piece() >= Job::cols / 8) return;
            unsigned char* b_to = stages_ + stage * Job::stage_bytes + Job::a_bytes + b_piece() / 8 * 8192 +
                                  operand_bytes(first_k(), b_piece() % 8);
            const bf16* b = job_.w[segment] + b_begin_ + (k0 + first_k()) * job_.w_stride;
#pragma unroll
            for (int i = 0; i < 8; ++i)
                copy_16_bytes(b_to + 1024 * i, b + 8 * i * job_.w_stride,
                              k0 + first_k() + 8 * i < job_.width && (exist_ & 0x100u) != 0);
        } else {
#pragma unroll
            for (int i = 0; i < (Job::cols + 31) / 32; ++i) {
                const int n = first_row() + 32 * i;
                if (n < Job::cols)
                    copy_16_bytes(to + Job::a_bytes + 4096 * i,
                                  job_.w[n / Job::own_cols] + b_begin_ + col_of(at, i) * job_.w_stride + k,
                                  k < job_.width && (exist_ >> (8 + i) & 1u) != 0);
            }
        }
    }

private:
    __device__ static int piece() { return threadIdx.x % 8; }
    __device__ static int first_row() { return threadIdx.x / 8; }
    __device__ static int b_piece() { return threadIdx.x % 32; }
    __device__ static int first_k() { return threadIdx.x / 32; }
    __device__ static int col_of(const RowTile& at, int i) {
        return at.col * Job::own_cols + (first_row() + 32 * i) % Job::own_cols;
    }

    const Job& job_;
    unsigned char* stages_;
    int row_[8];
    unsigned exist_ = 0;  // a bit for each row of a, then for each of b
    Index b_begin_ = 0;
};

/// Where a warp may put rows of a finished tile: four times 16 rows in stages that are free.
struct FreeStages {
    unsigned char *last, *before;  // the warp's rows of the first of its two blocks of 64

    __device__ StagedRows rows(int i) const { return {(i < 2 ? last : before) + i % 2 * 16384}; }
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
            loader.load(next, next_segment, next_k, stage);
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

    // A warpgroup has the rows 64 group .. and 128 + 64 group .. of the tile.
    const int group = threadIdx.x / 128, own_rows = 64 * group + threadIdx.x / 32 % 4 * 16;
    const std::uint32_t memory = shared_address(stages);
    float sums[2][Job::cols / 2];
    int step = 0;
    for (int tile = blockIdx.x; tile < total; tile += gridDim.x) {
        const RowTile at = place(tile);
        // The same in all threads of a warp, which the compiler does not see.
        const int own_blocks = __shfl_sync(0xffffffffu, min(max((at.count - 64 * group + 127) / 128, 0), 2), 0);
        int k0 = 0;
        for (int k_step = 0; k_step < steps; ++k_step, ++step) {
            wait_for_copies<tile_ahead - 1>();
            show_to_products();
            __syncthreads();
            const std::uint32_t a = memory + step % tile_stages * Job::stage_bytes, b = a + Job::a_bytes;
            const auto multiply = [&](int m, int k) {
                multiply_add<false, Job::turned>(sums[m], operand(a + 8192 * (group + 2 * m) + 32 * k),
                                                 operand(b + (Job::turned ? 2048 : 32) * k, 8192), k_step + k > 0);
            };
            begin_products();
            if (own_blocks == 2 && k0 + 64 <= job.width) {
#pragma unroll
                for (int i = 0; i < 8; ++i) multiply(i / 4, i % 4);
            } else {
#pragma unroll
                for (int i = 0; i < 8; ++i)
                    if (i / 4 < own_blocks && k0 + i % 4 * 16 < job.width) multiply(i / 4, i % 4);
            }
            commit_products();
            k0 = k0 + 64 < job.width ? k0 + 64 : 0;
            load((step + tile_ahead) % tile_stages);
            wait_for_products<1>();
        }
        wait_for_products<0>();
        const auto own = [&](int s) { return stages + s % tile_stages * Job::stage_bytes + own_rows * 128; };
        job.finish(sums, at, own_rows, FreeStages{own(step + tile_stages - 1), own(step + tile_stages - 2)});
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
