#pragma once
// Muon on the GPU: blocks of one shape that follow one another are taken together, as many as 256 MB of scratch memory
// hold. What changes from step to step is read on the GPU; a step that is not taken computes its update and leaves it.
// copy, where there is one, gets the new weights in bf16, and then the update is orthogonalised in bf16 too.

#include <cmath>

#include "kimik3/ops/cuda/newton_schulz.cuh"
#include "kimik3/ops/cuda/step_decision.cuh"
#include "kimik3/ops/muon.hpp"

namespace kimik3 {
namespace gpu {

/// U: what the update is orthogonalised in.
template <class U, class T>
struct MuonBatch {
    const MuonBlock* blocks;  // on the GPU, all of one shape
    Index count, rows, cols;
    const StepNumbers* numbers;
    T momentum;
    const T* g;
    T *w, *m;
    bf16* copy;

    using Iteration = NewtonSchulzBatch<U>;
    static Index numbers_bytes(Index count, Index rows, Index cols) {
        return round_up(count * (1 + parts_of(rows * cols)) * static_cast<Index>(sizeof(T)), 256);
    }
    static Index bytes(Index count, Index rows, Index cols) {
        return numbers_bytes(count, rows, cols) +
               count * Iteration::elements(rows, cols) * static_cast<Index>(sizeof(U));
    }
    /// The Nesterov update once m holds the new momentum.
    __device__ T update(Index b, Index i) const {
        const Index at = blocks[b].offset + i;
        return g[at] * static_cast<T>(numbers->scale) + m[at] * momentum;
    }
    __device__ T move_momentum(Index b, Index i) const {
        const Index at = blocks[b].offset + i;
        const T gradient = g[at] * static_cast<T>(numbers->scale), mean = m[at] * momentum + gradient;
        if (numbers->applied) m[at] = mean;
        return gradient + mean * momentum;
    }
    __device__ void step(Index b, Index i, T direction, double reach) const {
        const Index at = blocks[b].offset + i;
        const T keep = blocks[b].decay ? static_cast<T>(numbers->keep) : T(1),
                rate = static_cast<T>(numbers->lr * reach), weight = w[at] * keep - direction * rate;
        w[at] = weight;
        if (copy != nullptr) copy[at] = static_cast<bf16>(static_cast<float>(weight));
    }
};

template <class U, class T>
void muon_batch_step(const Context<Cuda>& ctx, MuonBatch<U, T> batch, Index steps, std::byte* memory) {
    const Index size = batch.rows * batch.cols, count = batch.count;
    T* unit = reinterpret_cast<T*>(memory);
    U* matrices = reinterpret_cast<U*>(memory + batch.numbers_bytes(count, batch.rows, batch.cols));
    NewtonSchulzBatch<U> x = NewtonSchulzBatch<U>::in(matrices, count, batch.rows, batch.cols);
    inverse_norms<T>(
        ctx, count, size, [=] __device__(Index b, Index i) { return batch.move_momentum(b, i); }, unit + count, unit);
    const Index apart = x.size(batch.rows, batch.cols);
    U* first = x.now;
    for_elements(ctx, count, size, [=] __device__(Index b, Index i) {
        first[b * apart + i] = static_cast<U>(batch.update(b, i) * unit[b]);
    });
    x.iterate(ctx, steps);
    const U* last = x.now;
    const double reach = 0.2 * std::sqrt(static_cast<double>((std::max)(batch.rows, batch.cols)));
    for_elements(ctx, count, size, [=] __device__(Index b, Index i) {
        if (batch.numbers->applied) batch.step(b, i, static_cast<T>(last[b * apart + i]), reach);
    });
}

/// Calls body(first, count) for runs of blocks of one shape, so many that a run takes few bytes.
template <class Bytes, class Body>
void for_runs(std::span<const MuonBlock> blocks, Bytes bytes, Body body) {
    constexpr Index few = Index{256} << 20;
    for (std::size_t first = 0; first < blocks.size();) {
        const Index rows = blocks[first].rows, cols = blocks[first].cols;
        Index count = 1;
        for (std::size_t next = first + 1; next < blocks.size() && blocks[next].rows == rows &&
                                           blocks[next].cols == cols && bytes(count + 1, rows, cols) <= few;
             ++next)
            ++count;
        body(first, count);
        first += to_size(count);
    }
}

template <class U, class T>
void muon_step_in(const Context<Cuda>& ctx, std::span<const MuonBlock> blocks, const MuonRule& rule,
                  const StepNumbers* numbers, const T* g, T* w, T* m, bf16* copy) {
    using Batch = MuonBatch<U, T>;
    Index most = 0;
    for_runs(blocks, Batch::bytes, [&](std::size_t first, Index count) {
        most = (std::max)(most, Batch::bytes(count, blocks[first].rows, blocks[first].cols));
    });
    std::byte* memory = ctx.workspace<std::byte>(Scratch::operation, most);
    const MuonBlock* list = ctx.on_device(blocks);
    for_runs(blocks, Batch::bytes, [&](std::size_t first, Index count) {
        muon_batch_step<U, T>(ctx,
                              {list + first, count, blocks[first].rows, blocks[first].cols, numbers,
                               static_cast<T>(rule.momentum), g, w, m, copy},
                              rule.newton_schulz_steps, memory);
    });
}

}  // namespace gpu

template <class T>
void muon_step(const Context<Cuda>& ctx, std::span<const MuonBlock> blocks, const MuonRule& rule,
               const StepNumbers* numbers, InVector<T> g, OutVector<T> w, OutVector<T> m,
               VectorView<bf16> copy = {}) {
    detail::check_muon<T>(blocks, g, w, m);
    if (blocks.empty()) return;
    if (copy.size != 0) require_size("muon_step: copy", copy, w.size);
    if constexpr (std::is_same_v<T, float>) {
        if (copy.size != 0)
            return gpu::muon_step_in<bf16>(ctx, blocks, rule, numbers, g.data, w.data, m.data, copy.data);
    }
    gpu::muon_step_in<T>(ctx, blocks, rule, numbers, g.data, w.data, m.data, nullptr);
}

template <class T>
void muon_step(const Context<Cuda>& ctx, std::span<const MuonBlock> blocks, const MuonRule& rule, InVector<T> g,
               OutVector<T> w, OutVector<T> m) {
    StepNumbers numbers;
    numbers.lr = rule.lr, numbers.keep = 1.0 - rule.lr * rule.decay, numbers.scale = rule.scale;
    muon_step(ctx, blocks, rule, ctx.on_device(std::span<const StepNumbers>(&numbers, 1)), g, w, m);
}

}  // namespace kimik3
