#pragma once
// What the two backward kernels of causal attention on warpgroups read, and how it comes into shared memory
// (causal_attention_backward_bf16.cuh).

#include "kimik3/ops/cuda/causal_attention_tiles.cuh"

namespace kimik3::gpu::attention {

/// Shared memory of both: the block's own rows (q and do, or k and v) and stages of the tiles that it walks over, with
/// the lse and delta of 64 queries.
struct BackwardMemory {
    static constexpr int stages = 3, tile_rows = 64;
    static constexpr int own_panel = block_rows * panel_row_bytes, panel = tile_rows * panel_row_bytes;
    static constexpr int own = (key_panels + value_panels) * own_panel;
    static constexpr int stage_bytes = (key_panels + value_panels) * panel, row_bytes = 2 * tile_rows * 4;
    static constexpr int bytes = own + stages * (stage_bytes + row_bytes) + 1024 + 128;

    std::uint32_t base;

    __device__ std::uint32_t keys() const { return base; }
    __device__ std::uint32_t values() const { return base + key_panels * own_panel; }
    __device__ std::uint32_t keys(int stage) const { return base + own + stage * stage_bytes; }
    __device__ std::uint32_t values(int stage) const { return keys(stage) + key_panels * panel; }
    __device__ std::uint32_t rows(int stage) const { return base + own + stages * stage_bytes + stage * row_bytes; }
    __device__ std::uint32_t barriers() const { return base + own + stages * (stage_bytes + row_bytes); }
    __device__ Ring ring() const { return {barriers(), stages}; }
    __device__ Ring own_ring() const { return {barriers() + 64, 1}; }
};

struct BackwardOperands : Operands {
    MatrixView<const bf16> d_o;
    MatrixView<const float> lse, delta;
    float scale;

    __device__ Strip value_gradient_strip(const Tile& tile, int panel) const {
        return strip(d_o, tile.first, tile.head * heads.value, heads.value, panel);
    }
};

inline constexpr float log2_e = 1.4426950408889634f;

/// The first tile of 64 keys that a block of queries walks over, down to tile 0.
__device__ __forceinline__ int last_key_tile(const Tile& tile) {
    const int end = static_cast<int>(tile.heaviest_last() + 1) * block_rows;
    return ((end < tile.tokens ? end : tile.tokens) - 1) / BackwardMemory::tile_rows;
}

__device__ inline void copy_dq_tiles(const BackwardOperands& in, const BackwardMemory& memory) {
    constexpr int own_panel = BackwardMemory::own_panel, panel = BackwardMemory::panel;
    constexpr int rows = BackwardMemory::tile_rows;
    Ring ring = memory.ring(), own = memory.own_ring();
    for (int turn = 0;; ++turn) {
        const Tile tile = in.tile(turn);
        if (tile.tokens == 0) break;
        const Index top = tile.heaviest_last() * block_rows;
        own.wait_empty();
        for (int p = 0; p < key_panels; ++p)
            query_strip(in, tile, p).copy<block_rows>(memory.keys() + p * own_panel, top, tile.tokens);
        for (int p = 0; p < value_panels; ++p)
            in.value_gradient_strip(tile, p).copy<block_rows>(memory.values() + p * own_panel, top, tile.tokens);
        arrive_after_copies(own.full());
        own.next();
        for (Index j = last_key_tile(tile); j >= 0; --j) {
            ring.wait_empty();
            for (int p = 0; p < key_panels; ++p)
                key_strip(in, tile, p).copy<rows>(memory.keys(ring.stage) + p * panel, j * rows, tile.tokens);
            for (int p = 0; p < value_panels; ++p)
                value_strip(in, tile, p).copy<rows>(memory.values(ring.stage) + p * panel, j * rows, tile.tokens);
            arrive_after_copies(ring.full());
            ring.next();
        }
    }
    finish_copies();
}

__device__ inline void copy_dkv_tiles(const BackwardOperands& in, const BackwardMemory& memory) {
    constexpr int own_panel = BackwardMemory::own_panel, panel = BackwardMemory::panel;
    constexpr int rows = BackwardMemory::tile_rows;
    const int thread = static_cast<int>(threadIdx.x) % 64;
    const MatrixView<const float>& numbers = threadIdx.x < 64 ? in.lse : in.delta;
    Ring ring = memory.ring(), own = memory.own_ring();
    for (int turn = 0;; ++turn) {
        const Tile tile = in.tile(turn);
        if (tile.tokens == 0) break;
        own.wait_empty();
        for (int p = 0; p < key_panels; ++p)
            key_strip(in, tile, p)
                .copy<block_rows>(memory.keys() + p * own_panel, tile.rank * block_rows, tile.tokens);
        for (int p = 0; p < value_panels; ++p)
            value_strip(in, tile, p)
                .copy<block_rows>(memory.values() + p * own_panel, tile.rank * block_rows, tile.tokens);
        arrive_after_copies(own.full());
        own.next();
        for (Index i = tile.rank * 2; i * rows < tile.tokens; ++i) {
            ring.wait_empty();
            for (int p = 0; p < key_panels; ++p)
                query_strip(in, tile, p).copy<rows>(memory.keys(ring.stage) + p * panel, i * rows, tile.tokens);
            for (int p = 0; p < value_panels; ++p)
                in.value_gradient_strip(tile, p)
                    .copy<rows>(memory.values(ring.stage) + p * panel, i * rows, tile.tokens);
            const bool exists = i * rows + thread < tile.tokens;
            copy_4(memory.rows(ring.stage) + threadIdx.x * 4,
                   numbers.row(tile.first + (exists ? i * rows + thread : 0)) + tile.head, exists);
            arrive_after_copies(ring.full());
            ring.next();
        }
    }
    finish_copies();
}

}  // namespace kimik3::gpu::attention
