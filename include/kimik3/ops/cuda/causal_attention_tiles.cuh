#pragma once
// What the kernels of causal attention on warpgroups share. A block of three warpgroups owns 128 rows of one head of
// one sequence: the first warpgroup copies tiles into shared memory, each of the others has 64 of the rows. Key
// channels [own | shared] take up to three panels of 64 columns, values up to two; columns that do not exist are zero.

#include "kimik3/ops/causal_attention.hpp"
#include "kimik3/ops/cuda/warpgroup.cuh"

namespace kimik3::gpu::attention {

using namespace warpgroup;

inline constexpr int threads = 384, block_rows = 128, key_panels = 3, value_panels = 2;

/// The work of a block, for every head: 128 rows of a sequence. rank counts from the tile with most work, which for
/// queries is the last one and for keys the first.
struct Tile {
    Index first, tokens, rank, count;
};

/// All tiles, the heaviest first within groups of sequences whose operands stay in the L2 cache.
inline std::vector<Tile> list_tiles(const Sequences& seq, const MlaHeads& heads) {
    constexpr Index most_bytes = Index{24} << 20;
    const Index bytes_of_token = 2 * heads.count * (heads.key() + heads.value);
    std::vector<Tile> tiles;
    std::size_t group = 0;
    Index bytes = 0;
    const auto close = [&] {
        std::stable_sort(tiles.begin() + static_cast<std::ptrdiff_t>(group), tiles.end(),
                         [](const Tile& a, const Tile& b) { return a.count - a.rank > b.count - b.rank; });
        group = tiles.size(), bytes = 0;
    };
    for (Index s = 0; s < seq.count(); ++s) {
        const Index count = ceil_div(seq.length(s), Index{block_rows}), more = seq.length(s) * bytes_of_token;
        if (bytes > 0 && bytes + more > most_bytes) close();
        for (Index rank = 0; rank < count; ++rank) tiles.push_back({seq.begin(s), seq.length(s), rank, count});
        bytes += more;
    }
    close();
    return tiles;
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

    __device__ const Tile& tile() const { return tiles[blockIdx.x / heads.count]; }
    __device__ Index head() const { return blockIdx.x % heads.count; }
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
        const std::uint32_t to = piece(panel, row, thread % 8);
        const bf16* source = at + (from + row) * stride;
        const int left = exists ? static_cast<int>(end - from < rows ? end - from : rows) - row : 0;
#pragma unroll
        for (int i = 0; i < rows / 16; ++i) copy_16(to + i * 16 * panel_row_bytes, source + i * 16 * stride, 16 * i < left);
    }
};

/// cols columns from the given one on.
__device__ __forceinline__ Strip strip(MatrixView<const bf16> m, Index first_row, Index column, Index cols, int panel) {
    const Index c = panel * panel_columns + static_cast<Index>(threadIdx.x % 8) * 8;
    return {m.row(first_row) + column + (c < cols ? c : 0), m.stride, c < cols};
}
__device__ __forceinline__ Strip query_strip(const Operands& in, Index first, int panel) {
    return strip(in.q, first, in.head() * in.heads.key(), in.heads.key(), panel);
}
__device__ __forceinline__ Strip key_strip(const Operands& in, Index first, int panel) {
    const Index c = panel * panel_columns + static_cast<Index>(threadIdx.x % 8) * 8;
    if (c < in.heads.nope) return strip(in.kv, first, in.head() * (in.heads.nope + in.heads.value), in.heads.nope, panel);
    Strip s = strip(in.k_shared, first, 0, in.heads.shared, 0);
    s.exists = c < in.heads.key();
    s.at = in.k_shared.row(first) + (s.exists ? c - in.heads.nope : 0);
    return s;
}
__device__ __forceinline__ Strip value_strip(const Operands& in, Index first, int panel) {
    return strip(in.kv, first, in.head() * (in.heads.nope + in.heads.value) + in.heads.nope, in.heads.value, panel);
}

/// Barriers of a ring of stages: full when 128 copying threads have arrived, empty when 8 warps have.
struct Ring {
    std::uint32_t barriers;  // full and empty of every stage
    int stages, stage = 0;
    std::uint32_t parity = 0;

    __device__ Ring(std::uint32_t at, int count) : barriers(at), stages(count) {}
    __device__ __forceinline__ std::uint32_t full() const { return barriers + stage * 16; }
    __device__ __forceinline__ std::uint32_t empty() const { return barriers + stage * 16 + 8; }
    __device__ __forceinline__ void next() {
        if (++stage == stages) stage = 0, parity ^= 1;
    }
    __device__ void start() const {
        for (int i = 0; i < stages; ++i) start_barrier(barriers + i * 16, 128), start_barrier(barriers + i * 16 + 8, 8);
    }
    __device__ __forceinline__ void wait_empty() const { wait(empty(), parity ^ 1); }
    __device__ __forceinline__ void wait_full() const {
        wait(full(), parity);
        show_to_products();
    }
    __device__ __forceinline__ void release() const {
        if (threadIdx.x % 32 == 0) arrive(empty());
    }
};

/// Shared memory from a multiple of 1,024 on. The few static bytes are the mark that prepare looks for.
__device__ inline std::uint32_t aligned_memory() {
    __shared__ volatile int mark[4];
    mark[threadIdx.x % 4] = 0;
    extern __shared__ __align__(1024) unsigned char attention_memory[];
    return (shared_address(attention_memory) + 1023u) & ~1023u;
}

__device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

#ifdef KIMIK3_HAS_WARPGROUPS

/// c [64, columns] = a b^T over panels.
template <int panels, int count>
__device__ __forceinline__ void multiply_panels(float (&c)[count], std::uint32_t a, int a_panel, std::uint32_t b,
                                                int b_panel) {
    const std::uint64_t left = along_columns(a), right = along_columns(b);
    multiply(c, left, right);
#pragma unroll
    for (int k = 1; k < 4 * panels; ++k)
        add_multiple(c, later(left, k / 4 * a_panel + k % 4 * 32), later(right, k / 4 * b_panel + k % 4 * 32));
}

/// c [64, columns] += a b, a [64, 16 steps] in registers, b of the panels from the given address on.
template <int steps, int count>
__device__ __forceinline__ void add_product(float (&c)[count], const std::uint32_t (&a)[steps][4], std::uint32_t b,
                                            int b_panel) {
    const std::uint64_t right = along_rows(b, b_panel);
#pragma unroll
    for (int k = 0; k < steps; ++k) add_registers(c, a[k], later(right, k * 16 * panel_row_bytes));
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

/// Waits for the other warps of a warpgroup of computing threads.
__device__ __forceinline__ void meet_warpgroup() {
    asm volatile("bar.sync %0, 128;" ::"r"(static_cast<int>(threadIdx.x / 128)) : "memory");
}

/// Rounds c [64, 8 groups] times factor (one for the thread's first row, one for its second) into panels, of which a
/// warp touches its own rows.
template <int count>
__device__ __forceinline__ void store_tile(const float (&c)[count], std::uint32_t panels, int panel_bytes, int row,
                                           float first, float second) {
    const int pair = static_cast<int>(threadIdx.x % 4) * 4;
#pragma unroll
    for (int j = 0; j < count / 4; ++j) {
        const std::uint32_t panel = panels + j / 8 * panel_bytes;
        store_pair(piece(panel, row, j % 8) + pair, pack_bf16(c[4 * j] * first, c[4 * j + 1] * first));
        store_pair(piece(panel, row + 8, j % 8) + pair, pack_bf16(c[4 * j + 2] * second, c[4 * j + 3] * second));
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
                load_piece(piece(from + eight / 8 * panel_bytes, warp_row + row, eight % 8));
    }
}

#endif  // KIMIK3_HAS_WARPGROUPS

}  // namespace kimik3::gpu::attention
