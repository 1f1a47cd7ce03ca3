#pragma once
// Weight gradients of the experts on Hopper's tensor cores: dw_e = dw_e + a_e^T b_e, summed over the expert's rows in
// their order. A tile has 320 x 96 elements of an expert's product, 64 x 96 for each of five warpgroups; four more
// warps copy its rows, in steps of 64, through a ring of stages in shared memory. A block makes tiles at the same place
// of the experts' products, and all blocks make equally many steps, so a tile's may be shared out among several: the
// block that makes its first steps adds them to dw, the others leave their sums, which a second kernel adds in their
// order.

#include "kimik3/ops/cuda/expert_tiles.cuh"

namespace kimik3::gpu {

/// a [rows, latent] gathered from the tokens' rows, b [rows, inner]. Three products: z with dgate for dw1 [E F, L] and
/// with dup for dw3, which are written turned, and du with the hidden values for dw2 [E L, F].
struct ExpertWeights {
    static constexpr int groups = 5, readers = 128 * groups, copiers = 128, threads = readers + copiers,
                         rows = 64 * groups, cols = 96, sums = cols / 2, step_rows = 64, stages = 4;
    static constexpr int panel_bytes = step_rows * 128, a_bytes = groups * panel_bytes,
                         stage_bytes = a_bytes + (cols + 63) / 64 * panel_bytes, barriers = stages * stage_bytes,
                         starts = barriers + stages * 16;

    ExpertDispatch d;
    const bf16 *a[3], *b[3];
    int a_stride[3], b_stride[3];
    float* dw[3];
    Index dw_stride[3];
    int latent, inner;
    TokenOf token_of;
    float* left;  // [blocks, sums, readers]: of steps with which a block begins that are not a tile's first

    __host__ __device__ int col_tiles() const { return (inner + cols - 1) / cols; }
    __host__ __device__ int tiles() const { return 3 * ((latent + rows - 1) / rows) * col_tiles(); }  // of an expert
    static Index sums_of(Index blocks) { return blocks * sums * readers; }
    static int bytes(Index experts) { return starts + (static_cast<int>(experts) + 1) * 4; }

    /// Adds a thread's sum, of which nobody else adds to the same element meanwhile.
    __device__ void add(int expert, int tile, int thread, int i, float sum) const {
        const int product = tile / (tiles() / 3), rest = tile % (tiles() / 3);
        const int l = rest / col_tiles() * rows + thread / 32 * 16 + thread % 32 / 4 + i / 2 % 2 * 8,
                  f = rest % col_tiles() * cols + i / 4 * 8 + thread % 4 * 2 + i % 2;
        if (l >= latent || f >= inner) return;
        const Index stride = dw_stride[product];
        atomicAdd(dw[product] + (product < 2 ? (Index{expert} * inner + f) * stride + l
                                             : (Index{expert} * latent + l) * stride + f),
                  sum);
    }
};

/// Steps [from, to) of so many that a tile of an expert has, which a block makes one after another.
struct WeightSteps {
    int expert, from, to, all;
};

/// The steps of all experts for a tile in a row, and which of them are a block's. Made by a whole block.
struct WeightWalk {
    const int* starts;  // an expert's first step
    int experts;

    __device__ WeightWalk(const ExpertDispatch& d, int* memory)
        : starts(memory), experts(static_cast<int>(d.offset.size) - 1) {
        if (threadIdx.x < 32) count_tiles(d, ExpertWeights::step_rows, memory);
        __syncthreads();
    }
    /// body(steps) for what lies in [first, last).
    template <class Body>
    __device__ void for_steps(Index first, Index last, Body body) const {
        for (int step = static_cast<int>(first); step < last;) {
            const WeightSteps steps = at(step, static_cast<int>(last));
            step += steps.to - steps.from;
            body(steps);
        }
    }
    /// From a step on to the end of the tile, or to last.
    __device__ WeightSteps at(int step, int last) const {
        const int e = expert_of(starts, experts, step);
        return {e, step - starts[e], min(starts[e + 1], last) - starts[e], starts[e + 1] - starts[e]};
    }
};

/// Copies the rows of some steps. Of each step a warp copies a quarter, a lane pieces of every fourth of its rows.
template <class W>
__device__ void copy_steps(const W& job, int tile, const WeightSteps& steps, std::uint32_t stages,
                           warpgroup::Ring& ring) {
    constexpr int own = W::step_rows / 16;
    const int row = threadIdx.x / 32 % 4 * 4 * own + threadIdx.x % 32 / 8, piece = threadIdx.x % 8;
    const int product = tile / (job.tiles() / 3), rest = tile % (job.tiles() / 3);
    const int l = rest / job.col_tiles() * W::rows + 8 * piece, f = rest % job.col_tiles() * W::cols + 8 * piece;
    const Index start = job.d.offset[steps.expert] + steps.from * W::step_rows;
    const unsigned a_pieces = job.a_stride[product] / 8, b_pieces = job.b_stride[product] / 8;  // of a row
    int left = static_cast<int>(job.d.offset[steps.expert + 1] - start) - row;
    const Index* source = job.d.source.data + start + row;
    const uint4 *a = reinterpret_cast<const uint4*>(job.a[product]),
                *b = reinterpret_cast<const uint4*>(job.b[product]) + (start + row) * b_pieces;
    // Columns that there are not are others in their place.
    unsigned a_at[W::groups], b_at[(W::cols + 63) / 64];
#pragma unroll
    for (int c = 0; c < W::groups; ++c) a_at[c] = l + 64 * c < job.latent ? (l + 64 * c) / 8 : 0;
#pragma unroll
    for (int c = 0; c < (W::cols + 63) / 64; ++c) b_at[c] = f + 64 * c < job.inner ? (f + 64 * c) / 8 : 0;
    const std::uint32_t to[2] = {stages + operand_bytes(row, piece), stages + operand_bytes(row + 4, piece)};
    struct Pairs {
        int of[own];
    };
    const auto look_up = [&](int later) {  // so many rows
        Pairs pairs;
#pragma unroll
        for (int i = 0; i < own; ++i) pairs.of[i] = later + 4 * i < left ? static_cast<int>(source[later + 4 * i]) : -1;
        return pairs;
    };
    Pairs pairs = look_up(0), next = look_up(W::step_rows);
    for (int step = steps.from; step < steps.to; ++step, ring.next()) {
        const Pairs after = look_up(2 * W::step_rows);
        ring.wait_empty();
#pragma unroll
        for (int i = 0; i < own; ++i) {
            const std::uint32_t place = to[i % 2] + 1024 * (i / 2) + ring.stage * W::stage_bytes;
            const unsigned a_row = job.token_of(max(pairs.of[i], 0)) * a_pieces, b_row = 4 * i * b_pieces;
            const bool a_exists = pairs.of[i] >= 0, b_exists = 4 * i < left;
#pragma unroll
            for (int c = 0; c < W::groups; ++c)
                warpgroup::copy_16(place + c * W::panel_bytes, a + (a_row + a_at[c]), a_exists);
#pragma unroll
            for (int c = 0; c < (W::cols + 63) / 64; ++c)
                if (64 * c + 8 * piece < W::cols)
                    warpgroup::copy_16(place + W::a_bytes + c * W::panel_bytes, b + (b_row + b_at[c]), b_exists);
        }
        warpgroup::arrive_after_copies(ring.full());
        left -= W::step_rows, source += W::step_rows, b += W::step_rows * b_pieces;
        pairs = next, next = after;
    }
}

template <class W>
__global__ void __launch_bounds__(W::threads, 1) expert_weights_tensor_kernel(const W job) {
#if KIMIK3_WARPGROUPS
    begin_in_turn();
    extern __shared__ __align__(1024) unsigned char expert_memory[];
    const std::uint32_t stages = shared_address(expert_memory);
    warpgroup::Ring ring(stages + W::barriers, W::stages);
    if (threadIdx.x == 0) ring.start(W::copiers, W::readers / 32);
    const WeightWalk walk(job.d, reinterpret_cast<int*>(expert_memory + W::starts));
    const Share share(job.tiles(), walk.starts[walk.experts], gridDim.x);
    const int rank = blockIdx.x / share.teams;
    const Index first = share.first(rank), last = share.first(rank + 1);
    if (threadIdx.x >= W::readers) {
        for (int tile = share.team; tile < job.tiles(); tile += share.teams)
            walk.for_steps(first, last, [&](const WeightSteps& steps) { copy_steps(job, tile, steps, stages, ring); });
        warpgroup::finish_copies();
        return;
    }
    const int group = threadIdx.x / 128;
    float sums[W::sums];
    for (int tile = share.team; tile < job.tiles(); tile += share.teams)
        walk.for_steps(first, last, [&](const WeightSteps& steps) {
            warpgroup::Ring before = ring;
            for (int step = steps.from; step < steps.to; ++step, ring.next()) {
                ring.wait_full();
                const std::uint32_t stage = stages + ring.stage * W::stage_bytes;
                const std::uint64_t a = operand(stage + W::panel_bytes * group, W::panel_bytes),
                                    b = operand(stage + W::a_bytes, W::panel_bytes);
                begin_products();
#pragma unroll
                for (int k = 0; k < W::step_rows / 16; ++k)
                    multiply_add<true, true>(sums, further(a, 2048 * k), further(b, 2048 * k),
                                             step + k > steps.from);
                commit_products();
                wait_for_products<1>();
                if (step > steps.from) before.release();
                before = ring;
            }
            wait_for_products<0>();
            before.release();
            if (steps.from == 0) {
#pragma unroll
                for (int i = 0; i < W::sums; ++i) job.add(steps.expert, tile, threadIdx.x, i, sums[i]);
            } else {
                float* left = job.left + Index{blockIdx.x} * W::sums * W::readers + threadIdx.x;
#pragma unroll
                for (int i = 0; i < W::sums; ++i) left[i * W::readers] = sums[i];
            }
        });
#endif
}

/// Adds what blocks left of a tile, in the order of its steps; so many blocks for each that may have left something.
template <class W>
__global__ void __launch_bounds__(W::readers) add_weight_steps_kernel(const W job, int slices) {
    begin_in_turn();
    extern __shared__ int starts[];
    const int blocks = gridDim.x / slices, slice = blockIdx.x / blocks;
    const WeightWalk walk(job.d, starts);
    Share share(job.tiles(), walk.starts[walk.experts], blocks);
    const int block = blockIdx.x % blocks, team = block % share.teams, rank = block / share.teams;
    const Index first = share.first(rank), last = share.first(rank + 1);
    if (first == last) return;
    const WeightSteps steps = walk.at(static_cast<int>(first), static_cast<int>(last));
    // The first block that left something of a tile comes behind the one with the tile's first steps.
    const Index tile_first = first - steps.from, tile_last = tile_first + steps.all;
    if (steps.from == 0 || share.first(rank - 1) > tile_first) return;
    int end = rank + 1;
    while (end < share.each && share.first(end) < tile_last) ++end;
    for (int i = slice; i < W::sums; i += slices) {
        float sum = 0.0f;
        for (int r = rank; r < end; ++r)
            sum += job.left[(Index{r * share.teams + team} * W::sums + i) * W::readers + threadIdx.x];
        job.add(steps.expert, team, threadIdx.x, i, sum);
    }
}

inline void run_expert_weights(const Context<Cuda>& ctx, const ExpertWeights& job) {
    using W = ExpertWeights;
    const Index bytes = W::bytes(job.d.experts()), blocks = multiprocessors();
    constexpr int slices = 8;
    launch_early(ctx, blocks, W::threads, bytes, expert_weights_tensor_kernel<W>, job);
    launch_early(ctx, blocks * slices, W::readers, bytes - W::starts, add_weight_steps_kernel<W>, job, slices);
}

}  // namespace kimik3::gpu
