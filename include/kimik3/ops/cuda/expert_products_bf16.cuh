#pragma once
// The routed experts in bf16 on Hopper's tensor cores. Forward: gate, up and SiTU-GLU in one kernel, then the down
// product, then the weighted sum over slots. Backward: the gradient of the hidden values with SiTU's behind it, the
// latents' gradient, the weights', and the sum over slots.

#include "kimik3/ops/cuda/expert_tiles.cuh"
#include "kimik3/ops/cuda/expert_weights.cuh"
#include "kimik3/ops/cuda/situ.cuh"
#include "kimik3/ops/cuda/vectors.cuh"

namespace kimik3::gpu {

/// gate and up = z w1^T and z w3^T of 96 columns each, hidden = SiTU(gate, up).
struct GateUpTiles : ExpertTiles<192, false, true, 2, 5> {
    MatrixView<bf16> gate, up, hidden;
    SituNumbers<bf16> form;

    /// The sums of gate come before those of up.
    __device__ void finish(const float (&sums)[cols / 2], const RowTile& at, int row0, StagedRows staged) const {
        const int rows = at.count - row0, col = at.col * own_cols, width = cols_of_b - col;
        const auto write = [&](const MatrixView<bf16>& m, auto value) {
            for_parts<own_cols / 8>([&](auto first, auto groups) {
                staged.write<first, groups>(m.row(at.first + row0) + col, m.stride, rows, width, value);
            });
        };
        write(gate, [&](int i) { return sums[i]; });
        write(up, [&](int i) { return sums[i + own_cols / 2]; });
        write(hidden, [&](int i) { return form.value(sums[i], sums[i + own_cols / 2]); });
    }
};

/// The tile as it is: [rows, 160] from 5 panels, or, turned, [rows, 128] from 10.
template <bool turned>
struct PlainTiles : ExpertTiles<turned ? 128 : 160, turned, false, 2, turned ? 10 : 5> {
    MatrixView<bf16> to;

    template <int count>
    __device__ void finish(const float (&sums)[count], const RowTile& at, int row0, StagedRows staged) const {
        const int rows = at.count - row0, first = at.col * 2 * count, cols = this->cols_of_b - first;
        bf16* own = to.row(at.first + row0) + first;
        const auto value = [&](int i) { return sums[i]; };
        for_parts<count / 4>([&](auto first, auto groups) {
            staged.write<first, groups>(own, to.stride, rows, cols, value);
        });
    }
};

/// From da = du w2: gate and up become their gradients, hidden = p SiTU(gate, up), and dots [rows, column tiles] the
/// share that a tile's columns have in da . SiTU(gate, up).
struct HiddenGradientTiles : ExpertTiles<96, true, false, 3, 5, 3> {
    MatrixView<bf16> gate, up, hidden;
    MatrixView<const float> p;
    float* dots;
    SituNumbers<bf16> form;

    __device__ void expect(const RowTile& at, int row0, StagedRows staged) const {
        __syncwarp();
        for_parts<cols / 8>([&](auto first, auto groups) { fetch<first, groups>(at, row0, staged); });
        commit_copies();
    }
    __device__ void finish(const float (&sums)[cols / 2], const RowTile& at, int row0, StagedRows staged) const {
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
        wait_for_copies<0>();
        __syncwarp();
        for_parts<cols / 8>(
            [&](auto first, auto groups) { finish_part<first, groups>(sums, at, row0, staged, weight, dot); });
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
    // Parts are so many groups of eight columns from group on. A warp has a panel of gate and one of up, and a third
    // for the groups from 8 on, up's behind gate's.
    template <int group>
    __device__ static StagedRows panel(StagedRows own, int matrix) {
        if constexpr (group < 8) return {own.memory + 2048 * matrix, group};
        else return {own.memory + 4096, 4 * matrix};
    }
    template <int group, int groups>
    __device__ void fetch(const RowTile& at, int row0, StagedRows staged) const {
        const int rows = at.count - row0, col = at.col * cols + 8 * group, width = cols_of_b - col;
        if (width <= 0) return;
        panel<group>(staged, 0).template fetch<groups / 2>(gate.row(at.first + row0) + col, gate.stride, rows, width);
        panel<group>(staged, 1).template fetch<groups / 2>(up.row(at.first + row0) + col, up.stride, rows, width);
    }
    template <int group, int groups>
    __device__ void finish_part(const float (&sums)[cols / 2], const RowTile& at, int row0, StagedRows staged,
                                const float (&weight)[2], float (&dot)[2]) const {
        const int rows = at.count - row0, col = at.col * cols + 8 * group, width = cols_of_b - col;
        if (width <= 0) return;
        const StagedRows gates = panel<group>(staged, 0), ups = panel<group>(staged, 1);
        std::uint32_t g[groups / 2][4], u[groups / 2][4], h[groups / 2][4];
        gates.read(g), ups.read(u);
#pragma unroll
        for (int j = 0; j < groups / 2; ++j)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int half = i % 2, at_sum = 4 * (group + 2 * j) + 2 * i;
                const float2 gs = unpack_bf16(g[j][i]), us = unpack_bf16(u[j][i]);
                const SituSlopes<float> a = form.slopes(gs.x, us.x), b = form.slopes(gs.y, us.y);
                // (MOE-6)
                dot[half] += sums[at_sum] * a.value + sums[at_sum + 1] * b.value;
                const float da = sums[at_sum] * weight[half], db = sums[at_sum + 1] * weight[half];
                g[j][i] = pack_bf16(da * a.gate, db * b.gate);
                u[j][i] = pack_bf16(da * a.up, db * b.up);
                h[j][i] = pack_bf16(weight[half] * a.value, weight[half] * b.value);
            }
        gates.write(gate.row(at.first + row0) + col, gate.stride, rows, width, g);
        ups.write(up.row(at.first + row0) + col, up.stride, rows, width, u);
        gates.write(hidden.row(at.first + row0) + col, hidden.stride, rows, width, h);
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

inline int row_stride(MatrixView<const bf16> m) { return static_cast<int>(m.stride); }

/// Whether the 16-byte pieces of a matrix's rows are whole and aligned, and counted in 32 bits.
inline bool whole_pieces(MatrixView<const bf16> m) {
    return m.cols % 8 == 0 && m.stride % 8 == 0 && m.rows * (m.stride / 8) < Index{1} << 32 &&
           reinterpret_cast<std::uintptr_t>(m.data) % 16 == 0;
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
    run_expert_tiles(ctx, GateUpTiles{{d, {z.data, z.data}, {w1.data, w3.data}, row_stride(z), row_stride(w1), width,
                                       1, hidden_width, token_of, true},
                                      gate, up, hidden, SituNumbers<bf16>(betas)});
    run_expert_tiles(ctx, PlainTiles<false>{{d, {hidden.data, hidden.data}, {w2.data, w2.data}, hidden_width,
                                             row_stride(w2), hidden_width, 1, width, token_of, false},
                                            out});
    combine_bf16(
        ctx, d, out, u, [=] __device__(Index n, int j) { return p(n, j); }, [] __device__(Index, int, Index) {});
}

inline void tensor_experts_backward(const Context<Cuda>& ctx, MatrixView<const bf16> z, MatrixView<const bf16> du,
                                    MatrixView<const bf16> w1, MatrixView<const bf16> w3, MatrixView<const bf16> w2,
                                    SituBetas betas, const ExpertDispatch& d, MatrixView<bf16> gate,
                                    MatrixView<bf16> up, MatrixView<float> p, MatrixView<bf16> dz,
                                    MatrixView<float> dw1, MatrixView<float> dw3, MatrixView<float> dw2) {
    const Index all = d.source.size, inner = gate.cols, latent = z.cols,
                shares = ceil_div(inner, Index{HiddenGradientTiles::cols});
    // Rows of 16 bytes first, so that all of them are aligned.
    bf16* scratch = ctx.workspace<bf16>(Scratch::operation, all * (latent + inner + 2 * shares) +
                                                                2 * ExpertWeights::sums_of(multiprocessors()));
    const MatrixView<bf16> dz_rows(scratch, all, latent), hidden(dz_rows.row(all), all, inner);
    float *dots = reinterpret_cast<float*>(hidden.row(all)), *left = dots + all * shares;
    const TokenOf token_of(d.position.cols);
    const int width = static_cast<int>(latent), hidden_width = static_cast<int>(inner);
    run_expert_tiles(ctx, HiddenGradientTiles{{d, {du.data, du.data}, {w2.data, w2.data}, row_stride(du),
                                               row_stride(w2), width, 1, hidden_width, token_of, true},
                                              gate, up, hidden, p, dots, SituNumbers<bf16>(betas)});
    run_expert_tiles(ctx, PlainTiles<true>{{d, {gate.data, up.data}, {w1.data, w3.data}, row_stride(gate),
                                            row_stride(w1), hidden_width, 2, width, token_of, false},
                                           dz_rows});
    run_expert_weights(ctx, ExpertWeights{d, {z.data, z.data, du.data}, {gate.data, up.data, hidden.data},
                                          {row_stride(z), row_stride(z), row_stride(du)},
                                          {row_stride(gate), row_stride(up), hidden_width},
                                          {dw1.data, dw3.data, dw2.data}, {dw1.stride, dw3.stride, dw2.stride}, width,
                                          hidden_width, token_of, left});
    combine_bf16(
        ctx, d, dz_rows, dz, [] __device__(Index, int) { return 1.0f; },
        [=] __device__(Index n, int j, Index row) {
            float sum = 0.0f;
            for (Index share = 0; share < shares; ++share) sum += dots[row * shares + share];
            p(n, j) = sum;
        });
}

}  // namespace kimik3::gpu
