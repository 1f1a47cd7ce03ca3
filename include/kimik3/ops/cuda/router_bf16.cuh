#pragma once
// The router of bf16 tokens on tensor cores, for up to 64 experts. Its weights are float32 numbers: each is taken as a
// sum of bf16 terms, three of which hold all of its bits, so products with the tokens are exact and their sums are
// float32's. Forward makes 128 tokens a block, from the logits to the choice; backward's weight gradient is summed over
// a block's tokens, then over the blocks in their order.

#include "kimik3/ops/cuda/tensor_core.cuh"
#include "kimik3/ops/formulas.hpp"
#include "kimik3/ops/router.hpp"

namespace kimik3::gpu {

inline constexpr int routed_experts = 64;

/// 16-byte piece of a row of row_bytes, a multiple of 128, permuted so that a column of pieces meets all banks.
__device__ inline int spread(int row, int piece, int row_bytes) { return row * row_bytes + ((piece ^ (row & 7)) << 4); }

/// The next bf16 term of value, which keeps what is left.
__device__ inline bf16 next_term(float& value) {
    const bf16 term(value);
    value -= static_cast<float>(term);
    return term;
}

/// terms [3 x 64, M] of w [E, M], zero for experts that there are not.
inline void split_weights(const Context<Cuda>& ctx, MatrixView<const float> w, MatrixView<bf16> terms) {
    for_each(ctx, routed_experts * w.cols, [=] __device__(Index i) {
        const Index e = i / w.cols, c = i % w.cols;
        float value = e < w.rows ? w(e, c) : 0.0f;
        for (int t = 0; t < 3; ++t) terms(t * routed_experts + e, c) = next_term(value);
    });
}

struct RouterChoice {
    MatrixView<const bf16> x, terms;
    const float* bias;
    RouterRule rule;
    MatrixView<float> scores, weights;
    MatrixView<std::int32_t> experts;
    float* cutoff;

    static constexpr int tokens = 128, depth = 64, logit_row = 68;
    static constexpr int a_bytes = tokens * 128, b_bytes = 3 * routed_experts * 128, stage_bytes = a_bytes + b_bytes;

    /// A number whose order as an unsigned one is that of the scores; 0 is below all. NaN stands with minus infinity.
    __device__ static std::uint32_t key(float value) {
        const std::uint32_t bits = __float_as_uint(value == value ? value : -INFINITY);
        return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
    }
    __device__ static float value_of(std::uint32_t key) {
        return __uint_as_float((key & 0x80000000u) != 0 ? key & 0x7fffffffu : ~key);
    }

    /// By a warp, from the logits of token n.
    __device__ void choose(Index n, const float* logits) const {
        constexpr unsigned all = 0xffffffffu;
        const int lane = threadIdx.x % 32, count = static_cast<int>(experts.cols);
        float score[2];
        std::uint32_t keys[2];
        bool broken = false;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int e = lane + 32 * i;
            const bool exists = e < scores.cols;
            score[i] = sigmoid(logits[e]);
            const float biased = exists ? score[i] + bias[e] : 0.0f;
            if (exists) scores(n, e) = score[i];
            keys[i] = exists ? key(biased) : 0;
            broken |= biased != biased;
        }
        broken = __any_sync(all, broken);
        float sum = 0.0f, own_score = 0.0f;
        for (int j = 0; j <= count; ++j) {
            const std::uint32_t best = __reduce_max_sync(all, keys[0] > keys[1] ? keys[0] : keys[1]);
            if (j == count) {
                if (lane == 0) cutoff[n] = broken ? NAN : value_of(best);
                break;
            }
            const unsigned low = __ballot_sync(all, keys[0] == best), high = __ballot_sync(all, keys[1] == best);
            const int owner = __ffs(low != 0 ? low : high) - 1;
            const float chosen = __shfl_sync(all, low != 0 ? score[0] : score[1], owner);
            if (lane == owner) (low != 0 ? keys[0] : keys[1]) = 0;
            if (lane == j) {
                own_score = chosen;
                experts(n, j) = owner + (low != 0 ? 0 : 32);
            }
            sum += chosen;
        }
        const float factor = broken ? NAN : static_cast<float>(rule.factor);
        if (lane < count) weights(n, lane) = own_score * (rule.renormalize ? factor / (sum + 1e-20f) : factor);
    }
};

template <class Choice>
__global__ void __launch_bounds__(256, 2) router_choice_kernel(const Choice r) {
    extern __shared__ __align__(1024) unsigned char stages[];
    const Index first = blockIdx.x * Index{Choice::tokens};
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, piece = threadIdx.x % 8;
    const auto load = [&](Index k0, int stage) {
        unsigned char* to = stages + stage * Choice::stage_bytes;
        const bool inside = k0 + 8 * piece < r.x.cols;
        for (int row = threadIdx.x / 8; row < Choice::tokens; row += 32) {
            const bool exists = inside && first + row < r.x.rows;
            copy_16_bytes(to + spread(row, piece, 128), exists ? r.x.row(first + row) + k0 + 8 * piece : r.x.data,
                          exists);
        }
        for (int row = threadIdx.x / 8; row < 3 * routed_experts; row += 32)
            copy_16_bytes(to + Choice::a_bytes + spread(row, piece, 128),
                          inside ? r.terms.row(row) + k0 + 8 * piece : r.terms.data, inside);
        commit_copies();
    };
    // Four warps of 32 tokens each, by two of 32 experts.
    const int token0 = warp / 2 * 32, expert0 = warp % 2 * 32;
    const auto at = [](const unsigned char* from, int row, int piece) {
        return reinterpret_cast<const bf16*>(from + spread(row, piece, 128));
    };
    float sums[2][4][4] = {};
    load(0, 0);
    int stage = 0;
    for (Index k0 = 0; k0 < r.x.cols; k0 += Choice::depth, stage ^= 1) {
        wait_for_copies<0>();
        __syncthreads();
        if (k0 + Choice::depth < r.x.cols) load(k0 + Choice::depth, stage ^ 1);
        const unsigned char *a_from = stages + stage * Choice::stage_bytes, *b_from = a_from + Choice::a_bytes;
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            std::uint32_t a[2][4];
#pragma unroll
            for (int m = 0; m < 2; ++m)
                load_matrices(a[m], at(a_from, token0 + 16 * m + lane % 16, 2 * k + lane / 16));
#pragma unroll
            for (int term = 2; term >= 0; --term) {
#pragma unroll
                for (int n = 0; n < 2; ++n) {
                    std::uint32_t b[4];
                    load_matrices(b, at(b_from, term * routed_experts + expert0 + 16 * n + lane / 16 * 8 + lane % 8,
                                        2 * k + lane / 8 % 2));
#pragma unroll
                    for (int m = 0; m < 2; ++m) {
                        multiply_add(sums[m][2 * n], a[m], b[0], b[1]);
                        multiply_add(sums[m][2 * n + 1], a[m], b[2], b[3]);
                    }
                }
            }
        }
    }
    __syncthreads();
    float* logits = reinterpret_cast<float*>(stages);
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
        for (int n = 0; n < 4; ++n)
#pragma unroll
            for (int half = 0; half < 2; ++half)
                *reinterpret_cast<float2*>(logits + (token0 + 16 * m + lane / 4 + 8 * half) * Choice::logit_row +
                                           expert0 + 8 * n + lane % 4 * 2) = {sums[m][n][2 * half],
                                                                              sums[m][n][2 * half + 1]};
    __syncthreads();
    for (int t = warp; t < Choice::tokens; t += 8)
        if (first + t < r.x.rows) r.choose(first + t, logits + t * Choice::logit_row);
}

/// The gradients of the chosen logits in place of dweights, and what they add to dx; a warp a token.
inline void router_inputs_bf16(const Context<Cuda>& ctx, MatrixView<const float> w, RouterRule rule,
                               MatrixView<const std::int32_t> experts, MatrixView<float> dweights,
                               MatrixView<const float> scores, MatrixView<bf16> dx) {
    const float plain = static_cast<float>(rule.factor);
    const bool renormalize = rule.renormalize;
    for_rows(ctx, scores.rows, 32, [=] __device__(Index n, Team team) {
        constexpr unsigned all = 0xffffffffu;
        const int count = static_cast<int>(experts.cols);
        const bool mine = team.rank < count;
        const int expert = mine ? experts(n, team.rank) : 0;
        const float s = mine ? scores(n, expert) : 0.0f, dweight = mine ? dweights(n, team.rank) : 0.0f;
        float sum = 0.0f, mean = 0.0f, scale = plain;
        if (renormalize) {
            for (int j = 0; j < count; ++j) {
                const float other = __shfl_sync(all, s, j);
                sum += other;
                mean += __shfl_sync(all, dweight, j) * other;
            }
            mean /= sum + 1e-20f;
            scale /= sum + 1e-20f;
        }
        // (MOE-7)
        const float gradient = s * (1.0f - s) * scale * (dweight - mean);
        if (mine) dweights(n, team.rank) = gradient;
        for (Index first = 0; first < dx.cols; first += 256) {
            const Index c = first + 8 * team.rank;
            const bool inside = c < dx.cols;
            uint4 packed = inside ? *reinterpret_cast<const uint4*>(dx.row(n) + c) : uint4{};
            const float2 pairs[4] = {unpack_bf16(packed.x), unpack_bf16(packed.y), unpack_bf16(packed.z),
                                     unpack_bf16(packed.w)};
            float sums[8];
            for (int i = 0; i < 4; ++i) sums[2 * i] = pairs[i].x, sums[2 * i + 1] = pairs[i].y;
#pragma unroll 4
            for (int j = 0; j < count; ++j) {
                const float factor = __shfl_sync(all, gradient, j);
                const float* row = w.row(__shfl_sync(all, expert, j)) + c;
                if (!inside) continue;
                const float4 low = *reinterpret_cast<const float4*>(row),
                             high = *reinterpret_cast<const float4*>(row + 4);
                sums[0] += factor * low.x, sums[1] += factor * low.y, sums[2] += factor * low.z,
                    sums[3] += factor * low.w;
                sums[4] += factor * high.x, sums[5] += factor * high.y, sums[6] += factor * high.z,
                    sums[7] += factor * high.w;
            }
            packed = {pack_bf16(sums[0], sums[1]), pack_bf16(sums[2], sums[3]), pack_bf16(sums[4], sums[5]),
                      pack_bf16(sums[6], sums[7])};
            if (inside) *reinterpret_cast<uint4*>(dx.row(n) + c) = packed;
        }
    });
}

/// partial [blocks, 64, M] = dlogits^T x of a block's tokens, 640 columns a block, from the gradients of the chosen
/// [N, k]. The gradients are split into two terms, which leaves 2^-17 of them.
struct RouterWeights {
    MatrixView<const bf16> x;
    MatrixView<const std::int32_t> experts;
    MatrixView<const float> gradient;
    Index tokens_a_block;
    float* partial;

    static constexpr int columns = 640, depth = 64;
    static constexpr int x_bytes = depth * columns * 2, term_bytes = depth * 128,
                         bytes = 2 * x_bytes + 2 * term_bytes;
    __host__ __device__ Index col_tiles() const { return (x.cols + columns - 1) / columns; }
};

template <class Job>
__global__ void __launch_bounds__(256, 1) router_weights_bf16_kernel(const Job r) {
    extern __shared__ __align__(1024) unsigned char stages[];
    const Index part = blockIdx.x / r.col_tiles(), col0 = blockIdx.x % r.col_tiles() * Job::columns;
    const Index begin = part * r.tokens_a_block, end = min(begin + r.tokens_a_block, r.x.rows);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, chosen = static_cast<int>(r.experts.cols);
    unsigned char* terms = stages + 2 * Job::x_bytes;
    const auto load = [&](Index n0, int stage) {
        constexpr int pieces = Job::columns / 8;
        for (int i = threadIdx.x; i < Job::depth * pieces; i += 256) {
            const int row = i / pieces, piece = i % pieces;
            const bool exists = n0 + row < end && col0 + 8 * piece < r.x.cols;
            copy_16_bytes(stages + stage * Job::x_bytes + spread(row, piece, Job::columns * 2),
                          exists ? r.x.row(n0 + row) + col0 + 8 * piece : r.x.data, exists);
        }
        commit_copies();
    };
    // A warp has all experts and 80 columns.
    float sums[4][10][4] = {};
    if (begin < end) load(begin, 0);
    int stage = 0;
    for (Index n0 = begin; n0 < end; n0 += Job::depth, stage ^= 1) {
        wait_for_copies<0>();
        __syncthreads();
        if (n0 + Job::depth < end) load(n0 + Job::depth, stage ^ 1);
        for (int i = threadIdx.x; i < 2 * Job::term_bytes / 16; i += 256)
            reinterpret_cast<uint4*>(terms)[i] = uint4{};
        __syncthreads();
        for (int i = threadIdx.x; i < Job::depth * chosen; i += 256) {
            const int row = i / chosen, slot = i % chosen;
            if (n0 + row >= end) continue;
            const int e = r.experts(n0 + row, slot);
            float value = r.gradient(n0 + row, slot);
            for (int t = 0; t < 2; ++t)
                reinterpret_cast<bf16*>(terms + t * Job::term_bytes + spread(row, e / 8, 128))[e % 8] =
                    next_term(value);
        }
        __syncthreads();
        const unsigned char* x_from = stages + stage * Job::x_bytes;
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            std::uint32_t a[2][4][4];
#pragma unroll
            for (int t = 0; t < 2; ++t)
#pragma unroll
                for (int m = 0; m < 4; ++m)
                    load_matrices_transposed(
                        a[t][m], reinterpret_cast<const bf16*>(
                                     terms + t * Job::term_bytes +
                                     spread(16 * k + lane / 16 * 8 + lane % 8, 2 * m + lane / 8 % 2, 128)));
#pragma unroll
            for (int n = 0; n < 5; ++n) {
                std::uint32_t b[4];
                load_matrices_transposed(
                    b, reinterpret_cast<const bf16*>(
                           x_from + spread(16 * k + lane % 16, warp * 10 + 2 * n + lane / 16, Job::columns * 2)));
#pragma unroll
                for (int t = 1; t >= 0; --t)
#pragma unroll
                    for (int m = 0; m < 4; ++m) {
                        multiply_add(sums[m][2 * n], a[t][m], b[0], b[1]);
                        multiply_add(sums[m][2 * n + 1], a[t][m], b[2], b[3]);
                    }
            }
        }
    }
#pragma unroll
    for (int m = 0; m < 4; ++m)
#pragma unroll
        for (int n = 0; n < 10; ++n)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int e = 16 * m + lane / 4 + 8 * half;
                const Index c = col0 + warp * 80 + 8 * n + lane % 4 * 2;
                if (c < r.x.cols)
                    *reinterpret_cast<float2*>(r.partial + (part * routed_experts + e) * r.x.cols + c) = {
                        sums[m][n][2 * half], sums[m][n][2 * half + 1]};
            }
}

/// Whether these kernels take such tokens: rows of whole, aligned 16-byte pieces.
inline bool tensor_router(MatrixView<const bf16> x, Index experts, Index chosen) {
    return experts <= routed_experts && chosen <= 32 && x.cols > 0 && x.cols % 8 == 0 && x.stride % 8 == 0 &&
           reinterpret_cast<std::uintptr_t>(x.data) % 16 == 0;
}

inline void tensor_router_forward(const Context<Cuda>& ctx, MatrixView<const bf16> x, MatrixView<const float> w,
                                  VectorView<const float> bias, RouterRule rule, MatrixView<float> scores,
                                  MatrixView<std::int32_t> experts, MatrixView<float> weights,
                                  VectorView<float> cutoff) {
    const MatrixView<bf16> terms(ctx.workspace<bf16>(Scratch::operation, 3 * routed_experts * x.cols),
                                 3 * routed_experts, x.cols);
    split_weights(ctx, w, terms);
    const RouterChoice job{x, terms, bias.data, rule, scores, weights, experts, cutoff.data};
    constexpr int bytes = 2 * RouterChoice::stage_bytes;
    KIMIK3_CUDA(cudaFuncSetAttribute(router_choice_kernel<RouterChoice>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     bytes));
    router_choice_kernel<<<exact_grid(ceil_div(x.rows, Index{RouterChoice::tokens})), 256, bytes, ctx.stream()>>>(job);
    check_launch();
}

inline void tensor_router_backward(const Context<Cuda>& ctx, MatrixView<const bf16> x, MatrixView<const float> w,
                                   RouterRule rule, MatrixView<const std::int32_t> experts, MatrixView<float> dweights,
                                   MatrixView<const float> scores, MatrixView<bf16> dx, MatrixView<float> dw) {
    router_inputs_bf16(ctx, w, rule, experts, dweights, scores, dx);
    const Index tokens = (std::max)(Index{RouterWeights::depth}, ceil_div(x.rows, Index{132})),
                parts = ceil_div(x.rows, tokens);
    float* partial = ctx.workspace<float>(Scratch::operation, parts * routed_experts * x.cols);
    const RouterWeights job{x, experts, dweights, tokens, partial};
    KIMIK3_CUDA(cudaFuncSetAttribute(router_weights_bf16_kernel<RouterWeights>,
                                     cudaFuncAttributeMaxDynamicSharedMemorySize, RouterWeights::bytes));
    router_weights_bf16_kernel<<<exact_grid(parts * job.col_tiles()), 256, RouterWeights::bytes, ctx.stream()>>>(job);
    check_launch();
    for_each(ctx, dw.rows * dw.cols, [=] __device__(Index i) {
        const Index e = i / dw.cols, c = i % dw.cols;
        float sum = 0.0f;
#pragma unroll 8
        for (Index part = 0; part < parts; ++part) sum += partial[(part * routed_experts + e) * dw.cols + c];
        dw(e, c) += sum;
    });
}

}  // namespace kimik3::gpu
