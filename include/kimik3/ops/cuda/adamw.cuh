#pragma once
// AdamW on the GPU: one launch for all pieces, a block a piece.

#include <cmath>

#include "kimik3/ops/adamw.hpp"
#include "kimik3/ops/cuda/launch.cuh"

namespace kimik3 {

template <class T>
void adamw_step(const Context<Cuda>& ctx, std::span<const AdamwPiece> pieces, const AdamwRule& rule, InVector<T> g,
                OutVector<T> w, OutVector<T> m, OutVector<T> v) {
    const double step = static_cast<double>(rule.step);
    const T scale = static_cast<T>(rule.scale), rate = static_cast<T>(rule.lr), eps = static_cast<T>(rule.eps),
            beta1 = static_cast<T>(rule.beta1), beta2 = static_cast<T>(rule.beta2),
            rest1 = static_cast<T>(1.0 - rule.beta1), rest2 = static_cast<T>(1.0 - rule.beta2),
            unbias1 = static_cast<T>(1.0 / (1.0 - std::pow(rule.beta1, step))),
            unbias2 = static_cast<T>(1.0 / (1.0 - std::pow(rule.beta2, step))),
            decayed = static_cast<T>(1.0 - rule.lr * rule.decay);
    const AdamwPiece* list = ctx.on_device(pieces);
    gpu::for_rows(ctx, static_cast<Index>(pieces.size()), 16384, [=] __device__(Index p, gpu::Team team) {
        const AdamwPiece piece = list[p];
        const T keep = piece.decay ? decayed : T(1);
        for (Index i = team.rank; i < piece.count; i += team.size) {
            const Index at = piece.offset + i, second = piece.second + i;
            const T gradient = g[at] * scale;
            const T mean = m[at] = beta1 * m[at] + rest1 * gradient;
            const T square = v[second] = beta2 * v[second] + rest2 * gradient * gradient;
            w[at] = keep * w[at] - rate * (mean * unbias1 / (sqrt(square * unbias2) + eps));
        }
    });
}

}  // namespace kimik3
