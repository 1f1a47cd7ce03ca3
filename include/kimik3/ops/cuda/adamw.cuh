#pragma once
// AdamW on the GPU: one launch for all pieces, a block a piece. What changes from step to step is read on the GPU.

#include "kimik3/ops/cuda/step_decision.cuh"

namespace kimik3 {

template <class T>
void adamw_step(const Context<Cuda>& ctx, std::span<const AdamwPiece> pieces, const AdamwRule& rule,
                const StepNumbers* numbers, InVector<T> g, OutVector<T> w, OutVector<T> m, OutVector<T> v) {
    const T eps = static_cast<T>(rule.eps), beta1 = static_cast<T>(rule.beta1), beta2 = static_cast<T>(rule.beta2),
            rest1 = static_cast<T>(1.0 - rule.beta1), rest2 = static_cast<T>(1.0 - rule.beta2);
    const AdamwPiece* list = ctx.on_device(pieces);
    gpu::for_rows(ctx, static_cast<Index>(pieces.size()), 16384, [=] __device__(Index p, gpu::Team team) {
        if (!numbers->applied) return;
        const T scale = static_cast<T>(numbers->scale), rate = static_cast<T>(numbers->lr),
                unbias1 = static_cast<T>(numbers->unbias1), unbias2 = static_cast<T>(numbers->unbias2);
        const AdamwPiece piece = list[p];
        const T keep = piece.decay ? static_cast<T>(numbers->keep) : T(1);
        for (Index i = team.rank; i < piece.count; i += team.size) {
            const Index at = piece.offset + i, second = piece.second + i;
            const T gradient = g[at] * scale;
            const T mean = m[at] = beta1 * m[at] + rest1 * gradient;
            const T square = v[second] = beta2 * v[second] + rest2 * gradient * gradient;
            w[at] = keep * w[at] - rate * (mean * unbias1 / (sqrt(square * unbias2) + eps));
        }
    });
}

template <class T>
void adamw_step(const Context<Cuda>& ctx, std::span<const AdamwPiece> pieces, const AdamwRule& rule, InVector<T> g,
                OutVector<T> w, OutVector<T> m, OutVector<T> v) {
    const StepNumbers numbers = StepNumbers::of(rule);
    adamw_step(ctx, pieces, rule, ctx.on_device(std::span<const StepNumbers>(&numbers, 1)), g, w, m, v);
}

}  // namespace kimik3
