#pragma once
// The routed experts in bf16 on Hopper's tensor cores. Forward: gate, up and SiTU-GLU in one kernel, then the down
// product, then the weighted sum over slots. Backward: the gradient of the hidden values with SiTU's behind it, the
// latents' gradient, the weights', and the sum over slots.

#include "kimik3/ops/cuda/expert_tiles.cuh"
#include "kimik3/ops/cuda/expert_weights.cuh"
#include "kimik3/ops/situ.hpp"

namespace kimik3::gpu {

/// SiTU-GLU by the processor's own tanh, exact to 2^-11.
struct QuickSitu {
    float beta, linear, inverse_beta, inverse_linear;
    bool limit;

    explicit QuickSitu(SituBetas b)
        : beta(static_cast<float>(b.gate)),
          linear(static_cast<float>(b.linear)),
          inverse_beta(static_cast<float>(1.0 / b.gate)),
          inverse_linear(static_cast<float>(1.0 / b.linear)),
          limit(b.is_swiglu()) {}

    __device__ static float tanh(float x) {
        float y;
        asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
        return y;
    }
    __device__ static float sigmoid(float x) { return __fdividef(1.0f, 1.0f + __expf(-x)); }

    __device__ float value(float gate, float up) const {
        const float s = sigmoid(gate);
        return limit ? gate * s * up : beta * tanh(gate * inverse_beta) * s * linear * tanh(up * inverse_linear);
    }
    struct Slopes {
        float value, gate, up;
    };
    /// The value and its derivatives.
    __device__ Slopes slopes(float gate, float up) const {
        const float s = sigmoid(gate);
        if (limit) {
            const float silu = gate * s;
            return {silu * up, up * s * (1.0f + gate * (1.0f - s)), silu};
        }
        const float t = tanh(gate * inverse_beta), h = tanh(up * inverse_linear), left = beta * t * s,
                    right = linear * h;
        return {left * right, right * s * ((1.0f - t * t) + beta * t * (1.0f - s)), left * (1.0f - h * h)};
    }
};

/// gate and up = z w1^T and z w3^T of 72 columns each, hidden = SiTU(gate, up).
struct GateUpTiles : ExpertTiles<144, false, true> {
    MatrixView<bf16> gate, up, hidden;
    QuickSitu form;

    __device__ void finish(float (&sums)[2][72], const RowTile& at, int own_rows, FreeStages free) const {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int m = 0; m < 2; ++m) {
            const int row0 = own_rows + 128 * m, rows = at.count - row0;
            if (rows <= 0) continue;
#pragma unroll
            for (int first = 0; first < 9; first += 8) {
#pragma unroll
                for (int j = first; j < first + 8 && j < 9; ++j) {
#pragma unroll
                    for (int half = 0; half < 2; ++half) {
                        const float *g = &sums[m][4 * j + 2 * half], *u = &sums[m][4 * (j + 9) + 2 * half];
                        const int row = lane / 4 + 8 * half;
                        free.rows(0).pair(row, j - first) = pack_bf16(g[0], g[1]);
                        free.rows(1).pair(row, j - first) = pack_bf16(u[0], u[1]);
                        free.rows(2).pair(row, j - first) = pack_bf16(form.value(g[0], u[0]), form.value(g[1], u[1]));
                    }
                }
                const int col = at.col * 72 + 8 * first;
                const MatrixView<bf16> to[3] = {gate, up, hidden};
#pragma unroll
                for (int i = 0; i < 3; ++i)
                    free.rows(i).template store<8>(to[i].row(at.first + row0) + col, to[i].stride, rows,
                                                   first == 0 ? min(64, cols_of_b - col) : cols_of_b - col < 8 ? 0 : 8);
                __syncwarp();
            }
        }
    }
};

/// The tile as it is.
template <bool turned>
struct PlainTiles : ExpertTiles<160, turned, false> {
    MatrixView<bf16> to;

    __device__ void finish(float (&sums)[2][80], const RowTile& at, int own_rows, FreeStages free) const {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int m = 0; m < 2; ++m) {
            const int row0 = own_rows + 128 * m, rows = at.count - row0;
            if (rows <= 0) continue;
#pragma unroll
            for (int first = 0; first < 20; first += 8) {
                const StagedRows staged = free.rows(first / 8);
#pragma unroll
                for (int j = first; j < first + 8 && j < 20; ++j) {
                    staged.pair(lane / 4, j - first) = pack_bf16(sums[m][4 * j], sums[m][4 * j + 1]);
                    staged.pair(lane / 4 + 8, j - first) = pack_bf16(sums[m][4 * j + 2], sums[m][4 * j + 3]);
                }
                const int col = at.col * 160 + 8 * first;
                staged.template store<8>(to.row(at.first + row0) + col, to.stride, rows,
                                         min(first == 16 ? 32 : 64, this->cols_of_b - col));
            }
            __syncwarp();
        }
    }
};

/// From da = du w2: gate and up become their gradients, hidden = p SiTU(gate, up), and dots [rows, column tiles] the
/// share that a tile's columns have in da . SiTU(gate, up).
struct HiddenGradientTiles : ExpertTiles<144, true, false> {
    MatrixView<bf16> gate, up, hidden;
    MatrixView<const float> p;
    float* dots;
    QuickSitu form;

    /// 16 rows of gate and up as they travel.
    struct Fetched {
        uint4 gate[4], up[4];
    };
    __device__ Fetched fetch(const RowTile& at, int own_rows, int part) const {
        Fetched f;
        const int row0 = own_rows + part / 3 * 128, col0 = at.col * 144 + part % 3 * 64;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int row = row0 + threadIdx.x % 32 / 8 + 4 * i, col = col0 + threadIdx.x % 8 * 8;
            const bool exists = row < at.count && col < cols_of_b && (part % 3 < 2 || threadIdx.x % 8 < 2);
            f.gate[i] = exists ? *reinterpret_cast<const uint4*>(gate.row(at.first + row) + col) : uint4{};
            f.up[i] = exists ? *reinterpret_cast<const uint4*>(up.row(at.first + row) + col) : uint4{};
        }
        return f;
    }
    __device__ float weight_of(const RowTile& at, int row) const {
        const int pair = row < at.count ? static_cast<int>(d.source[at.first + row]) : -1;
        const int token = token_of(pair);
        return pair < 0 ? 0.0f : p(token, pair - token * p.cols);
    }

    __device__ void finish(float (&sums)[2][72], const RowTile& at, int own_rows, FreeStages free) const {
        const int lane = threadIdx.x % 32;
        Fetched next = fetch(at, own_rows, 0);
        float weight[2] = {}, dot[2] = {};
#pragma unroll
        for (int part = 0; part < 6; ++part) {
            const int m = part / 3, first = part % 3 * 8, row0 = own_rows + 128 * m, rows = at.count - row0;
            if (rows <= 0) continue;
            if (first == 0) {
                for (int half = 0; half < 2; ++half)
                    weight[half] = weight_of(at, row0 + lane / 4 + 8 * half), dot[half] = 0.0f;
            }
            __syncwarp();
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                free.rows(0).piece(lane / 8 + 4 * i, lane % 8) = next.gate[i];
                free.rows(1).piece(lane / 8 + 4 * i, lane % 8) = next.up[i];
            }
            if (part < 5) next = fetch(at, own_rows, part + 1);
            __syncwarp();
#pragma unroll
            for (int j = first; j < first + 8 && j < 18; ++j) {
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const int row = lane / 4 + 8 * half;
                    std::uint32_t &gates = free.rows(0).pair(row, j - first), &ups = free.rows(1).pair(row, j - first);
                    const float2 g = unpack_bf16(gates), u = unpack_bf16(ups);
                    const float da[2] = {sums[m][4 * j + 2 * half], sums[m][4 * j + 2 * half + 1]};
                    const QuickSitu::Slopes a = form.slopes(g.x, u.x), b = form.slopes(g.y, u.y);
                    // (MOE-6)
                    dot[half] += da[0] * a.value + da[1] * b.value;
                    const float first_da = da[0] * weight[half], second_da = da[1] * weight[half];
                    gates = pack_bf16(first_da * a.gate, second_da * b.gate);
                    ups = pack_bf16(first_da * a.up, second_da * b.up);
                    free.rows(2).pair(row, j - first) = pack_bf16(weight[half] * a.value, weight[half] * b.value);
                }
            }
            const int col = at.col * 144 + 8 * first;
            const MatrixView<bf16> to[3] = {gate, up, hidden};
#pragma unroll
            for (int i = 0; i < 3; ++i)
                free.rows(i).template store<8>(to[i].row(at.first + row0) + col, to[i].stride, rows,
                                               min(first == 16 ? 16 : 64, cols_of_b - col));
            if (first != 16) continue;
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                float sum = dot[half];
                sum += __shfl_xor_sync(0xffffffffu, sum, 1);
                sum += __shfl_xor_sync(0xffffffffu, sum, 2);
                const int row = lane / 4 + 8 * half;
                if (lane % 4 == 0 && row < rows) dots[(at.first + row0 + row) * col_tiles() + at.col] = sum;
            }
        }
    }
};

/// to[n] = sum over slots, in their order, of weight(n, slot) from[row of the pair], eight columns a thread;
/// also(n, slot, row) for every pair.
template <class Weight, class Also>
void combine_bf16(const Context<Cuda>& ctx, const ExpertDispatch& d, MatrixView<const bf16> from, MatrixView<bf16> to,
                  Weight weight, Also also) {
    const unsigned pieces = static_cast<unsigned>(to.cols / 8);
    const int chosen = static_cast<int>(d.position.cols);
    for_each(ctx, to.rows * pieces, [=] __device__(Index i) {
        const Index n = static_cast<std::uint64_t>(i) <= 0xffffffffu ? static_cast<unsigned>(i) / pieces : i / pieces;
        const int piece = static_cast<int>(i - n * pieces);
        float sum[8] = {};
#pragma unroll 4
        for (int j = 0; j < chosen; ++j) {
            const Index row = d.position(n, j);
            const uint4 values = __ldg(reinterpret_cast<const uint4*>(from.row(row)) + piece);
            const float factor = weight(n, j);
            const std::uint32_t pairs[4] = {values.x, values.y, values.z, values.w};
#pragma unroll
            for (int c = 0; c < 4; ++c) {
                const float2 both = unpack_bf16(pairs[c]);
                sum[2 * c] += factor * both.x;
                sum[2 * c + 1] += factor * both.y;
            }
            if (piece == 0) also(n, j, row);
        }
        reinterpret_cast<uint4*>(to.row(n))[piece] = {pack_bf16(sum[0], sum[1]), pack_bf16(sum[2], sum[3]),
                                                      pack_bf16(sum[4], sum[5]), pack_bf16(sum[6], sum[7])};
    });
}

/// Whether the 16-byte pieces of a matrix's rows are whole and aligned.
inline bool in_pieces(MatrixView<const bf16> m) {
    return m.cols % 8 == 0 && m.stride % 8 == 0 && reinterpret_cast<std::uintptr_t>(m.data) % 16 == 0;
}

/// Whether the tensor cores' path takes these: rows of whole 16-byte pieces, and pairs x k in 32 bits.
template <class... Matrices>
bool tensor_experts(const ExpertDispatch& d, const Matrices&... matrices) {
    return d.source.size > 0 && d.source.size * d.position.cols < Index{1} << 31 && d.experts() <= tiled_experts &&
           (in_pieces(matrices) && ...) && has_warpgroups();
}

inline void tensor_experts_forward(const Context<Cuda>& ctx, MatrixView<const bf16> z, MatrixView<const bf16> w1,
                                   MatrixView<const bf16> w3, MatrixView<const bf16> w2, SituBetas betas,
                                   const ExpertDispatch& d, MatrixView<const float> p, MatrixView<bf16> gate,
                                   MatrixView<bf16> up, MatrixView<bf16> u) {
    const Index all = d.source.size, inner = gate.cols, latent = z.cols;
    bf16* scratch = ctx.workspace<bf16>(Scratch::operation, all * (latent + inner));
    const MatrixView<bf16> out(scratch, all, latent), hidden(out.row(all), all, inner);
    const TokenOf token_of(d.position.cols);
    const int width = static_cast<int>(latent), hidden_width = static_cast<int>(inner);
    run_expert_tiles(ctx, GateUpTiles{{d, {z.data, z.data}, {w1.data, w3.data}, z.stride, w1.stride, width, 1,
                                       hidden_width, token_of, true},
                                      gate, up, hidden, QuickSitu(betas)});
    run_expert_tiles(ctx, PlainTiles<false>{{d, {hidden.data, hidden.data}, {w2.data, w2.data}, inner, w2.stride,
                                             hidden_width, 1, width, token_of, false},
                                            out});
    combine_bf16(
        ctx, d, out, u, [=] __device__(Index n, int j) { return p(n, j); }, [] __device__(Index, int, Index) {});
}

inline void tensor_experts_backward(const Context<Cuda>& ctx, MatrixView<const bf16> z, MatrixView<const bf16> du,
                                    MatrixView<const bf16> w1, MatrixView<const bf16> w3, MatrixView<const bf16> w2,
                                    SituBetas betas, const ExpertDispatch& d, MatrixView<bf16> gate,
                                    MatrixView<bf16> up, MatrixView<float> p, MatrixView<bf16> dz,
                                    MatrixView<float> dw1, MatrixView<float> dw3, MatrixView<float> dw2) {
    const Index all = d.source.size, inner = gate.cols, latent = z.cols, shares = ceil_div(inner, Index{144});
    // Rows of 16 bytes first, so that all of them are aligned.
    bf16* scratch = ctx.workspace<bf16>(Scratch::operation, all * (latent + inner + 2 * shares));
    const MatrixView<bf16> dz_rows(scratch, all, latent), hidden(dz_rows.row(all), all, inner);
    float* dots = reinterpret_cast<float*>(hidden.row(all));
    const TokenOf token_of(d.position.cols);
    const int width = static_cast<int>(latent), hidden_width = static_cast<int>(inner);
    run_expert_tiles(ctx, HiddenGradientTiles{{d, {du.data, du.data}, {w2.data, w2.data}, du.stride, w2.stride, width,
                                               1, hidden_width, token_of, true},
                                              gate, up, hidden, p, dots, QuickSitu(betas)});
    run_expert_tiles(ctx, PlainTiles<true>{{d, {gate.data, up.data}, {w1.data, w3.data}, gate.stride, w1.stride,
                                            hidden_width, 2, width, token_of, false},
                                           dz_rows});
    run_expert_weights(ctx, ExpertWeights{d, {z.data, z.data, du.data}, {gate.data, up.data, hidden.data},
                                          {z.stride, z.stride, du.stride}, {gate.stride, up.stride, inner},
                                          {dw1.data, dw3.data, dw2.data}, {dw1.stride, dw3.stride, dw2.stride}, width,
                                          hidden_width, token_of});
    combine_bf16(
        ctx, d, dz_rows, dz, [] __device__(Index, int) { return 1.0f; },
        [=] __device__(Index n, int j, Index row) {
            float sum = 0.0f;
            for (Index share = 0; share < shares; ++share) sum += dots[row * shares + share];
            p(n, j) = sum;
        });
}

}  // namespace kimik3::gpu
