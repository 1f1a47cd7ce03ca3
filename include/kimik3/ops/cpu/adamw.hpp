#pragma once
// AdamW on the CPU: threads take pieces; every array is read and written once.

#include <cmath>

#include "kimik3/backend/cpu.hpp"
#include "kimik3/ops/adamw.hpp"
#include "kimik3/ops/cpu/lanes.hpp"

namespace kimik3 {

template <class T>
void adamw_step(const Context<Cpu>& ctx, std::span<const AdamwPiece> pieces, const AdamwRule& rule, InVector<T> g,
                OutVector<T> w, OutVector<T> m, OutVector<T> v) {
    using detail::lane;
    using detail::Lane;
    detail::check_adamw<T>(pieces, rule, g, w, m, v);
    const double step = static_cast<double>(rule.step);
    const Lane<T> scale = lane(static_cast<T>(rule.scale)), rate = lane(static_cast<T>(rule.lr)),
                  eps = lane(static_cast<T>(rule.eps)), beta1 = lane(static_cast<T>(rule.beta1)),
                  beta2 = lane(static_cast<T>(rule.beta2)), rest1 = lane(static_cast<T>(1.0 - rule.beta1)),
                  rest2 = lane(static_cast<T>(1.0 - rule.beta2)),
                  unbias1 = lane(static_cast<T>(1.0 / (1.0 - std::pow(rule.beta1, step)))),
                  unbias2 = lane(static_cast<T>(1.0 / (1.0 - std::pow(rule.beta2, step))));
    ctx.parallel_tasks(static_cast<Index>(pieces.size()), [&](Index p, int) {
        const AdamwPiece piece = pieces[to_size(p)];
        const Lane<T> keep = lane(static_cast<T>(piece.decay ? 1.0 - rule.lr * rule.decay : 1.0));
        const T* gradients = g.data + piece.offset;
        T *weights = w.data + piece.offset, *first = m.data + piece.offset, *second = v.data + piece.second;
        detail::for_lanes<T>(piece.count, [&](auto at) {
            const Lane<T> gradient = at.load(gradients) * scale;
            const Lane<T> mean = beta1 * at.load(first) + rest1 * gradient;
            const Lane<T> square = beta2 * at.load(second) + rest2 * gradient * gradient;
            at.store(first, mean);
            at.store(second, square);
            // (TRAIN-6)
            const Lane<T> update = (mean * unbias1) / (sqrt(square * unbias2) + eps);
            at.store(weights, Lane<T>(keep * at.load(weights) - rate * update));
        });
    });
}

}  // namespace kimik3
