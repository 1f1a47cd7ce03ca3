#pragma once
// Muon on the CPU. A small block is the work of one thread, in its cache from gradient to weight; on a large one all
// threads share the rows. Give the large blocks first: threads take the next one as they become free.

#include "kimik3/ops/cpu/newton_schulz.hpp"
#include "kimik3/ops/muon.hpp"

namespace kimik3 {
namespace detail {

/// Above this many elements all threads share a block.
inline constexpr Index small_muon_block = 256 * 256;

template <class T>
void muon_block_step(const Context<Cpu>& ctx, const MuonBlock& block, const MuonRule& rule, const T* g, T* w, T* m,
                     T* memory) {
    const MatrixView<T> update(memory, block.rows, block.cols);
    const VectorView<T> scratch(memory + round_up(update.size(), 16), newton_schulz_scratch(block.rows, block.cols));
    const T scale = static_cast<T>(rule.scale), momentum = static_cast<T>(rule.momentum);
    parallel_lanes<T>(ctx, update.size(), [&](auto at) {
        const Lane<T> gradient = at.load(g) * scale;
        const Lane<T> mean = at.load(m) * momentum + gradient;
        at.store(m, mean);
        at.store(update.data, Lane<T>(gradient + mean * momentum));
    });
    newton_schulz(ctx, update, rule.newton_schulz_steps, scratch);
    // (TRAIN-9)
    const double longest = static_cast<double>((std::max)(block.rows, block.cols));
    const T keep = static_cast<T>(block.decay ? 1.0 - rule.lr * rule.decay : 1.0);
    const T rate = static_cast<T>(rule.lr * 0.2 * std::sqrt(longest));
    parallel_lanes<T>(ctx, update.size(), [&](auto at) {
        at.store(w, Lane<T>(at.load(w) * keep - at.load(update.data) * rate));
    });
}

}  // namespace detail

template <class T>
void muon_step(const Context<Cpu>& ctx, std::span<const MuonBlock> blocks, const MuonRule& rule, InVector<T> g,
               OutVector<T> w, OutVector<T> m) {
    detail::check_muon<T>(blocks, g, w, m);
    const Context<Cpu> alone(1);
    const auto step = [&](const Context<Cpu>& workers, const MuonBlock& block, int thread) {
        const Index size = block.rows * block.cols;
        const Index needed = round_up(size, 16) + newton_schulz_scratch(block.rows, block.cols), at = block.offset;
        T* memory = ctx.workspace<T>(thread, needed);
        detail::muon_block_step(workers, block, rule, g.data + at, w.data + at, m.data + at, memory);
    };
    const auto is_small = [](const MuonBlock& block) { return block.rows * block.cols <= detail::small_muon_block; };
    for (const MuonBlock& block : blocks) {
        if (!is_small(block)) step(ctx, block, 0);
    }
    ctx.parallel_tasks(static_cast<Index>(blocks.size()), [&](Index b, int thread) {
        const MuonBlock& block = blocks[to_size(b)];
        if (is_small(block)) step(alone, block, thread);
    });
}

}  // namespace kimik3
