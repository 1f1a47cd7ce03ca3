#pragma once
// Causal attention backward on warpgroups, in two kernels that each keep all their sums in registers, so that nothing
// is added in memory: a block owns 128 queries and walks over tiles of 64 keys (dq), or owns 128 keys and walks over
// tiles of 64 queries (dk, dv), where scores stand transposed. P and dS pass from one product to the next in
// registers. dS is kept without the scale, which dq and dk get at the end.

#include "kimik3/ops/cuda/causal_attention_tiles.cuh"

namespace kimik3::gpu::attention {

/// Shared memory of both: the block's own rows (q and do, or k and v) and stages of the tiles that it walks over, with
/// the lse and delta of 64 queries.
struct BackwardMemory {
    static constexpr int stages = 3, tile_rows = 64;
    static constexpr int own_panel = block_rows * panel_row_bytes, panel = tile_rows * panel_row_bytes;
    static constexpr int own = (key_panels + value_panels) * own_panel, stage_bytes = (key_panels + value_panels) * panel;
    static constexpr int bytes = own + stages * (stage_bytes + 2 * tile_rows * 4) + 1024 + 128;

    std::uint32_t base;

    __device__ std::uint32_t keys() const { return base; }
    __device__ std::uint32_t values() const { return base + key_panels * own_panel; }
    __device__ std::uint32_t keys(int stage) const { return base + own + stage * stage_bytes; }
    __device__ std::uint32_t values(int stage) const { return keys(stage) + key_panels * panel; }
    __device__ std::uint32_t rows(int stage) const { return base + own + stages * stage_bytes + stage * 2 * tile_rows * 4; }
    __device__ std::uint32_t barriers() const { return base + own + stages * (stage_bytes + 2 * tile_rows * 4); }
    __device__ std::uint32_t own_full() const { return barriers() + 64; }
    __device__ Ring ring() const { return {barriers(), stages}; }
    __device__ void start() const {
        ring().start();
        start_barrier(own_full(), 128);
    }
};

struct BackwardOperands : Operands {
    MatrixView<const bf16> d_o;
    MatrixView<const float> lse, delta;
    float scale;

    __device__ Strip value_gradient_strip(Index first, int panel) const {
        return strip(d_o, first, head() * heads.value, heads.value, panel);
    }
};

inline constexpr float log2_e = 1.4426950408889634f;

/// The first tile of 64 keys that a block of queries walks over, down to tile 0.
__device__ __forceinline__ Index last_key_tile(const Tile& tile, Index block) {
    const Index end = (block + 1) * block_rows < tile.tokens ? (block + 1) * block_rows : tile.tokens;
    return (end - 1) / BackwardMemory::tile_rows;
}

__device__ inline void copy_dq_tiles(const BackwardOperands& in, const Tile& tile, const BackwardMemory& memory) {
    const Index block = tile.count - 1 - tile.rank;
    for (int p = 0; p < key_panels; ++p)
        query_strip(in, tile.first, p)
            .copy<block_rows>(memory.keys() + p * memory.own_panel, block * block_rows, tile.tokens);
    for (int p = 0; p < value_panels; ++p)
        in.value_gradient_strip(tile.first, p)
            .copy<block_rows>(memory.values() + p * memory.own_panel, block * block_rows, tile.tokens);
    arrive_after_copies(memory.own_full());
    Strip keys[key_panels], values[value_panels];
    for (int p = 0; p < key_panels; ++p) keys[p] = key_strip(in, tile.first, p);
    for (int p = 0; p < value_panels; ++p) values[p] = value_strip(in, tile.first, p);
    Ring ring = memory.ring();
    for (Index j = last_key_tile(tile, block); j >= 0; --j) {
        ring.wait_empty();
        for (int p = 0; p < key_panels; ++p)
            keys[p].copy<memory.tile_rows>(memory.keys(ring.stage) + p * memory.panel, j * 64, tile.tokens);
        for (int p = 0; p < value_panels; ++p)
            values[p].copy<memory.tile_rows>(memory.values(ring.stage) + p * memory.panel, j * 64, tile.tokens);
        arrive_after_copies(ring.full());
        ring.next();
    }
    finish_copies();
}

__device__ inline void copy_dkv_tiles(const BackwardOperands& in, const Tile& tile, const BackwardMemory& memory) {
    for (int p = 0; p < key_panels; ++p)
        key_strip(in, tile.first, p)
            .copy<block_rows>(memory.keys() + p * memory.own_panel, tile.rank * block_rows, tile.tokens);
    for (int p = 0; p < value_panels; ++p)
        value_strip(in, tile.first, p)
            .copy<block_rows>(memory.values() + p * memory.own_panel, tile.rank * block_rows, tile.tokens);
    arrive_after_copies(memory.own_full());
    const int thread = static_cast<int>(threadIdx.x) % 64;
    const MatrixView<const float>& rows = threadIdx.x < 64 ? in.lse : in.delta;
    Ring ring = memory.ring();
    for (Index i = tile.rank * 2; i * 64 < tile.tokens; ++i) {
        ring.wait_empty();
        for (int p = 0; p < key_panels; ++p)
            query_strip(in, tile.first, p)
                .copy<memory.tile_rows>(memory.keys(ring.stage) + p * memory.panel, i * 64, tile.tokens);
        for (int p = 0; p < value_panels; ++p)
            in.value_gradient_strip(tile.first, p)
                .copy<memory.tile_rows>(memory.values(ring.stage) + p * memory.panel, i * 64, tile.tokens);
        const bool exists = i * 64 + thread < tile.tokens;
        copy_4(memory.rows(ring.stage) + threadIdx.x * 4,
               rows.row(tile.first + (exists ? i * 64 + thread : 0)) + in.head(), exists);
        arrive_after_copies(ring.full());
        ring.next();
    }
    finish_copies();
}

#ifdef KIMIK3_HAS_WARPGROUPS

/// Leaves a copy of the queries in kept, where dq may take their place.
__device__ inline void compute_dq(const BackwardOperands& in, const Tile& tile, const BackwardMemory& memory,
                                  MatrixView<bf16> dq, MatrixView<bf16> kept) {
    const Index block = tile.count - 1 - tile.rank, top = block * block_rows, h = in.head();
    const Place at;
    const std::uint32_t q = memory.keys() + at.part * 64 * panel_row_bytes,
                        d_o = memory.values() + at.part * 64 * panel_row_bytes;
    const int end = static_cast<int>(tile.tokens - top < block_rows ? tile.tokens - top : block_rows);
    const float scale2 = in.scale * log2_e;
    float lse2[2], delta[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const int row = at.row + 8 * r;
        lse2[r] = row < end ? in.lse(tile.first + top + row, h) * log2_e : 0.0f;
        delta[r] = row < end ? in.delta(tile.first + top + row, h) : 0.0f;
    }
    float sums[96], s[32], slope[32];
    std::uint32_t ds[4][4];
#pragma unroll
    for (float& sum : sums) sum = 0.0f;
    Ring ring = memory.ring(), done = memory.ring();
    wait(memory.own_full(), 0);
    show_to_products();
    write_rows<key_panels>(memory.keys(), memory.own_panel, at.warp_row,
                           kept.row(tile.first + top + at.warp_row) + h * in.heads.key(), kept.stride, in.heads.key(),
                           end - at.warp_row);

    bool pending = false;
    for (Index j = last_key_tile(tile, block); j >= 0; --j, ring.next()) {
        const int before = static_cast<int>(j * 64 - top) - at.part * 64;  // keys of the tile behind the first query
        ring.wait_full();
        if (before > 0) {  // seen by none of these queries
            ring.release();
            done.next();
            continue;
        }
        begin_products();
        multiply_panels<key_panels>(s, q, memory.own_panel, memory.keys(ring.stage), memory.panel);
        commit_products();
        multiply_panels<value_panels>(slope, d_o, memory.own_panel, memory.values(ring.stage), memory.panel);
        commit_products();
        wait_for_products<1>();
        pin(s);
#pragma unroll
        for (int step = 0; step < 4; ++step) pin(ds[step]);
        if (pending) done.release(), done.next();
        pending = true;
#pragma unroll
        for (int e = 0; e < 32; ++e)
            s[e] = exp2_fast(fmaf(s[e], scale2, -lse2[e / 2 % 2]));
        if (before == 0)
#pragma unroll
            for (int e = 0; e < 32; ++e)
                if (e / 4 * 8 + at.lane % 4 * 2 + e % 2 > at.row - at.part * 64 + e / 2 % 2 * 8) s[e] = 0.0f;
        wait_for_products<0>();
        pin(slope);
#pragma unroll
        for (int e = 0; e < 32; ++e) s[e] *= slope[e] - delta[e / 2 % 2];
#pragma unroll
        for (int step = 0; step < 4; ++step) pack_step(ds[step], s, step);
        begin_products();
        add_product(sums, ds, memory.keys(ring.stage), memory.panel);
        commit_products();
    }
    wait_for_products<0>();
    pin(sums);
    meet_warpgroup();
    store_tile(sums, memory.keys(), memory.own_panel, at.row, in.scale, in.scale);
    __syncwarp();
    write_rows<key_panels>(memory.keys(), memory.own_panel, at.warp_row,
                           dq.row(tile.first + top + at.warp_row) + h * in.heads.key(), dq.stride, in.heads.key(),
                           end - at.warp_row);
}

/// shares [H, rows, r]: each head's part of dk_shared.
__device__ inline void compute_dkv(const BackwardOperands& in, const BackwardMemory& memory, MatrixView<bf16> dkv,
                                   float* shares, Index rows) {
    const Place at;
    const std::uint32_t k = memory.keys() + at.part * 64 * panel_row_bytes,
                        v = memory.values() + at.part * 64 * panel_row_bytes;
    const float scale2 = in.scale * log2_e;
    const int column = at.lane % 4 * 2, own = at.row - at.part * 64;
    float dk[96], dv[64], s[32], slope[32];
    std::uint32_t p[4][4];  // then dS
#pragma unroll
    for (float& sum : dk) sum = 0.0f;
#pragma unroll
    for (float& sum : dv) sum = 0.0f;
    Ring ring = memory.ring();
    wait(memory.own_full(), 0);
    show_to_products();

    int left = static_cast<int>(ceil_div(in.tile().tokens, Index{memory.tile_rows}) - in.tile().rank * 2);
    if (at.part == 1) {  // the first tile sees none of these keys
        ring.wait_full();
        ring.release();
        ring.next(), --left;
    }
    if (left == 0) return;  // none of these keys exists
    bool first = true;
    int stage = ring.stage;
    ring.wait_full();
    begin_products();
    multiply_panels<key_panels>(s, k, memory.own_panel, memory.keys(stage), memory.panel);
    commit_products();
    wait_for_products<0>();
    pin(s);
    while (true) {
#pragma unroll
        for (int e = 0; e < 32; e += 4) {
            const float2 lse = load_floats(memory.rows(stage) + (e * 2 + column) * 4);
#pragma unroll
            for (int n = 0; n < 4; ++n)
                s[e + n] = exp2_fast(fmaf(s[e + n], scale2, -log2_e * (n % 2 == 0 ? lse.x : lse.y)));
        }
        if (first) {
#pragma unroll
            for (int e = 0; e < 32; ++e)
                if (e / 4 * 8 + column + e % 2 < own + e / 2 % 2 * 8) s[e] = 0.0f;
            first = false;
        }
#pragma unroll
        for (int step = 0; step < 4; ++step) pack_step(p[step], s, step);
        begin_products();
        multiply_panels<value_panels>(slope, v, memory.own_panel, memory.values(stage), memory.panel);
        commit_products();
        add_product(dv, p, memory.values(stage), memory.panel);
        commit_products();
        wait_for_products<0>();
        pin(slope);
        pin(dv);
#pragma unroll
        for (int step = 0; step < 4; ++step) pin(p[step]);
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
        add_product(dk, p, memory.keys(stage), memory.panel);
        commit_products();
        if (--left == 0) break;
        const std::uint32_t done = ring.empty();
        ring.next();
        stage = ring.stage;
        ring.wait_full();
        begin_products();
        multiply_panels<key_panels>(s, k, memory.own_panel, memory.keys(stage), memory.panel);
        commit_products();
        wait_for_products<0>();
        pin(s);
        pin(dk);
#pragma unroll
        for (int step = 0; step < 4; ++step) pin(p[step]);
        if (at.lane == 0) arrive(done);
    }
    wait_for_products<0>();
    pin(dk);
    pin(dv);
    meet_warpgroup();
    store_tile(dv, memory.values(), memory.own_panel, at.row, 1.0f, 1.0f);
    store_tile(dk, memory.keys(), memory.own_panel, at.row, in.scale, in.scale);
    __syncwarp();
    const Tile tile = in.tile();
    const Index top = tile.rank * block_rows, h = in.head(), nope = in.heads.nope;
    const int end = static_cast<int>(tile.tokens - top < block_rows ? tile.tokens - top : block_rows);
    bf16* to = dkv.row(tile.first + top + at.warp_row) + h * (nope + in.heads.value);
    write_rows<key_panels>(memory.keys(), memory.own_panel, at.warp_row, to, dkv.stride, nope, end - at.warp_row);
    write_rows<value_panels>(memory.values(), memory.own_panel, at.warp_row, to + nope, dkv.stride, in.heads.value,
                             end - at.warp_row);
#pragma unroll
    for (int j = 0; j < 24; ++j) {
        const Index c = 8 * j + column - nope;
        if (c < 0 || c >= in.heads.shared) continue;
#pragma unroll
        for (int r = 0; r < 2; ++r)
            if (at.row + 8 * r < end)
                *reinterpret_cast<float2*>(shares + (h * rows + tile.first + top + at.row + 8 * r) * in.heads.shared + c) =
                    make_float2(dk[4 * j + 2 * r] * in.scale, dk[4 * j + 2 * r + 1] * in.scale);
    }
}

#endif  // KIMIK3_HAS_WARPGROUPS

__global__ void __launch_bounds__(threads, 1)
    dq_kernel(const __grid_constant__ BackwardOperands in, MatrixView<bf16> dq, MatrixView<bf16> kept) {
#ifdef KIMIK3_HAS_WARPGROUPS
    const BackwardMemory memory{aligned_memory()};
    const Tile tile = in.tile();
    if (threadIdx.x == 0) memory.start();
    __syncthreads();
    if (threadIdx.x < 128) {
        give_registers<40>();
        copy_dq_tiles(in, tile, memory);
    } else {
        take_registers<232>();
        compute_dq(in, tile, memory, dq, kept);
    }
#endif
}

__global__ void __launch_bounds__(threads, 1)
    dkv_kernel(const __grid_constant__ BackwardOperands in, MatrixView<bf16> dkv, float* shares, Index rows) {
#ifdef KIMIK3_HAS_WARPGROUPS
    const BackwardMemory memory{aligned_memory()};
    if (threadIdx.x == 0) memory.start();
    __syncthreads();
    if (threadIdx.x < 128) {
        give_registers<24>();
        copy_dkv_tiles(in, in.tile(), memory);
    } else {
        take_registers<240>();
        compute_dkv(in, memory, dkv, shares, rows);
    }
#endif
}

/// delta [rows, H] = do . o, by 16 threads a head.
__global__ void delta_kernel(Index rows, MlaHeads heads, MatrixView<const bf16> d_o, MatrixView<const bf16> o,
                             MatrixView<float> delta) {
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
__global__ void shared_sum_kernel(Index rows, MlaHeads heads, const float* shares, MatrixView<bf16> dk_shared) {
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
    static const bool prepared =
        prepare(dq_kernel, BackwardMemory::bytes) && prepare(dkv_kernel, BackwardMemory::bytes);
    return prepared && fits(heads) && std::ranges::all_of(matrices, in_pieces);
}

inline void launch_backward(const Context<Cuda>& ctx, const Sequences& seq, const MlaHeads& heads,
                            MatrixView<const bf16> d_o, MatrixView<const bf16> q, MatrixView<const bf16> kv,
                            MatrixView<const bf16> k_shared, MatrixView<const bf16> o, MatrixView<const float> lse,
                            MatrixView<bf16> dq, MatrixView<bf16> dkv, MatrixView<bf16> dk_shared) {
    const Index rows = seq.tokens(), shares_size = heads.count * rows * heads.shared;
    if (rows == 0) return;
    const std::vector<Tile> tiles = list_tiles(seq, heads);
    const unsigned blocks = exact_grid(static_cast<Index>(tiles.size()) * heads.count);
    float* memory = ctx.workspace<float>(Scratch::operation,
                                         shares_size + round_up(rows * heads.count, 4) + (rows * q.cols + 1) / 2);
    float* shares = memory;
    const MatrixView<float> delta(shares + shares_size, rows, heads.count);
    const MatrixView<bf16> kept(reinterpret_cast<bf16*>(delta.data + round_up(rows * heads.count, 4)), rows, q.cols);
    BackwardOperands in{{heads, ctx.on_device(std::span<const Tile>(tiles)), q, kv, k_shared},
                        d_o, lse, delta, static_cast<float>(heads.scale())};
    delta_kernel<<<exact_grid(ceil_div(rows * heads.count, 16)), 256, 0, ctx.stream()>>>(rows, heads, d_o, o, delta);
    check_launch();
    dq_kernel<<<blocks, threads, BackwardMemory::bytes, ctx.stream()>>>(in, dq, kept);
    check_launch();
    in.q = kept;
    dkv_kernel<<<blocks, threads, BackwardMemory::bytes, ctx.stream()>>>(in, dkv, shares, rows);
    check_launch();
    if (heads.shared > 0) {
        shared_sum_kernel<<<exact_grid(ceil_div(rows * heads.shared, 1024)), 256, 0, ctx.stream()>>>(rows, heads, shares,
                                                                                                    dk_shared);
        check_launch();
    }
}

}  // namespace kimik3::gpu::attention
