#pragma once
// Causal attention forward on warpgroups: a block owns 128 queries and walks over tiles of 128 keys, from that which
// holds its own tokens down to the first. The scores of a tile are computed while the values of the tile before are
// summed.

#include "kimik3/ops/cuda/causal_attention_tiles.cuh"

namespace kimik3::gpu::attention {

/// Shared memory: the queries, two stages of keys and of values, barriers, and for every value channel the first row of
/// the block's own tile in which it is not finite.
struct ForwardMemory {
    static constexpr int panel = block_rows * panel_row_bytes, keys = key_panels * panel, values = value_panels * panel;
    static constexpr int all_channels = value_panels * panel_columns;
    static constexpr int bytes = 3 * keys + 2 * values + 1024 + 128 + 2 * (all_channels + 1) * 4;

    std::uint32_t base;

    __device__ std::uint32_t q() const { return base; }
    __device__ std::uint32_t k(int stage) const { return base + (1 + stage) * keys; }
    __device__ std::uint32_t v(int stage) const { return base + 3 * keys + stage * values; }
    __device__ std::uint32_t barriers() const { return base + 3 * keys + 2 * values; }
    __device__ Ring k_ring() const { return {barriers(), 2}; }
    __device__ Ring v_ring() const { return {barriers() + 32, 2}; }
    __device__ Ring q_ring() const { return {barriers() + 64, 1}; }
    /// For every other turn; behind the channels, the least of all.
    __device__ int* infinite(int turn) const {
        return static_cast<int*>(__cvta_shared_to_generic(barriers() + 128)) + turn % 2 * (all_channels + 1);
    }
};

inline constexpr int finite_so_far = 1 << 20;

/// Zeros in place of values that are not finite in the rows that this thread has copied, noting the channels: a product
/// would take them to queries which do not see them.
__device__ inline void hide_infinite_values(std::uint32_t values, int* infinite) {
    const int thread = static_cast<int>(threadIdx.x) % 128;
#pragma unroll 4
    for (int i = 0; i < value_panels * block_rows / 16; ++i) {
        const int panel = i % value_panels, row = thread / 8 + i / value_panels * 16;
        const std::uint32_t at = values + panel * ForwardMemory::panel + operand_bytes(row, thread % 8);
        const uint4 eight = load_piece(at);
        const std::uint32_t pairs[4] = {eight.x, eight.y, eight.z, eight.w};
        std::uint32_t full = 0;  // exponents of ones carry into the sign's place
#pragma unroll
        for (const std::uint32_t pair : pairs) full |= (pair & 0x7f807f80u) + 0x00800080u;
        if ((full & 0x80008000u) == 0) continue;
        for (int c = 0; c < 8; ++c) {
            if ((pairs[c / 2] >> (c % 2 * 16) & 0x7f80u) != 0x7f80u) continue;
            atomicMin(infinite + panel * panel_columns + thread % 8 * 8 + c, row);
            atomicMin(infinite + ForwardMemory::all_channels, row);
            asm volatile("st.shared.u16 [%0], %1;" ::"r"(at + 2 * c), "h"(std::uint16_t{0}) : "memory");
        }
    }
}

__device__ inline void copy_forward_tiles(const Operands& in, const ForwardMemory& memory) {
    constexpr int panel = ForwardMemory::panel;
    Ring q = memory.q_ring(), k = memory.k_ring(), v = memory.v_ring();
    for (int turn = 0;; ++turn) {
        const Tile tile = in.tile(turn);
        if (tile.tokens == 0) break;
        const Index block = tile.heaviest_last();
        int* infinite = memory.infinite(turn);
        q.wait_empty();
        for (int p = 0; p < key_panels; ++p)
            query_strip(in, tile, p).copy<block_rows>(memory.q() + p * panel, block * block_rows, tile.tokens);
        arrive_after_copies(q.full());
        q.next();
        for (int c = threadIdx.x; c <= memory.all_channels; c += 128) infinite[c] = finite_so_far;
        meet_warpgroup();
        const auto copy_keys = [&](Index j) {
            k.wait_empty();
            for (int p = 0; p < key_panels; ++p)
                key_strip(in, tile, p).copy<block_rows>(memory.k(k.stage) + p * panel, j * block_rows, tile.tokens);
            arrive_after_copies(k.full());
            k.next();
            commit_copies();
        };
        const auto copy_values = [&](Index j) {
            v.wait_empty();
            for (int p = 0; p < value_panels; ++p)
                value_strip(in, tile, p).copy<block_rows>(memory.v(v.stage) + p * panel, j * block_rows, tile.tokens);
            commit_copies();
        };
        copy_keys(block);
        copy_values(block);
        if (block > 0) copy_keys(block - 1), wait_for_copies<1>();
        else wait_for_copies<0>();
        hide_infinite_values(memory.v(v.stage), infinite);
        arrive(v.full());
        v.next();
        for (Index j = block - 1; j >= 0; --j) {
            copy_values(j);
            arrive_after_copies(v.full());
            v.next();
            if (j > 0) copy_keys(j - 1);
        }
    }
    finish_copies();
}

#if KIMIK3_WARPGROUPS

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
            fade[r] = quick_exp2((highest[r] - now) * scale);
            highest[r] = now;
            const float base = now * scale;
            float sum = 0.0f;
#pragma unroll
            for (int j = 0; j < 16; ++j)
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    float& score = s[4 * j + 2 * r + i];
                    score = quick_exp2(fmaf(score, scale, -base));
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

__device__ inline void attend(const Operands& in, const ForwardMemory& memory, float scale, MatrixView<bf16> o,
                              MatrixView<float> lse) {
    constexpr int panel = ForwardMemory::panel;
    const Place at;
    const int lane = at.lane, row = at.row;
    const std::uint32_t queries = memory.q() + at.part * 64 * panel_row_bytes;
    const float scale2 = scale * 1.4426950408889634f;
    Ring q = memory.q_ring(), k = memory.k_ring(), v = memory.v_ring();
    float sums[64], s[64];
    std::uint32_t p[8][4];
    Tile tile = in.tile(0), next;
    for (int turn = 0; tile.tokens > 0; ++turn, tile = next) {
        next = in.tile(turn + 1);
        const int tiles = static_cast<int>(tile.heaviest_last()) + 1;
        RunningRows rows;
#pragma unroll
        for (float& sum : sums) sum = 0.0f;
        q.wait_full();
        k.wait_full();
        begin_products();
        multiply_panels<key_panels>(s, queries, panel, memory.k(k.stage), panel);
        commit_products();
        wait_for_products<0>();
        pin(s);
        k.release();
        k.next();
        if (tiles == 1) q.release();
#pragma unroll
        for (int j = 0; j < 16; ++j)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                if (8 * j + lane % 4 * 2 + i % 2 > row + i / 2 * 8) s[4 * j + i] = -INFINITY;
        rows.take(s, scale2);
#pragma unroll
        for (int step = 0; step < 8; ++step) pack_step(p[step], s, step);

        for (int left = tiles - 1; left > 0; --left) {
            k.wait_full();
            begin_products();
            multiply_panels<key_panels>(s, queries, panel, memory.k(k.stage), panel);
            commit_products();
            v.wait_full();
            begin_products();
            add_product(sums, p, memory.v(v.stage), panel);
            commit_products();
            wait_for_products<1>();
            pin(s);
            k.release();
            k.next();
            if (left == 1) q.release();
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
        q.next();
        v.wait_full();
        begin_products();
        add_product(sums, p, memory.v(v.stage), panel);
        commit_products();
        rows.finish();
        wait_for_products<0>();
        pin(sums);
        v.release();
        v.next();

        const int* infinite = memory.infinite(turn);
        const Index top = tile.heaviest_last() * block_rows, end = tile.tokens - top;
        if (infinite[memory.all_channels] != finite_so_far)
#pragma unroll
            for (int e = 0; e < 64; ++e)
                if (row + e / 2 % 2 * 8 >= infinite[e / 4 * 8 + lane % 4 * 2 + e % 2]) sums[e] = NAN;
        write_tile(sums, 1.0f / rows.total[0], 1.0f / rows.total[1],
                   o.row(tile.first + top + at.warp_row) + tile.head * in.heads.value, o.stride, in.heads.value,
                   end - at.warp_row);
        if (lane % 4 == 0)
#pragma unroll
            for (int r = 0; r < 2; ++r)
                if (row + 8 * r < end)
                    lse(tile.first + top + row + 8 * r, tile.head) = rows.highest[r] * scale + logf(rows.total[r]);
    }
}

#endif  // KIMIK3_WARPGROUPS

template <class T>
__global__ void __launch_bounds__(threads, 1)
    forward_kernel(const __grid_constant__ Operands in, float scale, MatrixView<T> o, MatrixView<float> lse) {
#if KIMIK3_WARPGROUPS
    begin_in_turn();
    const ForwardMemory memory{aligned_memory()};
    if (threadIdx.x == 0) memory.k_ring().start(128, 8), memory.v_ring().start(128, 8), memory.q_ring().start(128, 8);
    __syncthreads();
    if (threadIdx.x < 128) {
        give_registers<40>();
        copy_forward_tiles(in, memory);
    } else {
        take_registers<232>();
        attend(in, memory, scale, o, lse);
    }
#endif
}

inline bool forward_suits(const MlaHeads& heads, std::initializer_list<MatrixView<const bf16>> matrices) {
    static OfEachGpu<bool> prepared;
    return prepared.of_current([] { return prepare(forward_kernel<bf16>, ForwardMemory::bytes); }) && fits(heads) &&
           std::ranges::all_of(matrices, in_pieces);
}

inline void launch_forward(const Context<Cuda>& ctx, const Sequences& seq, const MlaHeads& heads,
                           MatrixView<const bf16> q, MatrixView<const bf16> kv, MatrixView<const bf16> k_shared,
                           MatrixView<bf16> o, MatrixView<float> lse) {
    if (seq.tokens() == 0) return;
    const Schedule& schedule = schedule_of(seq, heads);
    const Operands in{heads, ctx.on_device(std::span<const Tile>(schedule.tiles)), q, kv, k_shared};
    launch_early(ctx, schedule.blocks, threads, ForwardMemory::bytes, forward_kernel<bf16>, in,
                 static_cast<float>(heads.scale()), o, lse);
}

}  // namespace kimik3::gpu::attention
