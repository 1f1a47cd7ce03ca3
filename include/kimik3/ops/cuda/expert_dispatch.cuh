#pragma once
// The counting sort by expert on the GPU. A block owns a stretch of the pairs and counts them by expert, one block
// turns the counts into first rows, and the blocks walk over their stretches again and place their pairs in rising
// order.

#include "kimik3/ops/cuda/launch.cuh"
#include "kimik3/ops/expert_dispatch.hpp"

namespace kimik3 {
namespace gpu {

/// A block counts for up to 1,024 of the experts; with more of them there is a row of blocks for each 1,024.
struct PairStretches {
    static constexpr int warps = block_threads / 32, groups = 8, length = warps * groups * 32, window = 1024;

    MatrixView<const std::int32_t> experts;
    int* counts;  // [E, stretches]: how many pairs of a stretch an expert has; then the first of their rows

    __host__ __device__ Index stretches() const { return ceil_div(experts.size(), Index{length}); }
    /// Of a pair. Pairs are counted in 32 bits, which divide far faster.
    __device__ Index token_of(Index pair) const {
        return static_cast<unsigned>(pair) / static_cast<unsigned>(experts.cols);
    }
};

/// The pairs of a warp, in groups of 32, a pair a lane.
struct OwnPairs {
    Index first;                        // the lane's pair of the first group
    int window0;                        // the first expert of the block
    int expert[PairStretches::groups];  // within the block's; -1: none

    __device__ explicit OwnPairs(const PairStretches& s) {
        const Index stretch = blockIdx.x % s.stretches();
        window0 = static_cast<int>(blockIdx.x / s.stretches()) * PairStretches::window;
        first = stretch * PairStretches::length + threadIdx.x / 32 * (PairStretches::groups * 32) + threadIdx.x % 32;
#pragma unroll
        for (int g = 0; g < PairStretches::groups; ++g) {
            const Index pair = first + 32 * g;
            const Index token = s.token_of(pair);
            const int e =
                pair < s.experts.size() ? s.experts(token, pair - token * s.experts.cols) - window0 : -1;
            expert[g] = e < PairStretches::window ? e : -1;
        }
    }
    /// body(group, rank, last) for each pair: rank among the pairs of the same expert in the group, and whether it is
    /// their last.
    template <class Body>
    __device__ void walk(Body&& body) const {
        const unsigned lane = threadIdx.x % 32;
#pragma unroll
        for (int g = 0; g < PairStretches::groups; ++g) {
            const unsigned same = __match_any_sync(0xffffffffu, expert[g]);
            if (expert[g] >= 0) body(g, __popc(same & ((1u << lane) - 1u)), same >> lane == 1u);
            __syncwarp();
        }
    }
};

template <class Dispatch>
__global__ void count_pairs_kernel(PairStretches s, Dispatch d) {
    begin_in_turn();
    __shared__ int counts[PairStretches::window];
    const OwnPairs own(s);
    const int experts = min(static_cast<int>(d.offset.size) - 1 - own.window0, PairStretches::window);
    for (int e = threadIdx.x; e < experts; e += block_threads) counts[e] = 0;
    const Index fill_step = Index{gridDim.x} * block_threads;
    for (Index i = Index{blockIdx.x} * block_threads + threadIdx.x; i < d.source.size; i += fill_step) d.source[i] = -1;
    __syncthreads();
    own.walk([&](int g, int rank, bool last) {
        if (last) atomicAdd(&counts[own.expert[g]], rank + 1);
    });
    __syncthreads();
    for (int e = threadIdx.x; e < experts; e += block_threads)
        s.counts[(own.window0 + e) * s.stretches() + blockIdx.x % s.stretches()] = counts[e];
}

/// The sum of value over the lanes up to this one.
template <class T>
__device__ T sum_up_to(T value) {
    for (int apart = 1; apart < 32; apart *= 2) {
        const T other = __shfl_up_sync(0xffffffffu, value, apart);
        if (static_cast<int>(threadIdx.x % 32) >= apart) value += other;
    }
    return value;
}

/// One block: a warp an expert, then one warp over the experts.
template <class Dispatch>
__global__ void __launch_bounds__(1024) first_rows_kernel(PairStretches s, Dispatch d, Index unit) {
    begin_in_turn();
    const int lane = threadIdx.x % 32;
    const Index experts = d.offset.size - 1, stretches = s.stretches();
    for (Index e = threadIdx.x / 32; e < experts; e += blockDim.x / 32) {
        int* counts = s.counts + e * stretches;
        Index before = 0;
#pragma unroll 2
        for (Index first = 0; first < stretches; first += 32) {
            const Index i = first + lane;
            const int count = i < stretches ? counts[i] : 0, sum = sum_up_to(count);
            if (i < stretches) counts[i] = static_cast<int>(before) + sum - count;
            before += __shfl_sync(0xffffffffu, sum, 31);
        }
        if (lane == 0) d.offset[e] = round_up(before, unit);
    }
    __syncthreads();
    if (threadIdx.x >= 32) return;
    Index before = 0;
    for (Index first = 0; first < experts; first += 32) {
        const Index e = first + lane, rows = e < experts ? d.offset[e] : 0, sum = sum_up_to(rows);
        if (e < experts) d.offset[e] = before + sum - rows;
        before += __shfl_sync(0xffffffffu, sum, 31);
    }
    if (lane == 0) d.offset[experts] = before;
}

template <class Dispatch>
__global__ void place_pairs_kernel(PairStretches s, Dispatch d) {
    begin_in_turn();
    // How many pairs of an expert a warp has; then the row of the next of them, from the expert's first on.
    __shared__ int next[PairStretches::warps][PairStretches::window];
    const OwnPairs own(s);
    const int experts = min(static_cast<int>(d.offset.size) - 1 - own.window0, PairStretches::window);
    for (int e = threadIdx.x; e < experts; e += block_threads)
        for (int w = 0; w < PairStretches::warps; ++w) next[w][e] = 0;
    __syncthreads();
    int* mine = next[threadIdx.x / 32];
    own.walk([&](int g, int rank, bool last) {
        if (last) mine[own.expert[g]] += rank + 1;
    });
    __syncthreads();
    for (int e = threadIdx.x; e < experts; e += block_threads) {
        int row = s.counts[(own.window0 + e) * s.stretches() + blockIdx.x % s.stretches()];
        for (int w = 0; w < PairStretches::warps; ++w) {
            const int count = next[w][e];
            next[w][e] = row;
            row += count;
        }
    }
    __syncthreads();
#pragma unroll
    for (int g = 0; g < PairStretches::groups; ++g) {
        const int e = own.expert[g];
        const unsigned same = __match_any_sync(0xffffffffu, e), lane = threadIdx.x % 32;
        const int rank = __popc(same & ((1u << lane) - 1u));
        const Index row = e >= 0 ? d.offset[own.window0 + e] + mine[e] + rank : 0, pair = own.first + 32 * g;
        __syncwarp();
        if (e >= 0) {
            if (same >> lane == 1u) mine[e] += rank + 1;
            d.source[row] = pair;
            const Index token = s.token_of(pair);
            d.position(token, pair - token * s.experts.cols) = row;
        }
        __syncwarp();
    }
}

}  // namespace gpu

inline void expert_dispatch(const Context<Cuda>& ctx, MatrixView<const std::int32_t> experts, const ExpertDispatch& d) {
    require_shape("expert_dispatch: position", d.position, experts.rows, experts.cols);
    require_size("expert_dispatch: source", d.source, d.max_rows(experts.rows, experts.cols, d.experts()));
    require(experts.size() < Index{1} << 31, "expert_dispatch: a batch has fewer than 2^31 pairs, got {}",
            experts.size());
    gpu::PairStretches s{experts, nullptr};
    s.counts = ctx.workspace<int>(Scratch::operation, d.experts() * s.stretches());
    const Index blocks = s.stretches() * ceil_div(d.experts(), Index{gpu::PairStretches::window});
    gpu::launch_early(ctx, blocks, gpu::block_threads, 0, gpu::count_pairs_kernel<ExpertDispatch>, s, d);
    gpu::launch_early(ctx, 1, 1024, 0, gpu::first_rows_kernel<ExpertDispatch>, s, d, d.row_unit(experts.rows));
    gpu::launch_early(ctx, blocks, gpu::block_threads, 0, gpu::place_pairs_kernel<ExpertDispatch>, s, d);
}

}  // namespace kimik3
