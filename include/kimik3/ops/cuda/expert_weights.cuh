#pragma once
// Weight gradients of the experts on Hopper's tensor cores: dw_e = dw_e + a_e^T b_e, summed over the expert's rows in
// their order. A block of five warpgroups makes 320 x 96 elements; the rows come in steps of 64 through a ring of
// stages in shared memory, which runs on from tile to tile.

#include "kimik3/ops/cuda/expert_tiles.cuh"

namespace kimik3::gpu {

/// a [rows, width] gathered from the tokens' rows, b [rows, inner]. Three products: z with dgate for dw1 [E F, L] and
/// with dup for dw3, which are written turned, and du with the hidden values for dw2 [E L, F].
struct ExpertWeights {
    static constexpr int threads = 640, rows = 320, cols = 96, stages = 4, ahead = 2;
    static_assert(threads >= 53 * (cols / 8) && threads == 16 * (rows / 8));
    static constexpr int a_bytes = rows * 128, b_bytes = 2 * 8192, stage_bytes = a_bytes + b_bytes;

    ExpertDispatch d;
    const bf16 *a[3], *b[3];
    Index a_stride[3], b_stride[3];
    float* dw[3];
    Index dw_stride[3];
    int latent, inner;
    TokenOf token_of;

    __host__ __device__ int row_tiles() const { return (latent + rows - 1) / rows; }
    __host__ __device__ int col_tiles() const { return (inner + cols - 1) / cols; }
};

struct WeightTile {
    int expert, product, row, col;
    Index first, count;  // rows of the dispatch
};

template <class W>
__global__ void __launch_bounds__(W::threads, 1) expert_weights_tensor_kernel(const W job) {
    extern __shared__ __align__(1024) unsigned char stages[];
    const int row_tiles = job.row_tiles(), col_tiles = job.col_tiles(), of_expert = 3 * row_tiles * col_tiles,
              total = (static_cast<int>(job.d.offset.size) - 1) * of_expert;
    const auto place = [&](int tile) {
        const int e = tile / of_expert, rest = tile % of_expert;
        const Index first = job.d.offset[e];
        return WeightTile{e, rest / (row_tiles * col_tiles), rest / col_tiles % row_tiles * W::rows,
                          rest % col_tiles * W::cols, first, job.d.offset[e + 1] - first};
    };

    // What is loaded next. A thread copies pieces of a_col of the rows a_row + 16 i of a, whose pairs it has looked up a
    // step ahead, and of b_col of the rows b_row + 53 i of b.
    int next_tile = blockIdx.x;
    Index next_row = 0;
    WeightTile next{};
    const int a_piece = threadIdx.x % 40, a_row = threadIdx.x / 40, b_piece = threadIdx.x % 12, b_row = threadIdx.x / 12;
    Index pairs[4];
    const auto look_up = [&] {
#pragma unroll
        for (int i = 0; i < 4; ++i)
            pairs[i] = job.d.source[next.first + min(next_row + a_row + 16 * i, next.count - 1)];
    };
    const auto enter = [&] {
        for (; next_tile < total; next_tile += gridDim.x) {
            next = place(next_tile);
            if (next.count > 0) break;
        }
        next_row = 0;
    };
    const auto load = [&](int stage) {
        if (next_tile < total) {
            unsigned char* to = stages + stage * W::stage_bytes;
            const int a_col = next.row + 8 * a_piece, b_col = next.col + 8 * b_piece;
            const bf16 *a = job.a[next.product] + a_col,
                       *b = job.b[next.product] + (next.first + next_row) * job.b_stride[next.product] + b_col;
            const Index a_stride = job.a_stride[next.product], b_stride = job.b_stride[next.product];
            unsigned char* a_to = to + a_piece / 8 * 8192 + operand_bytes(a_row, a_piece % 8);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const bool exists =
                    pairs[i] >= 0 && next_row + a_row + 16 * i < next.count && a_col < job.latent;
                copy_16_bytes(a_to + 2048 * i, a + job.token_of(max(static_cast<int>(pairs[i]), 0)) * a_stride, exists);
            }
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const int row = b_row + 53 * i;
                if (b_row < 53 && row < 64)
                    copy_16_bytes(to + W::a_bytes + b_piece / 8 * 8192 + operand_bytes(row, b_piece % 8),
                                  b + row * b_stride, next_row + row < next.count && b_col < job.inner);
            }
            next_row += 64;
            if (next_row >= next.count) next_tile += gridDim.x, enter();
            if (next_tile < total) look_up();
        }
        commit_copies();
    };
    enter();
    if (next_tile < total) look_up();
    for (int s = 0; s < W::ahead; ++s) load(s);

    const int group = threadIdx.x / 128, lane = threadIdx.x % 32, own_row = 64 * group + threadIdx.x / 32 % 4 * 16;
    const std::uint32_t memory = shared_address(stages);
    float sums[W::cols / 2];
    int step = 0;
    for (int tile = blockIdx.x; tile < total; tile += gridDim.x) {
        const WeightTile at = place(tile);
        if (at.count == 0) continue;
        for (Index row = 0; row < at.count; row += 64, ++step) {
            wait_for_copies<W::ahead - 1>();
            show_to_products();
            __syncthreads();
            const std::uint32_t a = memory + step % W::stages * W::stage_bytes + 8192 * group,
                                b = memory + step % W::stages * W::stage_bytes + W::a_bytes;
            begin_products();
#pragma unroll
            for (int k = 0; k < 4; ++k)
                multiply_add<true, true>(sums, operand(a + 2048 * k, 8192), operand(b + 2048 * k, 8192), row + k > 0);
            commit_products();
            load((step + W::ahead) % W::stages);
            wait_for_products<1>();
        }
        wait_for_products<0>();
        float* dw = job.dw[at.product];
        const Index stride = job.dw_stride[at.product];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int l = at.row + own_row + lane / 4 + 8 * half;
            if (l >= job.latent) continue;
#pragma unroll
            for (int j = 0; j < W::cols / 8; ++j) {
                const int f = at.col + 8 * j + lane % 4 * 2;
                if (f >= job.inner) continue;
                const float first = sums[4 * j + 2 * half], second = sums[4 * j + 2 * half + 1];
                if (at.product < 2) {
                    float* to = dw + (Index{at.expert} * job.inner + f) * stride + l;
                    to[0] += first;
                    to[stride] += second;
                } else {
                    float* to = dw + (Index{at.expert} * job.latent + l) * stride + f;
                    to[0] += first;
                    to[1] += second;
                }
            }
        }
    }
}

inline void run_expert_weights(const Context<Cuda>& ctx, const ExpertWeights& job) {
    constexpr int bytes = ExpertWeights::stages * ExpertWeights::stage_bytes;
    KIMIK3_CUDA(cudaFuncSetAttribute(expert_weights_tensor_kernel<ExpertWeights>,
                                     cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    expert_weights_tensor_kernel<<<multiprocessors(), ExpertWeights::threads, bytes, ctx.stream()>>>(job);
    check_launch();
}

}  // namespace kimik3::gpu
