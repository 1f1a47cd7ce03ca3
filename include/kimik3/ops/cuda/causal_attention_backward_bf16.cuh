#pragma once
// Causal attention backward on warpgroups, in two kernels that each keep all their sums in registers, so that nothing
// is added in memory: a block owns 128 queries and walks over tiles of 64 keys (dq), or owns 128 keys and walks over
// tiles of 64 queries (dk, dv), where scores stand transposed. P and dS pass from one product to the next in
// registers. dS is kept without the scale, which dq and dk get at the end.

#include "kimik3/ops/cuda/causal_attention_backward_tiles.cuh"

namespace kimik3::gpu::attention {

#if KIMIK3_WARPGROUPS

/// Leaves a copy of the queries in kept, where dq may take their place.
__device__ inline void compute_dq(const BackwardOperands& in, const BackwardMemory& memory, MatrixView<bf16> dq,
                                  MatrixView<bf16> kept) {
    constexpr int own_panel = BackwardMemory::own_panel, panel = BackwardMemory::panel;
    const Place at;
    const std::uint32_t q = memory.keys() + at.part * 64 * panel_row_bytes,
                        d_o = memory.values() + at.part * 64 * panel_row_bytes;
    const float scale2 = in.scale * log2_e;
    const int own_row = at.row - at.part * 64, column = at.lane % 4 * 2;
    Ring ring = memory.ring(), done = memory.ring(), own = memory.own_ring();
    Tile tile = in.tile(0), next;
    for (int turn = 0; tile.tokens > 0; ++turn, tile = next) {
        next = in.tile(turn + 1);
        const int top = static_cast<int>(tile.heaviest_last()) * block_rows, end = tile.tokens - top - at.warp_row;
        const Index first = tile.first + top + at.warp_row;
        float lse2[2], delta[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int row = at.lane / 4 + 8 * r;
            lse2[r] = row < end ? in.lse(first + row, tile.head) * log2_e : 0.0f;
            delta[r] = row < end ? in.delta(first + row, tile.head) : 0.0f;
        }
        float sums[96], s[32], slope[32];
        std::uint32_t ds[4][4];
#pragma unroll
        for (float& sum : sums) sum = 0.0f;
        own.wait_full();
        write_rows<key_panels>(memory.keys(), own_panel, at.warp_row, kept.row(first) + tile.head * in.heads.key(),
                               kept.stride, in.heads.key(), end);
        bool pending = false;
        for (int j = last_key_tile(tile); j >= 0; --j, ring.next()) {
            const int before = j * 64 - top - at.part * 64;  // keys of the tile behind the first query
            ring.wait_full();
            if (before > 0) {  // seen by none of these queries
                ring.release();
                done.next();
                continue;
            }
            begin_products();
            multiply_panels<key_panels>(s, q, own_panel, memory.keys(ring.stage), panel);
            commit_products();
            multiply_panels<value_panels>(slope, d_o, own_panel, memory.values(ring.stage), panel);
            commit_products();
            wait_for_products<1>();
            pin(s);
#pragma unroll
            for (int step = 0; step < 4; ++step) pin(ds[step]);
            if (pending) done.release(), done.next();
            pending = true;
#pragma unroll
            for (int e = 0; e < 32; ++e) s[e] = quick_exp2(fmaf(s[e], scale2, -lse2[e / 2 % 2]));
            if (before == 0)
#pragma unroll
                for (int e = 0; e < 32; ++e)
                    if (e / 4 * 8 + column + e % 2 > own_row + e / 2 % 2 * 8) s[e] = 0.0f;
            wait_for_products<0>();
            pin(slope);
            if (j == 0) own.release();
#pragma unroll
            for (int e = 0; e < 32; ++e) s[e] *= slope[e] - delta[e / 2 % 2];
#pragma unroll
            for (int step = 0; step < 4; ++step) pack_step(ds[step], s, step);
            begin_products();
            add_product(sums, ds, memory.keys(ring.stage), panel);
            commit_products();
        }
        own.next();
        wait_for_products<0>();
        pin(sums);
        done.release(), done.next();
        write_tile(sums, in.scale, in.scale, dq.row(first) + tile.head * in.heads.key(), dq.stride, in.heads.key(),
                   end);
    }
}

/// shares [H, rows, r]: each head's part of dk_shared.
__device__ inline void compute_dkv(const BackwardOperands& in, const BackwardMemory& memory, MatrixView<bf16> dkv,
                                   float* shares, Index rows) {
    constexpr int own_panel = BackwardMemory::own_panel, panel = BackwardMemory::panel;
    const Place at;
    const std::uint32_t k = memory.keys() + at.part * 64 * panel_row_bytes,
                        v = memory.values() + at.part * 64 * panel_row_bytes;
    const float scale2 = in.scale * log2_e;
    const int column = at.lane % 4 * 2, own_row = at.row - at.part * 64;
    Ring ring = memory.ring(), own = memory.own_ring();
    for (int turn = 0;; ++turn) {
        int left = 0;  // tiles of 64 queries that see these keys
        {
            const Tile tile = in.tile(turn);
            if (tile.tokens == 0) break;
            left = (tile.tokens + 63) / 64 - tile.rank * 2 - at.part;
        }
        own.wait_full();
        ring.wait_full();
        if (at.part == 1) {  // the first tile sees none of these keys
            ring.release();
            ring.next();
            if (left == 0) {  // none of these keys exists
                own.release();
                own.next();
                continue;
            }
            ring.wait_full();
        }
        float dk[96], dv[64], s[32], slope[32];
        std::uint32_t p[4][4];  // then dS
#pragma unroll
        for (float& sum : dk) sum = 0.0f;
#pragma unroll
        for (float& sum : dv) sum = 0.0f;
        bool first = true;
        int stage = ring.stage;
        begin_products();
        multiply_panels<key_panels>(s, k, own_panel, memory.keys(stage), panel);
        commit_products();
        wait_for_products<0>();
        pin(s);
        while (true) {
#pragma unroll
            for (int e = 0; e < 32; e += 4) {
                const float2 lse = load_floats(memory.rows(stage) + (e * 2 + column) * 4);
#pragma unroll
                for (int n = 0; n < 4; ++n)
                    s[e + n] = quick_exp2(fmaf(s[e + n], scale2, -log2_e * (n % 2 == 0 ? lse.x : lse.y)));
            }
            if (first) {
#pragma unroll
                for (int e = 0; e < 32; ++e)
                    if (e / 4 * 8 + column + e % 2 < own_row + e / 2 % 2 * 8) s[e] = 0.0f;
                first = false;
            }
#pragma unroll
            for (int step = 0; step < 4; ++step) pack_step(p[step], s, step);
            begin_products();
            multiply_panels<value_panels>(slope, v, own_panel, memory.values(stage), panel);
            commit_products();
            add_product(dv, p, memory.values(stage), panel);
            commit_products();
            wait_for_products<0>();
            pin(slope);
            pin(dv);
#pragma unroll
            for (int step = 0; step < 4; ++step) pin(p[step]);
            if (left == 1) own.release();
#pragma unroll
            for (int step = 0; step < 4; ++step)
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const float2 delta = load_floats(memory.rows(stage) + (64 + 16 * step + 8 * half + column) * 4);
#pragma unroll
                    for (int r = 0; r < 2; ++r) {
                        const int e = 8 * step + 4 * half + 2 * r;
                        const float2 weight = unpack_bf16(p[step][2 * half + r]);
                        p[step][2 * half + r] =
                            pack_bf16(weight.x * (slope[e] - delta.x), weight.y * (slope[e + 1] - delta.y));
                    }
                }
            begin_products();
            add_product(dk, p, memory.keys(stage), panel);
            commit_products();
            if (--left == 0) break;
            const std::uint32_t done = ring.empty();
            ring.next();
            stage = ring.stage;
            ring.wait_full();
            begin_products();
            multiply_panels<key_panels>(s, k, own_panel, memory.keys(stage), panel);
            commit_products();
            wait_for_products<0>();
            pin(s);
            pin(dk);
#pragma unroll
            for (int step = 0; step < 4; ++step) pin(p[step]);
            Ring::release(done);
        }
        own.next();
        wait_for_products<0>();
        pin(dk);
        ring.release();
        ring.next();

        const Tile tile = in.tile(turn);
        const Index row = tile.first + tile.rank * block_rows + at.warp_row, nope = in.heads.nope;
        const int end = tile.tokens - tile.rank * block_rows - at.warp_row;
        bf16* to = dkv.row(row) + tile.head * (nope + in.heads.value);
        write_tile(dk, in.scale, in.scale, to, dkv.stride, nope, end);
        write_tile(dv, 1.0f, 1.0f, to + nope, dkv.stride, in.heads.value, end);
        float* share = shares + (tile.head * rows + row + at.lane / 4) * in.heads.shared;
#pragma unroll
        for (int j = 0; j < 24; ++j) {
            const Index c = 8 * j + column - nope;
            if (c < 0 || c >= in.heads.shared) continue;
#pragma unroll
            for (int r = 0; r < 2; ++r)
                if (at.lane / 4 + 8 * r < end)
                    *reinterpret_cast<float2*>(share + 8 * r * in.heads.shared + c) =
                        make_float2(dk[4 * j + 2 * r] * in.scale, dk[4 * j + 2 * r + 1] * in.scale);
        }
    }
}

#endif  // KIMIK3_WARPGROUPS

template <class T>
__global__ void __launch_bounds__(threads, 1)
    dq_kernel(const __grid_constant__ BackwardOperands in, MatrixView<T> dq, MatrixView<T> kept) {
#if KIMIK3_WARPGROUPS
    begin_in_turn();
    const BackwardMemory memory{aligned_memory()};
    if (threadIdx.x == 0) memory.ring().start(128, 8), memory.own_ring().start(128, 8);
    __syncthreads();
    if (threadIdx.x < 128) {
        give_registers<40>();
        copy_dq_tiles(in, memory);
    } else {
        take_registers<232>();
        compute_dq(in, memory, dq, kept);
    }
#endif
}

template <class T>
__global__ void __launch_bounds__(threads, 1)
    dkv_kernel(const __grid_constant__ BackwardOperands in, MatrixView<T> dkv, float* shares, Index rows) {
#if KIMIK3_WARPGROUPS
    begin_in_turn();
    const BackwardMemory memory{aligned_memory()};
    if (threadIdx.x == 0) memory.ring().start(128, 8), memory.own_ring().start(128, 8);
    __syncthreads();
    if (threadIdx.x < 128) {
        give_registers<24>();
        copy_dkv_tiles(in, memory);
    } else {
        take_registers<240>();
        compute_dkv(in, memory, dkv, shares, rows);
    }
#endif
}

/// delta [rows, H] = do . o, by 16 threads a head.
template <class T>
__global__ void delta_kernel(Index rows, MlaHeads heads, MatrixView<const T> d_o, MatrixView<const T> o,
                             MatrixView<float> delta) {
    begin_in_turn();
    const Index at = (Index{blockIdx.x} * blockDim.x + threadIdx.x) / 16, n = at / heads.count, h = at % heads.count;
    const int c = static_cast<int>(threadIdx.x % 16) * 8;
    float sum = 0.0f;
    if (n < rows && c < heads.value) {
        const uint4 left = *reinterpret_cast<const uint4*>(d_o.row(n) + h * heads.value + c),
                    right = *reinterpret_cast<const uint4*>(o.row(n) + h * heads.value + c);
        const std::uint32_t a[4] = {left.x, left.y, left.z, left.w}, b[4] = {right.x, right.y, right.z, right.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float2 one = unpack_bf16(a[i]), two = unpack_bf16(b[i]);
            sum += one.x * two.x + one.y * two.y;
        }
    }
    for (int apart = 8; apart > 0; apart /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, apart);
    if (n < rows && c == 0) delta(n, h) = sum;
}

/// dk_shared [rows, r] = the sum of shares [H, rows, r] over heads.
template <class T>
__global__ void shared_sum_kernel(Index rows, MlaHeads heads, const float* shares, MatrixView<T> dk_shared) {
    begin_in_turn();
    const Index at = (Index{blockIdx.x} * blockDim.x + threadIdx.x) * 4, width = heads.shared, n = at / width;
    if (n >= rows) return;
    float4 sum = {0.0f, 0.0f, 0.0f, 0.0f};
    for (Index h = 0; h < heads.count; ++h) {
        const float4 share = *reinterpret_cast<const float4*>(shares + h * rows * width + at);
        sum.x += share.x, sum.y += share.y, sum.z += share.z, sum.w += share.w;
    }
    *reinterpret_cast<uint2*>(dk_shared.row(n) + at % width) = {pack_bf16(sum.x, sum.y), pack_bf16(sum.z, sum.w)};
}

inline bool backward_suits(const MlaHeads& heads, std::initializer_list<MatrixView<const bf16>> matrices) {
    static OfEachGpu<bool> prepared;
    const auto ask = [] {
        return prepare(dq_kernel<bf16>, BackwardMemory::bytes) && prepare(dkv_kernel<bf16>, BackwardMemory::bytes);
    };
    return prepared.of_current(ask) && fits(heads) && std::ranges::all_of(matrices, in_pieces);
}

inline void launch_backward(const Context<Cuda>& ctx, const Sequences& seq, const MlaHeads& heads,
                            MatrixView<const bf16> d_o, MatrixView<const bf16> q, MatrixView<const bf16> kv,
                            MatrixView<const bf16> k_shared, MatrixView<const bf16> o, MatrixView<const float> lse,
                            MatrixView<bf16> dq, MatrixView<bf16> dkv, MatrixView<bf16> dk_shared) {
    const Index rows = seq.tokens(), shares_size = heads.count * rows * heads.shared;
    if (rows == 0) return;
    const Schedule& schedule = schedule_of(seq, heads);
    float* memory = ctx.workspace<float>(Scratch::operation,
                                         shares_size + round_up(rows * heads.count, 4) + (rows * q.cols + 1) / 2);
    float* shares = memory;
    const MatrixView<float> delta(shares + shares_size, rows, heads.count);
    const MatrixView<bf16> kept(reinterpret_cast<bf16*>(delta.data + round_up(rows * heads.count, 4)), rows, q.cols);
    BackwardOperands in{{heads, ctx.on_device(std::span<const Tile>(schedule.tiles)), q, kv, k_shared},
                        d_o, lse, delta, static_cast<float>(heads.scale())};
    launch_early(ctx, ceil_div(rows * heads.count, 16), 256, 0, delta_kernel<bf16>, rows, heads, d_o, o, delta);
    launch_early(ctx, schedule.blocks, threads, BackwardMemory::bytes, dq_kernel<bf16>, in, dq, kept);
    in.q = kept;
    launch_early(ctx, schedule.blocks, threads, BackwardMemory::bytes, dkv_kernel<bf16>, in, dkv, shares, rows);
    launch_early(ctx, ceil_div(rows * heads.shared, 1024), 256, 0, shared_sum_kernel<bf16>, rows, heads, shares,
                 dk_shared);
}

}  // namespace kimik3::gpu::attention
