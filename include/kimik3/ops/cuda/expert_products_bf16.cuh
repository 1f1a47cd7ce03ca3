#pragma once
// The routed experts in bf16 on Hopper's tensor cores. Forward: gate, up and SiTU-GLU in one kernel, then the down
// product, then the weighted sum over slots. Backward: the gradient of the hidden values with SiTU's behind it, the
// latents' gradient, the weights', and the sum over slots.

#include "kimik3/ops/cuda/expert_tiles.cuh"
#include "kimik3/ops/cuda/expert_weights.cuh"
#include "kimik3/ops/cuda/vectors.cuh"
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

    /// The groups 0 .. 8 of sums are gate's, 9 .. 17 up's. The first eight go through shared memory.
    __device__ void finish(const float (&sums)[72], const RowTile& at, int row0, StagedRows one, StagedRows two) const {
        const int rows = at.count - row0, col = at.col * 72, cols = cols_of_b - col;
        const Index first = (at.first + row0) * gate.stride + col;
        const auto value = [&](int i) { return form.value(sums[i], sums[i + 36]); };
        std::uint32_t packed[4];
#pragma unroll
        for (int j = 0; j < 8; j += 2) {
            pack_groups(&sums[4 * j], &sums[4 * j + 4], packed);
            one.put(j, packed);
            pack_groups(&sums[36 + 4 * j], &sums[40 + 4 * j], packed);
            two.put(j, packed);
        }
        one.store<8>(gate.data + first, gate.stride, rows, cols);
        two.store<8>(up.data + first, gate.stride, rows, cols);
        __syncwarp();
#pragma unroll
        for (int j = 0; j < 8; j += 2) {
            float h[8];
#pragma unroll
            for (int i = 0; i < 8; ++i) h[i] = value(4 * j + i);
            pack_groups(h, h + 4, packed);
            one.put(j, packed);
        }
        one.store<8>(hidden.row(at.first + row0) + col, hidden.stride, rows, cols);
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = lane / 4 + 8 * half, c = 64 + lane % 4 * 2, i = 32 + 2 * half;
            if (row >= rows || c >= cols) continue;
            const auto pair = [&](bf16* to) { return reinterpret_cast<std::uint32_t*>(to + c); };
            *pair(gate.data + first + row * gate.stride) = pack_bf16(sums[i], sums[i + 1]);
            *pair(up.data + first + row * gate.stride) = pack_bf16(sums[i + 36], sums[i + 37]);
            *pair(hidden.row(at.first + row0 + row) + col) = pack_bf16(value(i), value(i + 1));
        }
    }
};

/// The tile as it is.
template <bool turned>
struct PlainTiles : ExpertTiles<160, turned, false> {
    MatrixView<bf16> to;

    __device__ void finish(const float (&sums)[80], const RowTile& at, int row0, StagedRows one, StagedRows two) const {
        const int rows = at.count - row0, cols = this->cols_of_b - at.col * 160;
        bf16* first = to.row(at.first + row0) + at.col * 160;
        const auto put = [&](const StagedRows& staged, int group, int groups) {
#pragma unroll
            for (int j = 0; j < groups; j += 2) {
                std::uint32_t packed[4];
                pack_groups(&sums[4 * (group + j)], &sums[4 * (group + j) + 4], packed);
                staged.put(j, packed);
            }
        };
        put(one, 0, 8);
        put(two, 8, 8);
        one.store<8>(first, to.stride, rows, cols);
        two.store<8>(first + 64, to.stride, rows, cols - 64);
        __syncwarp();
        put(one, 16, 4);
        one.store<4>(first + 128, to.stride, rows, cols - 128);
    }
};

/// From da = du w2: gate and up become their gradients, hidden = p SiTU(gate, up), and dots [rows, column tiles] the
/// share that a tile's columns have in da . SiTU(gate, up).
struct HiddenGradientTiles : ExpertTiles<144, true, false> {
    MatrixView<bf16> gate, up, hidden;
    MatrixView<const float> p;
    float* dots;
    QuickSitu form;

    __device__ void finish(const float (&sums)[72], const RowTile& at, int row0, StagedRows one, StagedRows two) const {
        const int lane = threadIdx.x % 32, rows = at.count - row0;
        float weight[2], dot[2] = {};
        int pairs[2];
#pragma unroll
        for (int half = 0; half < 2; ++half)
            pairs[half] = static_cast<int>(d.source[at.first + row0 + min(lane / 4 + 8 * half, rows - 1)]);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int token = token_of(max(pairs[half], 0));
            weight[half] = p(token, max(pairs[half], 0) - token * static_cast<int>(p.cols));
            if (pairs[half] < 0) weight[half] = 0.0f;
        }
        finish_part<0, 8>(sums, at, row0, one, two, weight, dot);
        finish_part<8, 8>(sums, at, row0, one, two, weight, dot);
        finish_part<16, 2>(sums, at, row0, one, two, weight, dot);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float sum = dot[half];
            sum += __shfl_xor_sync(0xffffffffu, sum, 1);
            sum += __shfl_xor_sync(0xffffffffu, sum, 2);
            const int row = lane / 4 + 8 * half;
            if (lane % 4 == 0 && row < rows) dots[(at.first + row0 + row) * col_tiles() + at.col] = sum;
        }
    }

private:
    /// So many groups of eight columns from group on.
    template <int group, int groups>
    __device__ void finish_part(const float (&sums)[72], const RowTile& at, int row0, StagedRows one, StagedRows two,
                                const float (&weight)[2], float (&dot)[2]) const {
        const int rows = at.count - row0, col = at.col * 144 + 8 * group, cols = cols_of_b - col;
        const Index first = (at.first + row0) * gate.stride + col;
        if (cols <= 0) return;
        __syncwarp();
        fetch<groups>(gate.data + first, rows, cols, one);
        fetch<groups>(up.data + first, rows, cols, two);
        __syncwarp();
        std::uint32_t values[groups / 2][4];
#pragma unroll
        for (int j = 0; j < groups; j += 2) {
            std::uint32_t gates[4], ups[4];
            one.get(j, gates);
            two.get(j, ups);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int half = i % 2, at_sum = 4 * (group + j) + 2 * i;
                const float2 g = unpack_bf16(gates[i]), u = unpack_bf16(ups[i]);
                const QuickSitu::Slopes a = form.slopes(g.x, u.x), b = form.slopes(g.y, u.y);
                // (MOE-6)
                dot[half] += sums[at_sum] * a.value + sums[at_sum + 1] * b.value;
                const float da = sums[at_sum] * weight[half], db = sums[at_sum + 1] * weight[half];
                gates[i] = pack_bf16(da * a.gate, db * b.gate);
                ups[i] = pack_bf16(da * a.up, db * b.up);
                values[j / 2][i] = pack_bf16(weight[half] * a.value, weight[half] * b.value);
            }
            one.put(j, gates);
            two.put(j, ups);
        }
        one.store<groups>(gate.data + first, gate.stride, rows, cols);
        two.store<groups>(up.data + first, gate.stride, rows, cols);
        __syncwarp();
#pragma unroll
        for (int j = 0; j < groups; j += 2) one.put(j, values[j / 2]);
        one.store<groups>(hidden.row(at.first + row0) + col, hidden.stride, rows, cols);
    }
    /// 16 rows of pieces; zeros where there are none, which give dots nothing.
    template <int pieces>
    __device__ void fetch(const bf16* from, int rows, int cols, const StagedRows& to) const {
        const int j = threadIdx.x % pieces, row0 = threadIdx.x % 32 / pieces;
        const bool inside = 8 * j < cols;
        uint4 fetched[pieces / 2];
#pragma unroll
        for (int i = 0; i < pieces / 2; ++i) {
            const int row = row0 + i * (32 / pieces);
            const Index place = min(row, rows - 1) * gate.stride + (inside ? 8 * j : 0);
            fetched[i] = *reinterpret_cast<const uint4*>(from + place);
        }
#pragma unroll
        for (int i = 0; i < pieces / 2; ++i)
            to.piece(row0 + i * (32 / pieces), j) = inside ? fetched[i] : uint4{};
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
            load_eight(from.row(row) + 8 * piece, values);
#pragma unroll
            for (int c = 0; c < 8; ++c) sum[c] += factor * values[c];
            if (piece == 0) also(n, j, row);
        }
        Eight<bf16>::of(sum).store(to.row(n) + 8 * piece);
    });
}

/// Whether the 16-byte pieces of a matrix's rows are whole and aligned.
inline bool whole_pieces(MatrixView<const bf16> m) {
    return m.cols % 8 == 0 && m.stride % 8 == 0 && reinterpret_cast<std::uintptr_t>(m.data) % 16 == 0;
}

/// Whether the tensor cores' path takes these: rows of whole 16-byte pieces, and pairs x k in 32 bits.
template <class... Matrices>
bool tensor_experts(const ExpertDispatch& d, const Matrices&... matrices) {
    return d.source.size > 0 && d.source.size * d.position.cols < Index{1} << 31 && d.experts() <= tiled_experts &&
           (whole_pieces(matrices) && ...) && has_warpgroups();
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
