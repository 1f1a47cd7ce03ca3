#pragma once
// The counting sort by expert on the GPU. A warp owns a stretch of the pairs: it counts them by expert, one block turns
// the counts into first rows, and the warps walk over their stretches again and place their pairs in rising order.

#include "kimik3/ops/cuda/launch.cuh"
#include "kimik3/ops/expert_dispatch.hpp"

namespace kimik3 {
namespace gpu {

/// Stretches [stretches] of length pairs. counts [E, stretches]: how many pairs of a stretch an expert has, then the
/// first of their rows within the expert's.
struct PairStretches {
    MatrixView<const std::int32_t> experts;
    Index length, stretches;
    int* counts;

    /// The stretch of the warp, and whether there is one.
    __device__ Index own() const { return blockIdx.x * Index{block_threads / 32} + threadIdx.x / 32; }

    /// body(pair, expert, rank, last) by a whole warp: rank among the pairs of the same expert in a group of 32, and
    /// whether it is their last; expert -1: no pair.
    template <class Body>
    __device__ void walk(Index stretch, Body&& body) const {
        const Index begin = stretch * length, pairs = experts.size();
        const Index end = begin + length < pairs ? begin + length : pairs;
        const unsigned lane = threadIdx.x % 32;
        for (Index first = begin; first < end; first += 32) {
            const Index pair = first + lane;
            const int e = pair < end ? experts(pair / experts.cols, pair % experts.cols) : -1;
            const unsigned same = __match_any_sync(0xffffffffu, e);
            body(pair, e, __popc(same & ((1u << lane) - 1u)), same >> lane == 1u);
            __syncwarp();
        }
    }
};

template <class Dispatch>
__global__ void count_pairs_kernel(PairStretches s, Dispatch d) {
    const Index fill_step = Index{gridDim.x} * blockDim.x;
    for (Index i = Index{blockIdx.x} * blockDim.x + threadIdx.x; i < d.source.size; i += fill_step) d.source[i] = -1;
    const Index stretch = s.own(), experts = d.offset.size - 1;
    if (stretch >= s.stretches) return;
    for (Index e = threadIdx.x % 32; e < experts; e += 32) s.counts[e * s.stretches + stretch] = 0;
    __syncwarp();
    s.walk(stretch, [&](Index, int e, int rank, bool last) {
        if (e >= 0 && last) s.counts[e * s.stretches + stretch] += rank + 1;
    });
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
    const int lane = threadIdx.x % 32;
    const Index experts = d.offset.size - 1;
    for (Index e = threadIdx.x / 32; e < experts; e += blockDim.x / 32) {
        int* counts = s.counts + e * s.stretches;
        Index before = 0;
        for (Index first = 0; first < s.stretches; first += 128) {
            int count[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const Index at = first + 32 * i + lane;
                count[i] = at < s.stretches ? counts[at] : 0;
            }
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const Index at = first + 32 * i + lane;
                const int sum = sum_up_to(count[i]);
                if (at < s.stretches) counts[at] = static_cast<int>(before) + sum - count[i];
                before += __shfl_sync(0xffffffffu, sum, 31);
            }
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
    const Index stretch = s.own();
    if (stretch >= s.stretches) return;
    s.walk(stretch, [&](Index pair, int e, int rank, bool last) {
        int* next = s.counts + e * s.stretches + stretch;
        const int before = e >= 0 ? *next : 0;
        __syncwarp();
        if (e < 0) return;
        const Index row = d.offset[e] + before + rank;
        d.source[row] = pair;
        d.position(pair / s.experts.cols, pair % s.experts.cols) = row;
        if (last) *next = before + rank + 1;
    });
}

}  // namespace gpu

inline void expert_dispatch(const Context<Cuda>& ctx, MatrixView<const std::int32_t> experts, const ExpertDispatch& d) {
    require_shape("expert_dispatch: position", d.position, experts.rows, experts.cols);
    require_size("expert_dispatch: source", d.source, d.max_rows(experts.rows, experts.cols, d.experts()));
    const Index pairs = experts.size(), length = (std::max)(Index{256}, round_up(ceil_div(pairs, Index{2048}), 32)),
                stretches = ceil_div(pairs, length);
    const gpu::PairStretches s{experts, length, stretches,
                               ctx.workspace<int>(Scratch::operation, d.experts() * stretches)};
    const unsigned blocks = gpu::exact_grid(ceil_div(stretches, Index{gpu::block_threads / 32}));
    if (blocks > 0) gpu::count_pairs_kernel<<<blocks, gpu::block_threads, 0, ctx.stream()>>>(s, d);
    gpu::first_rows_kernel<<<1, 1024, 0, ctx.stream()>>>(s, d, d.row_unit(experts.rows));
    if (blocks > 0) gpu::place_pairs_kernel<<<blocks, gpu::block_threads, 0, ctx.stream()>>>(s, d);
    check_launch();
}

}  // namespace kimik3
