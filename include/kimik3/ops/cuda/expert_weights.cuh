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
    int first, count;  // rows of the dispatch
};

template <class W>
__global__ void __launch_bounds__(W::threads, 1) expert_weights_tensor_kernel(const W job) {
    extern __shared__ __align__(1024) unsigned char stages[];
    const int row_tiles = job.row_tiles(), col_tiles = job.col_tiles(), of_expert = 3 * row_tiles * col_tiles,
              total = (static_cast<int>(job.d.offset.size) - 1) * of_expert;
    const auto place = [&](int tile) {
        const int e = tile / of_expert, rest = tile % of_expert;
        const int first = static_cast<int>(job.d.offset[e]);
        return WeightTile{e,
                          rest / (row_tiles * col_tiles),
                          rest / col_tiles % row_tiles * W::rows,
                          rest % col_tiles * W::cols,
                          first,
                          static_cast<int>(job.d.offset[e + 1]) - first};
    };

    // What is loaded next. A thread copies pieces of the same columns: of the rows a_row + 16 i of a, whose pairs it
    // has looked up a step ahead, and of the rows b_row + 53 i of b.
    const int a_piece = threadIdx.x % 40, a_row = threadIdx.x / 40, b_piece = threadIdx.x % 12,
              b_row = threadIdx.x / 12;
    const int a_to = a_piece / 8 * 8192 + operand_bytes(a_row, a_piece % 8),
              b_to = W::a_bytes + b_piece / 8 * 8192 + operand_bytes(b_row, b_piece % 8);
    int next_tile = blockIdx.x, left = 0, pairs[4], a_stride = 0, b_stride = 0;
    bool a_exists = false, b_exists = false;
    const Index* source = nullptr;          // of the step's first row
    const bf16 *a = nullptr, *b = nullptr;  // the thread's columns, b in its row of the step
    const auto look_up = [&] {
#pragma unroll
        for (int i = 0; i < 4; ++i) pairs[i] = static_cast<int>(source[min(a_row + 16 * i, left - 1)]);
    };
    const auto enter = [&] {
        for (; next_tile < total; next_tile += gridDim.x) {
            const WeightTile next = place(next_tile);
            if (next.count == 0) continue;
            left = next.count;
            source = job.d.source.data + next.first;
            a_stride = static_cast<int>(job.a_stride[next.product]);
            b_stride = static_cast<int>(job.b_stride[next.product]);
            a = job.a[next.product] + next.row + 8 * a_piece;
            b = job.b[next.product] + Index{next.first + b_row} * b_stride + next.col + 8 * b_piece;
            a_exists = next.row + 8 * a_piece < job.latent;
            b_exists = next.col + 8 * b_piece < job.inner;
            break;
        }
    };
    const auto load = [&](int stage) {
        if (next_tile < total) {
            unsigned char* to = stages + stage * W::stage_bytes;
#pragma unroll
            for (int i = 0; i < 4; ++i)
                copy_16_bytes(to + a_to + 2048 * i, a + Index{job.token_of(pairs[i])} * a_stride,
                              a_exists && pairs[i] >= 0 && a_row + 16 * i < left);
            if (b_row < 53) copy_16_bytes(to + b_to, b, b_exists && b_row < left);
            if (b_row < 11) {
                const int below = W::a_bytes + b_piece / 8 * 8192 + operand_bytes(b_row + 53, b_piece % 8);
                copy_16_bytes(to + below, b + Index{53} * b_stride, b_exists && b_row + 53 < left);
            }
            left -= 64;
            source += 64;
            b += Index{64} * b_stride;
            if (left <= 0) next_tile += gridDim.x, enter();
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
        for (int row = 0; row < at.count; row += 64, ++step) {
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
        // dw1 and dw3 are written turned: [F, L] from sums [L, F].
        const bool turned = at.product < 2;
        const Index stride = job.dw_stride[at.product], along_f = turned ? stride : 1;
        float* dw = job.dw[at.product] +
                    (turned ? (Index{at.expert} * job.inner + at.col) * stride + at.row
                            : (Index{at.expert} * job.latent + at.row) * stride + at.col);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int l = own_row + lane / 4 + 8 * half, f0 = lane % 4 * 2;
            if (at.row + l >= job.latent) continue;
            float* to = dw + (turned ? l : l * stride) + f0 * along_f;
            constexpr int batch = 6;  // of groups of eight columns, read before they are written
#pragma unroll
            for (int j0 = 0; j0 < W::cols / 8; j0 += batch) {
                float old[batch][2];
#pragma unroll
                for (int j = 0; j < batch; ++j) {
                    const bool inside = at.col + 8 * (j0 + j) + f0 < job.inner;
                    const float* from = to + (inside ? 8 * (j0 + j) * along_f : 0);
                    old[j][0] = from[0], old[j][1] = from[inside ? along_f : 0];
                }
#pragma unroll
                for (int j = 0; j < batch; ++j) {
                    if (at.col + 8 * (j0 + j) + f0 >= job.inner) continue;
                    to[8 * (j0 + j) * along_f] = old[j][0] + sums[4 * (j0 + j) + 2 * half];
                    to[(8 * (j0 + j) + 1) * along_f] = old[j][1] + sums[4 * (j0 + j) + 2 * half + 1];
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
