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
#pragma unroll 1
        for (int i = 0; i < 4; ++i) {
            const int m = i / 2, part = i % 2, row0 = own_rows + 128 * m, pieces = part == 0 ? 8 : 1;
            if (row0 >= at.count) break;
            __syncwarp();
            put<0>(free, sums, i);
            __syncwarp();
#pragma unroll 1
            for (int at_piece = lane; at_piece < 16 * pieces; at_piece += 32) {
                const int row = at_piece / pieces, j = at_piece % pieces, col = at.col * 72 + 64 * part + 8 * j;
                if (row0 + row >= at.count || col >= cols_of_b) continue;
                float g[8], u[8], h[8];
                free.rows(0).get(row, j, g);
                free.rows(1).get(row, j, u);
#pragma unroll
                for (int c = 0; c < 8; ++c) h[c] = form.value(g[c], u[c]);
                const Index to = (at.first + row0 + row) * gate.stride + col;
                *reinterpret_cast<uint4*>(gate.data + to) = pack_eight(g);
                *reinterpret_cast<uint4*>(up.data + to) = pack_eight(u);
                *reinterpret_cast<uint4*>(hidden.row(at.first + row0 + row) + col) = pack_eight(h);
            }
        }
    }

private:
    /// Part number i, 64 columns or the last 8 of a block. Groups 0 .. 8 are gate's, 9 .. 17 up's.
    template <int this_part>
    __device__ static void put(const FreeStages& free, const float (&sums)[2][72], int i) {
        constexpr int first = this_part % 2 * 8;
        if (i == this_part) {
#pragma unroll
            for (int group = first; group < first + 8 && group < 9; ++group) {
                free.rows(0).put<this_part>(group - first, &sums[this_part / 2][4 * group]);
                free.rows(1).put<this_part>(group - first, &sums[this_part / 2][4 * (group + 9)]);
            }
        }
        if constexpr (this_part < 3) put<this_part + 1>(free, sums, i);
    }
};

/// The tile as it is.
template <bool turned>
struct PlainTiles : ExpertTiles<160, turned, false> {
    MatrixView<bf16> to;

    __device__ void finish(float (&sums)[2][80], const RowTile& at, int own_rows, FreeStages free) const {
        const int lane = threadIdx.x % 32;
#pragma unroll 1
        for (int i = 0; i < 6; ++i) {
            const int m = i / 3, part = i % 3, row0 = own_rows + 128 * m, pieces = part == 2 ? 4 : 8;
            if (row0 >= at.count) break;
            // Two places, so that one is read while the other is filled.
            const StagedRows staged = free.rows(i % 2);
            put_part<20>(staged, sums, i);
            __syncwarp();
#pragma unroll 4
            for (int at_piece = lane; at_piece < 16 * pieces; at_piece += 32) {
                const int row = at_piece / pieces, j = at_piece % pieces, col = at.col * 160 + 64 * part + 8 * j;
                if (row0 + row >= at.count || col >= this->cols_of_b) continue;
                float v[8];
                staged.get(row, j, v);
                *reinterpret_cast<uint4*>(to.row(at.first + row0 + row) + col) = pack_eight(v);
            }
        }
        __syncwarp();
    }
};

/// From da = du w2: gate and up become their gradients, hidden = p SiTU(gate, up), and dots [rows, column tiles] the
/// share that a tile's columns have in da . SiTU(gate, up).
struct HiddenGradientTiles : ExpertTiles<144, true, false> {
    MatrixView<bf16> gate, up, hidden;
    MatrixView<const float> p;
    float* dots;
    QuickSitu form;

    /// Where the piece of part i begins that the lane works on in row r0 + lane / 8; for rows and columns that there
    /// are not, another.
    __device__ Index place(const RowTile& at, int own_rows, int i, int r0) const {
        const int row = own_rows + i / 3 * 128 + r0 + threadIdx.x % 32 / 8, col = col_of(at, i % 3);
        const bool inside = col < cols_of_b && (i % 3 < 2 || threadIdx.x % 8 < 2);
        return (at.first + min(row, at.count - 1)) * gate.stride + (inside ? col : 0);
    }
    __device__ static uint4 fetch(MatrixView<bf16> from, Index place) {
        return *reinterpret_cast<const uint4*>(from.data + place);
    }
    __device__ int col_of(const RowTile& at, int part) const {
        return at.col * 144 + 64 * part + threadIdx.x % 8 * 8;
    }

    __device__ void finish(float (&sums)[2][72], const RowTile& at, int own_rows, FreeStages free) const {
        const int lane = threadIdx.x % 32;
        uint4 gates[4], ups[4];  // of the rows lane / 8 + 4 r, fetched a part ahead
#pragma unroll
        for (int r = 0; r < 4; ++r) {
            const Index from = place(at, own_rows, 0, 4 * r);
            gates[r] = fetch(gate, from), ups[r] = fetch(up, from);
        }
        float weight[4] = {}, dot[4] = {};
#pragma unroll 1
        for (int i = 0; i < 6; ++i) {
            const int m = i / 3, part = i % 3, row0 = own_rows + 128 * m, col = col_of(at, part);
            if (row0 >= at.count) break;
            if (part == 0) begin_rows(at, row0, weight, dot);
            const StagedRows staged = free.rows(i % 2);
            put_part<18>(staged, sums, i);
            __syncwarp();
#pragma unroll
            for (int r = 0; r < 4; ++r) {
                const int row = lane / 8 + 4 * r;
                float g[8], u[8], da[8], h[8];
                unpack_eight(gates[r], g);
                unpack_eight(ups[r], u);
                const Index from = place(at, own_rows, min(i + 1, 5), 4 * r);
                gates[r] = fetch(gate, from), ups[r] = fetch(up, from);
                staged.get(row, lane % 8, da);
                const bool inside = row0 + row < at.count && col < cols_of_b && (part < 2 || lane % 8 < 2);
                if (!inside) continue;
#pragma unroll
                for (int c = 0; c < 8; ++c) {
                    const QuickSitu::Slopes s = form.slopes(g[c], u[c]);
                    // (MOE-6)
                    dot[r] += da[c] * s.value;
                    const float weighted = da[c] * weight[r];
                    g[c] = weighted * s.gate, u[c] = weighted * s.up, h[c] = weight[r] * s.value;
                }
                const Index to = (at.first + row0 + row) * gate.stride + col;
                *reinterpret_cast<uint4*>(gate.data + to) = pack_eight(g);
                *reinterpret_cast<uint4*>(up.data + to) = pack_eight(u);
                *reinterpret_cast<uint4*>(hidden.row(at.first + row0 + row) + col) = pack_eight(h);
            }
            if (part == 2) end_rows(at, row0, dot);
        }
        __syncwarp();
    }

private:
    __device__ void begin_rows(const RowTile& at, int row0, float (&weight)[4], float (&dot)[4]) const {
        Index pairs[4];
#pragma unroll
        for (int r = 0; r < 4; ++r)
            pairs[r] = d.source[at.first + min(row0 + static_cast<int>(threadIdx.x) % 32 / 8 + 4 * r, at.count - 1)];
#pragma unroll
        for (int r = 0; r < 4; ++r) {
            const int pair = max(static_cast<int>(pairs[r]), 0), token = token_of(pair);
            weight[r] = p(token, pair - token * p.cols);
        }
#pragma unroll
        for (int r = 0; r < 4; ++r) weight[r] = pairs[r] < 0 ? 0.0f : weight[r], dot[r] = 0.0f;
    }
    __device__ void end_rows(const RowTile& at, int row0, const float (&dot)[4]) const {
#pragma unroll
        for (int r = 0; r < 4; ++r) {
            float sum = dot[r];
            for (int apart = 1; apart < 8; apart *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, apart);
            const int row = row0 + threadIdx.x % 32 / 8 + 4 * r;
            if (threadIdx.x % 8 == 0 && row < at.count) dots[(at.first + row) * col_tiles() + at.col] = sum;
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
            const float factor = weight(n, j);
            float values[8];
            unpack_eight(__ldg(reinterpret_cast<const uint4*>(from.row(row)) + piece), values);
#pragma unroll
            for (int c = 0; c < 8; ++c) sum[c] += factor * values[c];
            if (piece == 0) also(n, j, row);
        }
        reinterpret_cast<uint4*>(to.row(n))[piece] = pack_eight(sum);
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
