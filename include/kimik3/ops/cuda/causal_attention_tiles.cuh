#pragma once
// What the kernels of causal attention on warpgroups share. A block of three warpgroups owns 128 rows of one head of
// one sequence at a time: the first warpgroup copies tiles into shared memory, those of the next rows as soon as there
// is room, and each of the others has 64 of the rows. Key channels [own | shared] take up to three panels of 64
// columns, values up to two; columns that do not exist are zero.

#include <queue>

#include "kimik3/ops/causal_attention.hpp"
#include "kimik3/ops/cuda/quick_formulas.cuh"
#include "kimik3/ops/cuda/warpgroup.cuh"

namespace kimik3::gpu::attention {

using namespace warpgroup;

/// Matrices are cut into panels of 64 columns.
inline constexpr int panel_columns = 64, panel_row_bytes = 128;

inline constexpr int threads = 384, block_rows = 128, key_panels = 3, value_panels = 2;

/// 128 rows of one head of one sequence. rank counts from the tile with most work, which for queries is the last one
/// and for keys the first. No tokens: nothing is left to do.
struct Tile {
    Index first;
    int tokens, rank, count, head;

    __device__ Index heaviest_last() const { return count - 1 - rank; }
};

/// Which tiles each block works on, one after another: turn t of block b is tiles[t blocks + b].
struct Schedule {
    std::vector<Tile> tiles;
    Index blocks = 0;

    Schedule() = default;
    /// Tiles are dealt out to the block that has least so far, the heaviest first within groups of sequences whose
    /// operands stay in the L2 cache.
    Schedule(const Sequences& seq, const MlaHeads& heads) {
        constexpr Index most_bytes = Index{24} << 20;
        const Index bytes_of_token = 2 * heads.count * (heads.key() + heads.value);
        std::vector<Tile> all;
        std::size_t group = 0;
        Index bytes = 0;
        const auto close = [&] {
            std::stable_sort(all.begin() + static_cast<std::ptrdiff_t>(group), all.end(),
                             [](const Tile& a, const Tile& b) { return a.count - a.rank > b.count - b.rank; });
            group = all.size(), bytes = 0;
        };
        for (Index s = 0; s < seq.count(); ++s) {
            const int tokens = static_cast<int>(seq.length(s)), count = (tokens + block_rows - 1) / block_rows;
            if (bytes > 0 && bytes + tokens * bytes_of_token > most_bytes) close();
            for (int rank = 0; rank < count; ++rank)
                for (int h = 0; h < heads.count; ++h) all.push_back({seq.begin(s), tokens, rank, count, h});
            bytes += tokens * bytes_of_token;
        }
        close();
        deal(all);
    }

private:
    /// What a tile costs beside its steps, in steps.
    static constexpr Index beginning_and_end = 2;

    void deal(const std::vector<Tile>& all) {
        blocks = (std::min)(multiprocessors(), static_cast<Index>(all.size()));
        using Load = std::pair<Index, Index>;  // what a block has to do, and which one it is
        std::priority_queue<Load, std::vector<Load>, std::greater<>> loads;
        for (Index b = 0; b < blocks; ++b) loads.push({0, b});
        std::vector<Index> turns(to_size(blocks), 0);
        for (const Tile& tile : all) {
            const auto [load, b] = loads.top();
            loads.pop();
            const std::size_t at = to_size(turns[to_size(b)]++ * blocks + b);
            if (at >= tiles.size()) tiles.resize(to_size(round_up(static_cast<Index>(at) + 1, blocks)));
            tiles[at] = tile;
            loads.push({load + (tile.count - tile.rank) + beginning_and_end, b});
        }
        tiles.resize(tiles.size() + to_size(blocks));  // a last turn for none
    }
};

/// The schedule of these sequences, which is made anew only when they are others than at the last call.
inline const Schedule& schedule_of(const Sequences& seq, const MlaHeads& heads) {
    static thread_local std::vector<Index> known;
    static thread_local Schedule schedule;
    std::vector<Index> asked(seq.packed().begin(), seq.packed().end());
    asked.insert(asked.end(), {heads.count, heads.key(), heads.value, multiprocessors()});
    if (asked != known) schedule = Schedule(seq, heads), known = std::move(asked);
    return schedule;
}

/// Whether a matrix can be copied in pieces of 16 bytes.
inline bool in_pieces(MatrixView<const bf16> m) {
    return reinterpret_cast<std::uintptr_t>(m.data) % 16 == 0 && m.stride % 8 == 0;
}
inline bool fits(const MlaHeads& heads) {
    return heads.nope % 8 == 0 && heads.shared % 8 == 0 && heads.value % 8 == 0 &&
           heads.key() <= key_panels * panel_columns && heads.value <= value_panels * panel_columns;
}
/// Whether this GPU's code of a kernel has warpgroups, known by its static shared memory; then it may use so much.
template <class... Parameters>
bool prepare(void (*kernel)(Parameters...), int bytes) {
    cudaFuncAttributes attributes{};
    KIMIK3_CUDA(cudaFuncGetAttributes(&attributes, kernel));
    if (attributes.sharedSizeBytes == 0) return false;
    KIMIK3_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    return true;
}

struct Operands {
    MlaHeads heads;
    const Tile* tiles;
    MatrixView<const bf16> q, kv, k_shared;

    __device__ Tile tile(int turn) const { return tiles[Index{turn} * gridDim.x + blockIdx.x]; }
};

/// The columns that a copying thread takes of the rows of a matrix, in one panel: piece thread % 8.
struct Strip {
    const bf16* at;  // in the first row
    Index stride;
    bool exists;

    /// Copies rows [from, from + rows) below end.
    template <int rows>
    __device__ __forceinline__ void copy(std::uint32_t panel, Index from, Index end) const {
        const int thread = static_cast<int>(threadIdx.x) % 128, row = thread / 8;
        const std::uint32_t to = panel + operand_bytes(row, thread % 8);
        const bf16* source = at + (from + row) * stride;
        const int left = exists ? static_cast<int>(end - from < rows ? end - from : rows) - row : 0;
#pragma unroll
        for (int i = 0; i < rows / 16; ++i)
            copy_16(to + i * 16 * panel_row_bytes, source + i * 16 * stride, 16 * i < left);
    }
};

/// cols columns from the given one on.
__device__ __forceinline__ Strip strip(MatrixView<const bf16> m, Index first_row, Index column, Index cols, int panel) {
    const Index c = panel * panel_columns + static_cast<Index>(threadIdx.x % 8) * 8;
    return {m.row(first_row) + column + (c < cols ? c : 0), m.stride, c < cols};
}
__device__ __forceinline__ Strip query_strip(const Operands& in, const Tile& tile, int panel) {
    return strip(in.q, tile.first, tile.head * in.heads.key(), in.heads.key(), panel);
}
__device__ __forceinline__ Strip key_strip(const Operands& in, const Tile& tile, int panel) {
    const Index c = panel * panel_columns + static_cast<Index>(threadIdx.x % 8) * 8, nope = in.heads.nope;
    if (c < nope) return strip(in.kv, tile.first, tile.head * (nope + in.heads.value), nope, panel);
    const bool exists = c < in.heads.key();
    return {in.k_shared.row(tile.first) + (exists ? c - nope : 0), in.k_shared.stride, exists};
}
__device__ __forceinline__ Strip value_strip(const Operands& in, const Tile& tile, int panel) {
    return strip(in.kv, tile.first, tile.head * (in.heads.nope + in.heads.value) + in.heads.nope, in.heads.value,
                 panel);
}

/// Shared memory from a multiple of 1,024 on. The few static bytes are the mark that prepare looks for.
__device__ inline std::uint32_t aligned_memory() {
    __shared__ volatile int mark[4];
    mark[threadIdx.x % 4] = 0;
    extern __shared__ __align__(1024) unsigned char attention_memory[];
    return (shared_address(attention_memory) + 1023u) & ~1023u;
}

/// Waits for the other threads of a warpgroup.
__device__ __forceinline__ void meet_warpgroup() {
    asm volatile("bar.sync %0, 128;" ::"r"(static_cast<int>(threadIdx.x / 128) + 1) : "memory");
}

#if KIMIK3_WARPGROUPS

/// c [64, columns] = a b^T over panels.
template <int panels, int count>
__device__ __forceinline__ void multiply_panels(float (&c)[count], std::uint32_t a, int a_panel, std::uint32_t b,
                                                int b_panel) {
    const std::uint64_t left = operand(a), right = operand(b);
    multiply(c, left, right);
#pragma unroll
    for (int k = 1; k < 4 * panels; ++k)
        multiply_add(c, further(left, k / 4 * a_panel + k % 4 * 32), further(right, k / 4 * b_panel + k % 4 * 32),
                     true);
}

/// c [64, columns] += a b, a [64, 16 steps] in registers, b of the panels from the given address on.
template <int steps, int count>
__device__ __forceinline__ void add_product(float (&c)[count], const std::uint32_t (&a)[steps][4], std::uint32_t b,
                                            int b_panel) {
    const std::uint64_t right = operand(b, b_panel);
#pragma unroll
    for (int k = 0; k < steps; ++k) multiply_add<true>(c, a[k], further(right, k * 16 * panel_row_bytes));
}

/// 16 columns of numbers laid out as c, rounded, as a of the next product.
template <int count>
__device__ __forceinline__ void pack_step(std::uint32_t (&a)[4], const float (&c)[count], int step) {
#pragma unroll
    for (int i = 0; i < 4; ++i) a[i] = pack_bf16(c[8 * step + 2 * i], c[8 * step + 2 * i + 1]);
}

/// The number of this thread's warpgroup, the same in a whole warp as the compiler sees.
__device__ __forceinline__ int warpgroup_number() {
    return __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 128, 0);
}

/// Where a computing thread stands in its block.
struct Place {
    int part, warp_row, lane, row;

    __device__ Place()
        : part(warpgroup_number() - 1),
          warp_row(part * 64 + static_cast<int>(threadIdx.x) % 128 / 32 * 16),
          lane(static_cast<int>(threadIdx.x) % 32),
          row(warp_row + lane / 4) {}
};

/// Writes c [64, 8 groups] times factor, rounded, to columns [0, cols) of a warp's 16 rows below end, which begin at
/// to. The four threads of a row exchange pairs, so that each writes 16 bytes of every fourth group.
template <int count>
__device__ __forceinline__ void write_tile(const float (&c)[count], float first, float second, bf16* to, Index stride,
                                           Index cols, Index end) {
    const int lane = threadIdx.x % 32, column = lane % 4;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const float factor = r == 0 ? first : second;
        const int row = lane / 4 + 8 * r;
#pragma unroll
        for (int j = 0; j < count / 4; j += 4) {
            std::uint32_t x[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int e = 4 * (j + i) + 2 * r;
                x[i] = pack_bf16(c[e] * factor, c[e + 1] * factor);
            }
#pragma unroll
            for (int i = 0; i < 4; i += 2) {
                const std::uint32_t got = __shfl_xor_sync(0xffffffffu, column & 1 ? x[i] : x[i + 1], 1);
                (column & 1 ? x[i] : x[i + 1]) = got;
            }
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const std::uint32_t got = __shfl_xor_sync(0xffffffffu, column & 2 ? x[i] : x[i + 2], 2);
                (column & 2 ? x[i] : x[i + 2]) = got;
            }
            const int at = (j + column) * 8;
            if (row < end && at < cols)
                *reinterpret_cast<uint4*>(to + row * stride + at) = make_uint4(x[0], x[1], x[2], x[3]);
        }
    }
}

/// Copies a warp's 16 rows, from row warp_row of the panels on, to columns [0, cols) of to below the row end.
template <int panels>
__device__ __forceinline__ void write_rows(std::uint32_t from, int panel_bytes, int warp_row, bf16* to, Index stride,
                                           Index cols, Index end) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 4 * panels; ++i) {
        const int e = i * 32 + lane, row = e / (8 * panels), eight = e % (8 * panels);
        if (row < end && eight * 8 < cols)
            *reinterpret_cast<uint4*>(to + row * stride + eight * 8) =
                load_piece(from + eight / 8 * panel_bytes + operand_bytes(warp_row + row, eight % 8));
    }
}

#endif  // KIMIK3_WARPGROUPS

}  // namespace kimik3::gpu::attention
