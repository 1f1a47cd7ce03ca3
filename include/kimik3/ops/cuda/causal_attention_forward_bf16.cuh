#pragma once
// Causal attention forward on warpgroups: a block owns 128 queries and walks over tiles of 128 keys, from the one that
// holds its own tokens down to the first. The scores of a tile are computed while the values of the tile before are
// summed.

#include "kimik3/ops/cuda/causal_attention_tiles.cuh"

namespace kimik3::gpu::attention {

/// Shared memory: the queries, two stages of keys and of values, barriers, and for every value channel the first row of
/// the block's own tile in which it is not finite.
struct ForwardMemory {
    static constexpr int panel = block_rows * panel_row_bytes, keys = key_panels * panel, values = value_panels * panel;
    static constexpr int bytes = 3 * keys + 2 * values + 1024 + 128 + value_panels * panel_columns * 4;

    std::uint32_t base;

    __device__ std::uint32_t q() const { return base; }
    __device__ std::uint32_t k(int stage) const { return base + (1 + stage) * keys; }
    __device__ std::uint32_t v(int stage) const { return base + 3 * keys + stage * values; }
    __device__ std::uint32_t barriers() const { return base + 3 * keys + 2 * values; }
    __device__ std::uint32_t q_full() const { return barriers() + 64; }
    __device__ int* infinite() const { return static_cast<int*>(__cvta_shared_to_generic(barriers() + 128)); }
};

inline constexpr int finite_so_far = 1 << 20;

/// Zeros in place of values that are not finite in the rows that this thread has copied, noting the channels: a product
/// would take them to queries which do not see them.
__device__ inline void hide_infinite_values(const ForwardMemory& memory, int* infinite) {
    const int thread = static_cast<int>(threadIdx.x) % 128;
    for (int panel = 0; panel < value_panels; ++panel)
        for (int row = thread / 8; row < block_rows; row += 16) {
            const std::uint32_t at = piece(memory.v(0) + panel * ForwardMemory::panel, row, thread % 8);
            const uint4 eight = load_piece(at);
            const std::uint32_t pairs[4] = {eight.x, eight.y, eight.z, eight.w};
            for (int i = 0; i < 8; ++i) {
                const std::uint32_t exponent = pairs[i / 2] >> (i % 2 * 16 + 7) & 0xffu;
                if (exponent != 0xffu) continue;
                atomicMin(infinite + panel * panel_columns + thread % 8 * 8 + i, row);
                asm volatile("st.shared.u16 [%0], %1;" ::"r"(at + 2 * i), "h"(std::uint16_t{0}) : "memory");
            }
        }
}

__device__ inline void copy_forward_tiles(const Operands& in, const Tile& tile, const ForwardMemory& memory) {
    const Index block = tile.count - 1 - tile.rank;
    for (int p = 0; p < key_panels; ++p)
        query_strip(in, tile.first, p)
            .copy<block_rows>(memory.q() + p * ForwardMemory::panel, block * block_rows, tile.tokens);
    arrive_after_copies(memory.q_full());
    Strip keys[key_panels], values[value_panels];
    for (int p = 0; p < key_panels; ++p) keys[p] = key_strip(in, tile.first, p);
    for (int p = 0; p < value_panels; ++p) values[p] = value_strip(in, tile.first, p);
    Ring k(memory.barriers(), 2), v(memory.barriers() + 32, 2);
    for (Index j = block; j >= 0; --j) {
        k.wait_empty();
        for (int p = 0; p < key_panels; ++p)
            keys[p].copy<block_rows>(memory.k(k.stage) + p * ForwardMemory::panel, j * block_rows, tile.tokens);
        arrive_after_copies(k.full());
        k.next();
        v.wait_empty();
        for (int p = 0; p < value_panels; ++p)
            values[p].copy<block_rows>(memory.v(v.stage) + p * ForwardMemory::panel, j * block_rows, tile.tokens);
        if (j == block) {
            finish_copies();
            hide_infinite_values(memory, memory.infinite());
            arrive(v.full());
        } else {
            arrive_after_copies(v.full());
        }
        v.next();
    }
    finish_copies();
}

#ifdef KIMIK3_HAS_WARPGROUPS

/// The running softmax of a thread's two rows; a thread's total covers its own columns.
struct RunningRows {
    float highest[2] = {-INFINITY, -INFINITY}, total[2] = {0.0f, 0.0f}, fade[2];

    /// s = exp2(scale (s - highest)); fade: what sums over earlier keys are multiplied with.
    __device__ __forceinline__ void take(float (&s)[64], float scale) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            float now = highest[r];
#pragma unroll
            for (int j = 0; j < 16; ++j) now = fmaxf(now, fmaxf(s[4 * j + 2 * r], s[4 * j + 2 * r + 1]));
            now = fmaxf(now, __shfl_xor_sync(0xffffffffu, now, 1));
            now = fmaxf(now, __shfl_xor_sync(0xffffffffu, now, 2));
            fade[r] = exp2_fast((highest[r] - now) * scale);
            highest[r] = now;
            const float base = now * scale;
            float sum = 0.0f;
#pragma unroll
            for (int j = 0; j < 16; ++j)
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    float& score = s[4 * j + 2 * r + i];
                    score = exp2_fast(fmaf(score, scale, -base));
                    sum += score;
                }
            total[r] = total[r] * fade[r] + sum;
        }
    }
    __device__ __forceinline__ void finish() {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            total[r] += __shfl_xor_sync(0xffffffffu, total[r], 1);
            total[r] += __shfl_xor_sync(0xffffffffu, total[r], 2);
        }
    }
};

__device__ inline void attend(const Operands& in, const Tile& tile, const ForwardMemory& memory, float scale,
                              MatrixView<bf16> o, MatrixView<float> lse) {
    constexpr int panel = ForwardMemory::panel;
    const Index block = tile.count - 1 - tile.rank;
    const Place at;
    const int lane = at.lane, row = at.row;
    const std::uint32_t q = memory.q() + at.part * 64 * panel_row_bytes;
    const float scale2 = scale * 1.4426950408889634f;
    Ring k(memory.barriers(), 2), v(memory.barriers() + 32, 2);
    float sums[64], s[64];
    std::uint32_t p[8][4];
    RunningRows rows;
#pragma unroll
    for (float& sum : sums) sum = 0.0f;

    wait(memory.q_full(), 0);
    k.wait_full();
    begin_products();
    multiply_panels<key_panels>(s, q, panel, memory.k(k.stage), panel);
    commit_products();
    wait_for_products<0>();
    pin(s);
    k.release();
    k.next();
#pragma unroll
    for (int j = 0; j < 16; ++j)
#pragma unroll
        for (int i = 0; i < 4; ++i)
            if (8 * j + lane % 4 * 2 + i % 2 > row + i / 2 * 8) s[4 * j + i] = -INFINITY;
    rows.take(s, scale2);
#pragma unroll
    for (int step = 0; step < 8; ++step) pack_step(p[step], s, step);

    for (Index j = block; j > 0; --j) {
        k.wait_full();
        begin_products();
        multiply_panels<key_panels>(s, q, panel, memory.k(k.stage), panel);
        commit_products();
        v.wait_full();
        begin_products();
        add_product(sums, p, memory.v(v.stage), panel);
        commit_products();
        wait_for_products<1>();
        pin(s);
        k.release();
        k.next();
        rows.take(s, scale2);
        wait_for_products<0>();
        pin(sums);
#pragma unroll
        for (int step = 0; step < 8; ++step) pin(p[step]);
        v.release();
        v.next();
#pragma unroll
        for (int e = 0; e < 64; ++e) sums[e] *= rows.fade[e / 2 % 2];
#pragma unroll
        for (int step = 0; step < 8; ++step) pack_step(p[step], s, step);
    }
    v.wait_full();
    begin_products();
    add_product(sums, p, memory.v(v.stage), panel);
    commit_products();
    rows.finish();
    wait_for_products<0>();
    pin(sums);

    const int* infinite = memory.infinite();
    const Index h = in.head(), top = block * block_rows, end = tile.tokens - top;
#pragma unroll
    for (int e = 0; e < 64; ++e)
        if (row + e / 2 % 2 * 8 >= infinite[e / 4 * 8 + lane % 4 * 2 + e % 2]) sums[e] = NAN;
    meet_warpgroup();
    store_tile(sums, memory.q(), panel, row, 1.0f / rows.total[0], 1.0f / rows.total[1]);
    __syncwarp();
    write_rows<value_panels>(memory.q(), panel, at.warp_row,
                             o.row(tile.first + top + at.warp_row) + h * in.heads.value, o.stride, in.heads.value,
                             end - at.warp_row);
    if (lane % 4 == 0)
#pragma unroll
        for (int r = 0; r < 2; ++r)
            if (row + 8 * r < end)
                lse(tile.first + top + row + 8 * r, h) = rows.highest[r] * scale + logf(rows.total[r]);
}

#endif  // KIMIK3_HAS_WARPGROUPS

__global__ void __launch_bounds__(threads, 1)
    forward_kernel(const __grid_constant__ Operands in, float scale, MatrixView<bf16> o, MatrixView<float> lse) {
#ifdef KIMIK3_HAS_WARPGROUPS
    const ForwardMemory memory{aligned_memory()};
    const Tile tile = in.tile();
    if (threadIdx.x == 0) {
        Ring(memory.barriers(), 2).start();
        Ring(memory.barriers() + 32, 2).start();
        start_barrier(memory.q_full(), 128);
    }
    if (threadIdx.x < value_panels * panel_columns) memory.infinite()[threadIdx.x] = finite_so_far;
    __syncthreads();
    if (threadIdx.x < 128) {
        give_registers<40>();
        copy_forward_tiles(in, tile, memory);
    } else {
        take_registers<232>();
        attend(in, tile, memory, scale, o, lse);
    }
#endif
}

inline bool forward_suits(const MlaHeads& heads, std::initializer_list<MatrixView<const bf16>> matrices) {
    static const bool prepared = prepare(forward_kernel, ForwardMemory::bytes);
    return prepared && fits(heads) && std::ranges::all_of(matrices, in_pieces);
}

inline void launch_forward(const Context<Cuda>& ctx, const Sequences& seq, const MlaHeads& heads,
                           MatrixView<const bf16> q, MatrixView<const bf16> kv, MatrixView<const bf16> k_shared,
                           MatrixView<bf16> o, MatrixView<float> lse) {
    if (seq.tokens() == 0) return;
    const std::vector<Tile> tiles = list_tiles(seq, heads);
    const Operands in{heads, ctx.on_device(std::span<const Tile>(tiles)), q, kv, k_shared};
    forward_kernel<<<exact_grid(static_cast<Index>(tiles.size()) * heads.count), threads, ForwardMemory::bytes,
                     ctx.stream()>>>(in, static_cast<float>(heads.scale()), o, lse);
    check_launch();
}

}  // namespace kimik3::gpu::attention
