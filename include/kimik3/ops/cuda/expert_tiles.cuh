#pragma once
// Products of the experts' rows with their weights on Hopper's tensor cores: c_e [rows, cols] = a_e [rows, K] b_e, all
// experts by one grid as large as the GPU. A block makes the same columns of a stretch of rows. The weights of those
// columns, b, stay in shared memory for all rows of an expert if they fit, and rows pass by: 64 at a time for each
// warpgroup, which has a warp of its own that copies them. So a warpgroup finishes its rows while another multiplies
// and the next rows arrive. A job says what a and b are and what becomes of a finished tile.

#include "kimik3/ops/cuda/warpgroup.cuh"
#include "kimik3/ops/expert_dispatch.hpp"

namespace kimik3::gpu {

inline constexpr int tiled_experts = 320;

/// Rows of an expert, 64 for each warpgroup of a block, and the number of a tile's columns; fresh, leaving: whether the
/// weights come with this tile, and go with it.
struct RowTile {
    int expert, count, col;
    Index first;
    bool fresh, leaving;
};

/// Blocks in as many teams as there is work to do for each of them, a block's team, and its stretch of that work.
struct Share {
    int teams, team, each;  // each: blocks of a team that have something to do
    Index total;

    __device__ Share(int all_teams, Index work, int blocks) : teams(min(all_teams, blocks)), total(work) {
        team = blockIdx.x % teams;
        each = static_cast<int>(max(min(Index{blocks / teams}, total), Index{1}));
    }
    __device__ Index first(int rank) const { return total * min(rank, each) / each; }
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

/// 16 rows x 64 columns of bf16 in shared memory, through which a warp's registers, as products hold them, go to rows
/// of device memory and back. A matrix is given by the warp's first element and how many rows and columns there are
/// from there on. packed[j]: groups 2 j and 2 j + 1 of eight columns, of each the rows lane / 4 and those 8 below.
struct StagedRows {
    unsigned char* memory;
    int first_piece = 0;  // of the eight that a row of the memory has

    /// Past the cache, where the weights and the rows of tokens stay.
    template <int pairs>
    __device__ void write(bf16* to, Index stride, int rows, int cols, const std::uint32_t (&packed)[pairs][4]) const {
        __syncwarp();
#pragma unroll
        for (int j = 0; j < pairs; ++j) store_matrices(matrix_row(2 * j), packed[j]);
        __syncwarp();
        uint4 pieces[pairs];
#pragma unroll
        for (int i = 0; i < pairs; ++i) pieces[i] = piece(Lane<pairs>::row(i), Lane<pairs>::col());
        to += Lane<pairs>::row(0) * stride + 8 * Lane<pairs>::col();
#pragma unroll
        for (int i = 0; i < pairs; ++i, to += Lane<pairs>::apart * stride)
            if (Lane<pairs>::row(i) < rows && 8 * Lane<pairs>::col() < cols)
                __stcs(reinterpret_cast<uint4*>(to), pieces[i]);
    }
    /// Begins to copy such a matrix, zeros where there are no columns; read: what a finished copy brought.
    template <int pairs>
    __device__ void fetch(const bf16* from, Index stride, int rows, int cols) const {
        const bool inside = 8 * Lane<pairs>::col() < cols;
        if (inside) from += 8 * Lane<pairs>::col();
#pragma unroll
        for (int i = 0; i < pairs; ++i)
            copy_16_bytes(&piece(Lane<pairs>::row(i), Lane<pairs>::col()),
                          from + min(Lane<pairs>::row(i), rows - 1) * stride, inside);
    }
    template <int pairs>
    __device__ void read(std::uint32_t (&packed)[pairs][4]) const {
#pragma unroll
        for (int j = 0; j < pairs; ++j) load_matrices(packed[j], static_cast<const bf16*>(matrix_row(2 * j)));
    }
    /// The sums of so many groups from first on, value(i) in place of the sum i.
    template <int first, int groups, class Value>
    __device__ void write(bf16* to, Index stride, int rows, int cols, Value value) const {
        std::uint32_t packed[groups / 2][4];
#pragma unroll
        for (int i = 0; i < 2 * groups; ++i)
            packed[i / 4][i % 4] = pack_bf16(value(4 * first + 2 * i), value(4 * first + 2 * i + 1));
        write(to + 8 * first, stride, rows, cols - 8 * first, packed);
    }

private:
    /// The pieces of eight columns that a lane moves, of 16 rows of 2 pairs: (row(i), col).
    template <int pairs>
    struct Lane {
        static constexpr int apart = 16 / pairs;  // rows
        __device__ static int row(int i) { return threadIdx.x % 32 / (2 * pairs) + apart * i; }
        __device__ static int col() { return threadIdx.x % (2 * pairs); }
    };
    __device__ uint4& piece(int row, int j) const {
        return *reinterpret_cast<uint4*>(memory + operand_bytes(row, first_piece + j));
    }
    __device__ void* matrix_row(int j) const {
        const int lane = threadIdx.x % 32;
        return memory + operand_bytes(lane % 16, first_piece + j + lane / 16);
    }
};

/// body(first, count) for parts of 8, 4 or 2 that make up so many groups of eight columns.
template <int groups, int first = 0, class Body>
__device__ void for_parts(Body body) {
    constexpr int part = groups >= 8 ? 8 : groups >= 4 ? 4 : 2;
    body(std::integral_constant<int, first>{}, std::integral_constant<int, part>{});
    if constexpr (groups > part) for_parts<groups - part, first + part>(body);
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
/// from w[0] and half from w[1]; turned: width rows of cols_of_b numbers in w[segment]. Both are cut into panels of 64
/// of K; so many of b's are held, and of a's as many as there is room for. own_panels: how many of 64 columns of its 16
/// rows a warp has for finishing.
template <int cols_, bool turned_, bool paired_, int groups_, int panels_, int own_panels_ = 1>
struct ExpertTiles {
    static constexpr int cols = cols_, groups = groups_, rows = 64 * groups, threads = (128 + 32) * groups,
                         own_panels = own_panels_;
    static constexpr bool turned = turned_, paired = paired_;
    static constexpr int own_cols = paired ? cols / 2 : cols;  // that a tile advances by
    static_assert(own_cols % 16 == 0);
    // Shared memory: panels of b, panels of a, own panels of each warp, barriers, and of each expert its first
    // tile and its first row.
    static constexpr int panels = panels_, panel_bytes = turned ? (cols + 63) / 64 * 8192 : cols * 128,
                         a_panel_bytes = 8192, staged_bytes = groups * own_panels * 8192,
                         a_panels = (227 * 1024 - 3072 - panels * panel_bytes - staged_bytes) /
                                    (groups * a_panel_bytes),
                         a_at = panels * panel_bytes, staged_at = a_at + groups * a_panels * a_panel_bytes,
                         barriers_at = staged_at + staged_bytes,
                         starts_at = barriers_at + 16 * (panels + groups * a_panels);
    static int bytes(Index experts) { return starts_at + (static_cast<int>(experts) + 1) * 8; }

    ExpertDispatch d;
    const bf16 *a[2], *w[2];
    int a_stride, w_stride, width, segments, cols_of_b;
    TokenOf token_of;
    bool gathered;

    __host__ __device__ int col_tiles() const { return (cols_of_b + own_cols - 1) / own_cols; }
    __device__ int steps() const { return (width + 63) / 64 * segments; }
    /// Begins to copy what finish, given the same, will read.
    __device__ void expect(const RowTile&, int, StagedRows) const {}
};

/// What a warp copies: a lane the piece lane % 8 of every fourth row. Rows and columns that there are not, and padding,
/// are others in their place: what becomes of them is not used. Beyond the end of K both operands are zeros.
template <class Job>
class TileLoader {
public:
    __device__ TileLoader(const Job& job, int group) : job_(job), group_(group) {}

    /// The rows of a warpgroup: a lane looks up two of them for all.
    __device__ void enter(const RowTile& at) {
        std::uint32_t found[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int lane = static_cast<int>(threadIdx.x % 32);
            int row = static_cast<int>(at.first) + min(64 * group_ + 32 * half + lane, at.count - 1);
            if (job_.gathered) row = job_.token_of(max(static_cast<int>(job_.d.source[row]), 0));
            found[half] = static_cast<std::uint32_t>(row) * (job_.a_stride / 8u);
        }
#pragma unroll
        for (int i = 0; i < 16; ++i) pieces_[i] = __shfl_sync(0xffffffffu, found[i / 8], 4 * i % 32 + row());
    }
    /// Of them, columns k .. k + 63 of a segment.
    __device__ void load_a(std::uint32_t panel, int segment, int k) const {
        const uint4* from = reinterpret_cast<const uint4*>(job_.a[segment] + k) + piece();
        const bool inside = k + 8 * piece() < job_.width;
        const std::uint32_t to[2] = {panel + operand_bytes(row(), piece()), panel + operand_bytes(row() + 4, piece())};
#pragma unroll
        for (int i = 0; i < 16; ++i)
            warpgroup::copy_16(to[i % 2] + 1024 * (i / 2), from + pieces_[i], inside);
    }
    /// The warp's part of the same of K of b.
    __device__ void load_b(std::uint32_t panel, const RowTile& at, int segment, int k) const {
        if constexpr (Job::turned) {
            const bf16* w = job_.w[segment] + (Index{at.expert} * job_.width + k) * job_.w_stride;
#pragma unroll 4
            for (int r = row() + 4 * group_; r < 64; r += 4 * Job::groups)
#pragma unroll
                for (int part = 0; part < (Job::cols + 63) / 64; ++part) {
                    const int col = min(at.col * Job::cols + 64 * part + 8 * piece(), job_.cols_of_b - 8);
                    warpgroup::copy_16(panel + 8192 * part + operand_bytes(r, piece()),
                                       w + Index{r} * job_.w_stride + col, k + r < job_.width);
                }
        } else {
            const Index first = Index{at.expert} * job_.cols_of_b;
            const int col = at.col * Job::own_cols, last = job_.cols_of_b - 1;
#pragma unroll 4
            for (int r = row() + 4 * group_; r < Job::cols; r += 4 * Job::groups) {
                const bf16* w = job_.w[r / Job::own_cols] + k + 8 * piece();
                warpgroup::copy_16(panel + operand_bytes(r, piece()),
                                   w + (first + min(col + r % Job::own_cols, last)) * job_.w_stride,
                                   k + 8 * piece() < job_.width);
            }
        }
    }

private:
    __device__ static int piece() { return threadIdx.x % 8; }
    __device__ static int row() { return threadIdx.x % 32 / 8; }

    const Job& job_;
    const int group_;
    std::uint32_t pieces_[16];  // the rows' first
};

template <class Job>
__global__ void __launch_bounds__(Job::threads, 1) expert_tiles_kernel(const Job job) {
#if KIMIK3_WARPGROUPS
    begin_in_turn();
    extern __shared__ __align__(1024) unsigned char expert_memory[];
    const int experts = static_cast<int>(job.d.offset.size) - 1, warp = threadIdx.x / 32;
    int *starts = reinterpret_cast<int*>(expert_memory + Job::starts_at), *offset = starts + experts + 1;
    // Warp w of the last ones copies for warpgroup w.
    const bool copies = warp >= 4 * Job::groups;
    const int group = copies ? warp - 4 * Job::groups : warp / 4;
    const std::uint32_t base = shared_address(expert_memory),
                        a_base = base + Job::a_at + group * Job::a_panels * Job::a_panel_bytes;
    warpgroup::Ring b(base + Job::barriers_at, Job::panels),
        a(base + Job::barriers_at + 16 * (Job::panels + group * Job::a_panels), Job::a_panels);
    if (threadIdx.x == 0) b.start(32 * Job::groups, 4 * Job::groups);
    if (copies && threadIdx.x % 32 == 0) a.start(32, 4);
    if (warp == 0) count_tiles(job.d, Job::rows, starts);
    for (int e = threadIdx.x; e <= experts; e += Job::threads) offset[e] = static_cast<int>(job.d.offset[e]);
    __syncthreads();

    const int steps = job.steps();
    const auto for_tiles = [&](auto body) {
        const int cols = job.col_tiles();
        const Share share(cols, starts[experts], gridDim.x);
        const int rank = blockIdx.x / share.teams;
        const int first = static_cast<int>(share.first(rank)), last = static_cast<int>(share.first(rank + 1));
        const bool stream = steps > Job::panels;
        for (int col = share.team; col < cols; col += share.teams) {
            int e = expert_of(starts, experts, first);
            for (int tile = first; tile < last; ++tile) {
                while (tile >= starts[e + 1]) ++e;
                const int row = offset[e] + Job::rows * (tile - starts[e]);
                body(RowTile{e, min(offset[e + 1] - row, Job::rows), col, row,
                             stream || tile == first || tile == starts[e],
                             stream || tile + 1 == last || tile + 1 == starts[e + 1]});
            }
        }
    };
    if (copies) {
        TileLoader<Job> loader(job, group);
        for_tiles([&](const RowTile& at) {
            const bool has_rows = 64 * group < at.count;
            if (has_rows) loader.enter(at);
            for (int segment = 0; segment < job.segments; ++segment)
                for (int k = 0; k < job.width; k += 64) {
                    if (at.fresh) {
                        b.wait_empty();
                        loader.load_b(base + b.stage * Job::panel_bytes, at, segment, k);
                        warpgroup::arrive_after_copies(b.full());
                        b.next();
                    }
                    if (has_rows) {
                        a.wait_empty();
                        loader.load_a(a_base + a.stage * Job::a_panel_bytes, segment, k);
                        warpgroup::arrive_after_copies(a.full());
                        a.next();
                    }
                }
        });
        warpgroup::finish_copies();
    } else {
        float sums[Job::cols / 2];
        warpgroup::Ring weights = b;
        const StagedRows staged{expert_memory + Job::staged_at + 2048 * Job::own_panels * warp};
        for_tiles([&](const RowTile& at) {
            const int own_row = 16 * warp;
            const bool has_rows = 64 * group < at.count;
            if (own_row < at.count) job.expect(at, own_row, staged);
            if (at.fresh) weights = b;
            b = weights;
            warpgroup::Ring a_before = a, b_before = b;
            const auto release = [&] {
                if (has_rows) a_before.release();
                if (at.leaving) b_before.release();
            };
            for (int step = 0; step < steps; ++step) {
                if (at.fresh) b.wait_full();
                if (has_rows) {
                    a.wait_full();
                    const std::uint64_t rows = operand(a_base + a.stage * Job::a_panel_bytes),
                                        cols = operand(base + b.stage * Job::panel_bytes, 8192);
                    begin_products();
#pragma unroll
                    for (int k = 0; k < 4; ++k)
                        multiply_add<false, Job::turned>(sums, further(rows, 32 * k),
                                                         further(cols, (Job::turned ? 2048 : 32) * k), step + k > 0);
                    commit_products();
                    wait_for_products<1>();
                }
                if (step > 0) release();
                a_before = a, b_before = b;
                if (has_rows) a.next();
                b.next();
            }
            wait_for_products<0>();
            release();
            if (own_row < at.count) job.finish(sums, at, own_row, staged);
        });
    }
#endif
}

template <class Job>
void run_expert_tiles(const Context<Cuda>& ctx, const Job& job) {
    launch_early(ctx, multiprocessors(), Job::threads, Job::bytes(job.d.experts()), expert_tiles_kernel<Job>, job);
}

}  // namespace kimik3::gpu
