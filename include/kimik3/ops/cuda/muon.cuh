#pragma once
// Muon on the GPU, block after block. What changes from step to step is read on the GPU; a step that is not taken
// computes its update and leaves it.

#include <cmath>

#include "kimik3/ops/cuda/newton_schulz.cuh"
#include "kimik3/ops/cuda/step_decision.cuh"
#include "kimik3/ops/muon.hpp"

namespace kimik3 {
namespace gpu {

template <class T>
void muon_block_step(const Context<Cuda>& ctx, const MuonBlock& block, const MuonRule& rule, const StepNumbers* numbers,
                     const T* g, T* w, T* m, T* memory) {
    const MatrixView<T> update(memory, block.rows, block.cols);
    const VectorView<T> scratch(memory + round_up(update.size(), 16), newton_schulz_scratch(block.rows, block.cols));
    const T momentum = static_cast<T>(rule.momentum);
    for_each(ctx, update.size(), [=] __device__(Index i) {
        const T gradient = g[i] * static_cast<T>(numbers->scale), mean = m[i] * momentum + gradient;
        if (numbers->applied) m[i] = mean;
        update.data[i] = gradient + mean * momentum;
    });
    newton_schulz(ctx, update, rule.newton_schulz_steps, scratch);
    const double reach = 0.2 * std::sqrt(static_cast<double>((std::max)(block.rows, block.cols)));
    const bool decay = block.decay;
    for_each(ctx, update.size(), [=] __device__(Index i) {
        if (!numbers->applied) return;
        const T keep = decay ? static_cast<T>(numbers->keep) : T(1), rate = static_cast<T>(numbers->lr * reach);
        w[i] = w[i] * keep - update.data[i] * rate;
    });
}

}  // namespace gpu

template <class T>
void muon_step(const Context<Cuda>& ctx, std::span<const MuonBlock> blocks, const MuonRule& rule,
               const StepNumbers* numbers, InVector<T> g, OutVector<T> w, OutVector<T> m) {
    Index most = 0;
    for (const MuonBlock& block : blocks)
        most = (std::max)(most, round_up(block.rows * block.cols, 16) + newton_schulz_scratch(block.rows, block.cols));
    T* memory = ctx.workspace<T>(Scratch::operation, most);
    for (const MuonBlock& block : blocks)
        gpu::muon_block_step(ctx, block, rule, numbers, g.data + block.offset, w.data + block.offset,
                             m.data + block.offset, memory);
}

template <class T>
void muon_step(const Context<Cuda>& ctx, std::span<const MuonBlock> blocks, const MuonRule& rule, InVector<T> g,
               OutVector<T> w, OutVector<T> m) {
    StepNumbers numbers;
    numbers.lr = rule.lr, numbers.keep = 1.0 - rule.lr * rule.decay, numbers.scale = rule.scale;
    muon_step(ctx, blocks, rule, ctx.on_device(std::span<const StepNumbers>(&numbers, 1)), g, w, m);
}

}  // namespace kimik3
