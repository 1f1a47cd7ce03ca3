#pragma once
// AdamW on the GPU: one launch for all pieces, a block a piece, 16 bytes at a time where its elements begin at
// multiples of them. What changes from step to step is read on the GPU. copy, where there is one, gets the new weights
// in bf16.

#include "kimik3/ops/cuda/packs.cuh"
#include "kimik3/ops/cuda/step_decision.cuh"

namespace kimik3 {
namespace gpu {

/// The rule as a kernel computes it.
template <class T>
struct AdamwNumbers {
    T beta1, beta2, rest1, rest2, eps;

    explicit AdamwNumbers(const AdamwRule& rule)
        : beta1(static_cast<T>(rule.beta1)), beta2(static_cast<T>(rule.beta2)),
          rest1(static_cast<T>(1.0 - rule.beta1)), rest2(static_cast<T>(1.0 - rule.beta2)),
          eps(static_cast<T>(rule.eps)) {}
};

/// A block a piece. copy: of w, or null.
template <class T>
__global__ void __launch_bounds__(block_threads)
    adamw_kernel(const AdamwPiece* pieces, AdamwNumbers<T> rule, const StepNumbers* numbers, const T* g, T* w, T* m,
                 T* v, bf16* copy) {
    begin_in_turn();
    if (!numbers->applied) return;
    const AdamwPiece piece = pieces[blockIdx.x];
    const T scale = static_cast<T>(numbers->scale), rate = static_cast<T>(numbers->lr),
            unbias1 = static_cast<T>(numbers->unbias1), unbias2 = static_cast<T>(numbers->unbias2),
            keep = piece.decay ? static_cast<T>(numbers->keep) : T(1);
    g += piece.offset, w += piece.offset, m += piece.offset, v += piece.second;
    if (copy != nullptr) copy += piece.offset;
    const auto step = [&](T raw, T& weight, T& mean, T& square) {
        const T gradient = raw * scale;
        mean = rule.beta1 * mean + rule.rest1 * gradient;
        square = rule.beta2 * square + rule.rest2 * gradient * gradient;
        weight = keep * weight - rate * (mean * unbias1 / (sqrt(square * unbias2) + rule.eps));
    };
    using P = Pack<T>;
    using C = Pack<bf16, P::size>;
    const bool packed = holds_packs(g) && holds_packs(w) && holds_packs(m) && holds_packs(v) &&
                        reinterpret_cast<std::uintptr_t>(copy) % sizeof(C) == 0;
    const Index packs = packed ? piece.count / P::size : 0;
    struct Packs {
        P gradient, weight, mean, square;
    };
    const auto load = [&](Index i) {
        return Packs{load_pack<P>(g, i), load_pack<P>(w, i), load_pack<P>(m, i), load_pack<P>(v, i)};
    };
    Packs next{};
    if (threadIdx.x < packs) next = load(threadIdx.x);
    for (Index i = threadIdx.x; i < packs; i += blockDim.x) {
        Packs now = next;
        if (i + blockDim.x < packs) next = load(i + blockDim.x);  // on its way while this one is computed
        C rounded;
        for (int j = 0; j < P::size; ++j) {
            step(now.gradient.at[j], now.weight.at[j], now.mean.at[j], now.square.at[j]);
            rounded.at[j] = static_cast<bf16>(static_cast<float>(now.weight.at[j]));
        }
        store_pack(w, i, now.weight), store_pack(m, i, now.mean), store_pack(v, i, now.square);
        if (copy != nullptr) store_pack(copy, i, rounded);
    }
    for (Index i = packs * P::size + threadIdx.x; i < piece.count; i += blockDim.x) {
        step(g[i], w[i], m[i], v[i]);
        if (copy != nullptr) copy[i] = static_cast<bf16>(static_cast<float>(w[i]));
    }
}

}  // namespace gpu

template <class T>
void adamw_step(const Context<Cuda>& ctx, std::span<const AdamwPiece> pieces, const AdamwRule& rule,
                const StepNumbers* numbers, InVector<T> g, OutVector<T> w, OutVector<T> m, OutVector<T> v,
                VectorView<bf16> copy = {}) {
    detail::check_adamw<T>(pieces, rule, g, w, m, v);
    if (pieces.empty()) return;
    if (copy.size != 0) require_size("adamw_step: copy", copy, w.size);
    const AdamwPiece* list = ctx.on_device(pieces);
    gpu::launch_early(ctx, static_cast<Index>(pieces.size()), gpu::block_threads, 0, gpu::adamw_kernel<T>, list,
                      gpu::AdamwNumbers<T>(rule), numbers, g.data, w.data, m.data, v.data, copy.data);
}

template <class T>
void adamw_step(const Context<Cuda>& ctx, std::span<const AdamwPiece> pieces, const AdamwRule& rule, InVector<T> g,
                OutVector<T> w, OutVector<T> m, OutVector<T> v) {
    const StepNumbers numbers = StepNumbers::of(rule);
    adamw_step(ctx, pieces, rule, ctx.on_device(std::span<const StepNumbers>(&numbers, 1)), g, w, m, v);
}

}  // namespace kimik3
