#pragma once
// Products of the experts' rows with their weights on Hopper's tensor cores: c_e [rows, cols] = a_e [rows, K] b_e, all
// experts by one grid as large as the GPU. A block of four warpgroups makes tiles of 256 rows, one after another, 64 a
// warpgroup; its operands come in steps of 64 along K through a ring of stages in shared memory, which runs on from
// tile to tile. A job says what a and b are and what becomes of a finished tile.

#include "kimik3/ops/cuda/expert_warpgroup.cuh"
#include "kimik3/ops/expert_dispatch.hpp"

namespace kimik3::gpu {

inline constexpr int tile_threads = 512, tile_rows = 256, tile_stages = 4, tiled_experts = 320;
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

/// What a thread copies of the operands of a tile: 16-byte pieces at fixed places of every step. Rows and columns that
/// there are not, and padding, are others in their place: what becomes of them is not used. Beyond the end of K both
/// operands are zeros.
template <class Job>
class TileLoader {
public:
    __device__ TileLoader(const Job& job, unsigned char* stages) : job_(job), stages_(stages) {}

    /// Whether a tile's last step of a segment has been loaded.
    __device__ bool at_end() const { return k_ >= job_.width; }

    __device__ void enter(const RowTile& at, int segment) {
        k_ = 0;
        int rows[a_rows];
#pragma unroll
        for (int i = 0; i < a_rows; ++i)
            rows[i] = static_cast<int>(at.first) + min(row() + step_rows * i, at.count - 1);
        if (job_.gathered) {
#pragma unroll
            for (int i = 0; i < a_rows; ++i) rows[i] = static_cast<int>(job_.d.source[rows[i]]);
#pragma unroll
            for (int i = 0; i < a_rows; ++i) rows[i] = job_.token_of(max(rows[i], 0));
        }
#pragma unroll
        for (int i = 0; i < a_rows; ++i) a_[i] = job_.a[segment] + rows[i] * job_.a_stride + 8 * piece();
        if constexpr (Job::turned) {
            const int col = min(at.col * Job::cols + 8 * b_piece(), job_.cols_of_b - 8);
            b_[0] = job_.w[segment] + (Index{at.expert} * job_.width + b_k()) * job_.w_stride + col;
        } else {
#pragma unroll
            for (int i = 0; i < b_rows; ++i) {
                const int n = min(row() + step_rows * i, Job::cols - 1),
                          col = min(at.col * Job::own_cols + n % Job::own_cols, job_.cols_of_b - 1);
                b_[i] = job_.w[n / Job::own_cols] + (Index{at.expert} * job_.cols_of_b + col) * job_.w_stride +
                        8 * piece();
            }
        }
    }

    /// The next step.
    __device__ void load(int stage) {
        unsigned char *to = stages_ + stage * Job::stage_bytes, *own = to + operand_bytes(row(), piece());
        const bool inside = k_ + 8 * piece() < job_.width;
#pragma unroll
        for (int i = 0; i < a_rows; ++i) {
            copy_16_bytes(own + 128 * step_rows * i, a_[i], inside);
            a_[i] += 64;
        }
        if constexpr (Job::turned) {
            if (b_piece() < Job::cols / 8) {
                unsigned char* b_to = to + Job::a_bytes + b_piece() / 8 * 8192 + operand_bytes(b_k(), b_piece() % 8);
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    copy_16_bytes(b_to + 2048 * i, b_[0], k_ + b_k() + 16 * i < job_.width);
                    b_[0] += 16 * job_.w_stride;
                }
            }
        } else {
#pragma unroll
            for (int i = 0; i < b_rows; ++i) {
                if (row() + step_rows * i < Job::cols)
                    copy_16_bytes(own + Job::a_bytes + 128 * step_rows * i, b_[i], inside);
                b_[i] += 64;
            }
        }
        k_ += 64;
    }

private:
    static constexpr int step_rows = tile_threads / 8, a_rows = tile_rows / step_rows,
                         b_rows = Job::turned ? 1 : (Job::cols + step_rows - 1) / step_rows;
    __device__ static int piece() { return threadIdx.x % 8; }
    __device__ static int row() { return threadIdx.x / 8; }
    __device__ static int b_piece() { return threadIdx.x % 32; }
    __device__ static int b_k() { return threadIdx.x / 32; }

    const Job& job_;
    unsigned char* stages_;
    const bf16 *a_[a_rows], *b_[b_rows];
    int k_ = 0;
};

template <class Job>
__global__ void __launch_bounds__(tile_threads, 1) expert_tiles_kernel(const Job job) {
    extern __shared__ __align__(1024) unsigned char stages[];
    const int experts = static_cast<int>(job.d.offset.size) - 1;
    int *starts = reinterpret_cast<int*>(stages + tile_stages * Job::stage_bytes), *offset = starts + experts + 1;
    if (threadIdx.x < 32) count_tiles(job.d, tile_rows, starts);
    for (int e = threadIdx.x; e <= experts; e += tile_threads) offset[e] = static_cast<int>(job.d.offset[e]);
    __syncthreads();
    const int col_tiles = job.col_tiles(), total = starts[experts] * col_tiles, steps = job.steps();
    const auto place = [&](int tile) {
        const int row_tile = tile / col_tiles, e = expert_of(starts, experts, row_tile),
                  first = offset[e] + tile_rows * (row_tile - starts[e]);
        return RowTile{e, min(offset[e + 1] - first, tile_rows), tile - row_tile * col_tiles, first};
    };

    TileLoader<Job> loader(job, stages);
    int next_tile = blockIdx.x, next_segment = 0;
    const auto load = [&](int stage) {
        if (next_tile < total) {
            loader.load(stage);
            if (loader.at_end()) {
                if (++next_segment == job.segments) next_segment = 0, next_tile += gridDim.x;
                if (next_tile < total) loader.enter(place(next_tile), next_segment);
            }
        }
        commit_copies();
    };
    if (next_tile < total) loader.enter(place(next_tile), 0);
    for (int s = 0; s < tile_ahead; ++s) load(s);

    const int group = threadIdx.x / 128, own_row = threadIdx.x / 32 * 16;
    const std::uint32_t memory = shared_address(stages);
    float sums[Job::cols / 2];
    int step = 0;
    for (int tile = blockIdx.x; tile < total; tile += gridDim.x) {
        const RowTile at = place(tile);
        for (int k_step = 0; k_step < steps; ++k_step, ++step) {
            wait_for_copies<tile_ahead - 1>();
            show_to_products();
            __syncthreads();
            const std::uint32_t stage = memory + step % tile_stages * Job::stage_bytes;
            const std::uint64_t a = operand(stage + 8192 * group), b = operand(stage + Job::a_bytes, 8192);
            begin_products();
#pragma unroll
            for (int k = 0; k < 4; ++k)
                multiply_add<false, Job::turned>(sums, further(a, 32 * k), further(b, (Job::turned ? 2048 : 32) * k),
                                                 k_step + k > 0);
            commit_products();
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

template <class Job>
void run_expert_tiles(const Context<Cuda>& ctx, const Job& job) {
    const int bytes = tile_stages * Job::stage_bytes + (static_cast<int>(job.d.experts()) + 1) * 8;
    KIMIK3_CUDA(cudaFuncSetAttribute(expert_tiles_kernel<Job>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    expert_tiles_kernel<Job><<<multiprocessors(), tile_threads, to_size(bytes), ctx.stream()>>>(job);
    check_launch();
}

}  // namespace kimik3::gpu
