#pragma once
// The router of bf16 tokens on Hopper's tensor cores, for up to 64 experts and 8 a token. Its weights are float32
// numbers: each is taken as a sum of bf16 terms, three of which hold all of its bits, so products with the tokens are
// exact and their sums are float32's. Forward makes 128 tokens a block, from the logits to the choice; backward's
// weight gradient is summed over a block's tokens, then over the blocks in their order.

#include "kimik3/ops/cuda/warpgroup.cuh"
#include "kimik3/ops/formulas.hpp"
#include "kimik3/ops/router.hpp"

namespace kimik3::gpu {

inline constexpr int routed_experts = 64, routed_slots = 8;

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

    static constexpr int tokens = 128, depth = 64, score_row = 65;
    static constexpr int a_bytes = tokens * 128, b_bytes = 3 * routed_experts * 128, stage_bytes = a_bytes + b_bytes;

    /// A number whose order as an unsigned one is that of the scores; 0 is below all. NaN stands with minus infinity.
    __device__ static std::uint32_t key(float value) {
        const std::uint32_t bits = __float_as_uint(value == value ? value : -INFINITY);
        return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
    }
    __device__ static float value_of(std::uint32_t key) {
        return __uint_as_float((key & 0x80000000u) != 0 ? key & 0x7fffffffu : ~key);
    }

    /// By a thread, from the scores of token n in shared memory and all biases. slots > k: how many it keeps in order.
    template <int slots>
    __device__ void choose(Index n, const float* score, const float* biases) const {
        std::uint32_t keys[slots] = {};
        int chosen[slots] = {};
        bool broken = false;
        const int all = static_cast<int>(scores.cols), count = static_cast<int>(experts.cols);
        for (int e = 0; e < all; ++e) {
            const float biased = score[e] + biases[e];
            broken |= biased != biased;
            std::uint32_t moving = key(biased);
            int expert = e;
#pragma unroll
            for (int j = 0; j < slots; ++j) {
                const bool better = moving > keys[j];  // equal ones were of lower experts
                const std::uint32_t old_key = keys[j];
                const int old = chosen[j];
                keys[j] = better ? moving : old_key, chosen[j] = better ? expert : old;
                moving = better ? old_key : moving, expert = better ? old : expert;
            }
        }
        float sum = 0.0f;
#pragma unroll
        for (int j = 0; j < slots; ++j) {
            if (j < count) sum += score[chosen[j]];
            if (j == count) cutoff[n] = broken ? NAN : value_of(keys[j]);
        }
        const float factor = broken ? NAN : static_cast<float>(rule.factor),
                    scale = rule.renormalize ? factor / (sum + 1e-20f) : factor;
#pragma unroll
        for (int j = 0; j < slots; ++j)
            if (j < count) experts(n, j) = chosen[j], weights(n, j) = score[chosen[j]] * scale;
    }
};

template <class Choice>
__global__ void __launch_bounds__(256, 2) router_choice_kernel(const Choice r) {
    begin_in_turn();
    extern __shared__ __align__(1024) unsigned char stages[];
    const Index first = blockIdx.x * Index{Choice::tokens};
    const int lane = threadIdx.x % 32, piece = threadIdx.x % 8;
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
    // A warpgroup has 64 tokens, and of each expert three sums, of the three terms.
    const int group = threadIdx.x / 128;
    const std::uint32_t memory = shared_address(stages);
    float sums[96];
    load(0, 0);
    int stage = 0;
    for (Index k0 = 0; k0 < r.x.cols; k0 += Choice::depth, stage ^= 1) {
        wait_for_copies<0>();
        wait_for_products<0>();
        show_to_products();
        __syncthreads();
        const std::uint32_t from = memory + stage * Choice::stage_bytes;
        const std::uint64_t a = operand(from + 8192 * group), b = operand(from + Choice::a_bytes);
        begin_products();
#pragma unroll
        for (int k = 0; k < 4; ++k)
            multiply_add<false, false>(sums, further(a, 32 * k), further(b, 32 * k), k0 + k > 0);
        commit_products();
        if (k0 + Choice::depth < r.x.cols) load(k0 + Choice::depth, stage ^ 1);
    }
    wait_for_products<0>();
    __syncthreads();
    float *scores = reinterpret_cast<float*>(stages), *biases = scores + Choice::tokens * Choice::score_row;
    if (threadIdx.x < routed_experts)
        biases[threadIdx.x] = threadIdx.x < r.scores.cols ? r.bias[threadIdx.x] : 0.0f;
#pragma unroll
    for (int j = 0; j < 8; ++j)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float* high = &sums[4 * j + i];
            const int row = 64 * group + threadIdx.x / 32 % 4 * 16 + lane / 4 + i / 2 * 8;
            // (MOE-1)
            scores[row * Choice::score_row + 8 * j + lane % 4 * 2 + i % 2] = sigmoid(high[64] + high[32] + high[0]);
        }
    __syncthreads();
    const int rows = static_cast<int>(min(r.x.rows - first, Index{Choice::tokens})), e = threadIdx.x % routed_experts;
    if (e < r.scores.cols)
        for (int row = threadIdx.x / routed_experts; row < rows; row += 256 / routed_experts)
            r.scores(first + row, e) = scores[row * Choice::score_row + e];
    // (MOE-2), (MOE-3)
    for (int row = threadIdx.x; row < rows; row += 256) {
        if (r.experts.cols <= 4)
            r.template choose<5>(first + row, scores + row * Choice::score_row, biases);
        else
            r.template choose<routed_slots + 1>(first + row, scores + row * Choice::score_row, biases);
    }
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
        constexpr int ahead = 5;  // times four columns of dx that a lane asks for before all else
        uint2 fetched[ahead];
        const auto fetch = [&](Index first) {
#pragma unroll
            for (int a = 0; a < ahead; ++a) {
                const Index c = first + 128 * a + 4 * team.rank;
                fetched[a] = c < dx.cols ? *reinterpret_cast<const uint2*>(dx.row(n) + c) : uint2{};
            }
        };
        fetch(0);
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
        for (Index first = 0; first < dx.cols; first += 128 * ahead) {
            if (first > 0) fetch(first);
#pragma unroll
            for (int a = 0; a < ahead; ++a) {
                const Index c = first + 128 * a + 4 * team.rank;
                const bool inside = c < dx.cols;
                float2 low = unpack_bf16(fetched[a].x), high = unpack_bf16(fetched[a].y);
#pragma unroll 4
                for (int j = 0; j < count; ++j) {
                    const float factor = __shfl_sync(all, gradient, j);
                    const float* row = w.row(__shfl_sync(all, expert, j)) + c;
                    const float4 four = inside ? *reinterpret_cast<const float4*>(row) : float4{};
                    low.x += factor * four.x, low.y += factor * four.y;
                    high.x += factor * four.z, high.y += factor * four.w;
                }
                if (inside)
                    *reinterpret_cast<uint2*>(dx.row(n) + c) = {pack_bf16(low.x, low.y), pack_bf16(high.x, high.y)};
            }
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
    begin_in_turn();
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
    // The pairs of a step, a step ahead.
    constexpr int own = Job::depth * routed_slots / 256;
    int own_expert[own];
    float own_gradient[own];
    const auto look_up = [&](Index n0) {
#pragma unroll
        for (int i = 0; i < own; ++i) {
            const int pair = threadIdx.x + 256 * i, row = pair / chosen;
            const bool exists = row < Job::depth && n0 + row < end;
            own_expert[i] = exists ? r.experts(n0 + row, pair % chosen) : -1;
            own_gradient[i] = exists ? r.gradient(n0 + row, pair % chosen) : 0.0f;
        }
    };
    // A warp has all experts and 80 columns.
    float sums[4][10][4] = {};
    if (begin < end) load(begin, 0), look_up(begin);
    int stage = 0;
    for (Index n0 = begin; n0 < end; n0 += Job::depth, stage ^= 1) {
        wait_for_copies<0>();
        __syncthreads();
        if (n0 + Job::depth < end) load(n0 + Job::depth, stage ^ 1);
        for (int i = threadIdx.x; i < 2 * Job::term_bytes / 16; i += 256)
            reinterpret_cast<uint4*>(terms)[i] = uint4{};
        __syncthreads();
#pragma unroll
        for (int i = 0; i < own; ++i) {
            const int row = (threadIdx.x + 256 * i) / chosen, e = own_expert[i];
            for (int t = 0; t < 2 && e >= 0; ++t)
                reinterpret_cast<bf16*>(terms + t * Job::term_bytes + spread(row, e / 8, 128))[e % 8] =
                    next_term(own_gradient[i]);
        }
        look_up(n0 + Job::depth);
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
    return has_warpgroups() && experts <= routed_experts && chosen <= routed_slots && x.cols > 0 && x.cols % 8 == 0 &&
           x.stride % 8 == 0 && reinterpret_cast<std::uintptr_t>(x.data) % 16 == 0;
}

inline void tensor_router_forward(const Context<Cuda>& ctx, MatrixView<const bf16> x, MatrixView<const float> w,
                                  VectorView<const float> bias, RouterRule rule, MatrixView<float> scores,
                                  MatrixView<std::int32_t> experts, MatrixView<float> weights,
                                  VectorView<float> cutoff) {
    const MatrixView<bf16> terms(ctx.workspace<bf16>(Scratch::operation, 3 * routed_experts * x.cols),
                                 3 * routed_experts, x.cols);
    split_weights(ctx, w, terms);
    const RouterChoice job{x, terms, bias.data, rule, scores, weights, experts, cutoff.data};
    launch_early(ctx, ceil_div(x.rows, Index{RouterChoice::tokens}), 256, 2 * RouterChoice::stage_bytes,
                 router_choice_kernel<RouterChoice>, job);
}

inline void tensor_router_backward(const Context<Cuda>& ctx, MatrixView<const bf16> x, MatrixView<const float> w,
                                   RouterRule rule, MatrixView<const std::int32_t> experts, MatrixView<float> dweights,
                                   MatrixView<const float> scores, MatrixView<bf16> dx, MatrixView<float> dw) {
    router_inputs_bf16(ctx, w, rule, experts, dweights, scores, dx);
    const Index tokens = (std::max)(Index{RouterWeights::depth}, ceil_div(x.rows, multiprocessors())),
                parts = ceil_div(x.rows, tokens);
    float* partial = ctx.workspace<float>(Scratch::operation, parts * routed_experts * x.cols);
    const RouterWeights job{x, experts, dweights, tokens, partial};
    launch_early(ctx, parts * job.col_tiles(), 256, RouterWeights::bytes, router_weights_bf16_kernel<RouterWeights>,
                 job);
    for_each(ctx, dw.rows * dw.cols, [=] __device__(Index i) {
        const Index e = i / dw.cols, c = i % dw.cols;
        float sum = 0.0f;
#pragma unroll 8
        for (Index part = 0; part < parts; ++part) sum += partial[(part * routed_experts + e) * dw.cols + c];
        dw(e, c) += sum;
    });
}

}  // namespace kimik3::gpu
