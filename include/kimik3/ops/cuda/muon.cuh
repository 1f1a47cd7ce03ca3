#pragma once
// Muon on the GPU, block after block.

#include <cmath>

#include "kimik3/ops/cuda/newton_schulz.cuh"
#include "kimik3/ops/muon.hpp"

namespace kimik3 {
namespace gpu {

template <class T>
void muon_block_step(const Context<Cuda>& ctx, const MuonBlock& block, const MuonRule& rule, const T* g, T* w, T* m,
                     T* memory) {
    const MatrixView<T> update(memory, block.rows, block.cols);
    const VectorView<T> scratch(memory + round_up(update.size(), 16), newton_schulz_scratch(block.rows, block.cols));
    const T scale = static_cast<T>(rule.scale), momentum = static_cast<T>(rule.momentum);
    for_each(ctx, update.size(), [=] __device__(Index i) {
        const T gradient = g[i] * scale, mean = m[i] = m[i] * momentum + gradient;
        update.data[i] = gradient + mean * momentum;
    });
    newton_schulz(ctx, update, rule.newton_schulz_steps, scratch);
    const double longest = static_cast<double>((std::max)(block.rows, block.cols));
    const T keep = static_cast<T>(block.decay ? 1.0 - rule.lr * rule.decay : 1.0);
    const T rate = static_cast<T>(rule.lr * 0.2 * std::sqrt(longest));
    for_each(ctx, update.size(), [=] __device__(Index i) { w[i] = w[i] * keep - update.data[i] * rate; });
}

}  // namespace gpu

template <class T>
void muon_step(const Context<Cuda>& ctx, std::span<const MuonBlock> blocks, const MuonRule& rule, InVector<T> g,
               OutVector<T> w, OutVector<T> m) {
    Index most = 0;
    for (const MuonBlock& block : blocks)
        most = (std::max)(most, round_up(block.rows * block.cols, 16) + newton_schulz_scratch(block.rows, block.cols));
    T* memory = ctx.workspace<T>(Scratch::operation, most);
    for (const MuonBlock& block : blocks)
        gpu::muon_block_step(ctx, block, rule, g.data + block.offset, w.data + block.offset, m.data + block.offset,
                             memory);
}

}  // namespace kimik3
