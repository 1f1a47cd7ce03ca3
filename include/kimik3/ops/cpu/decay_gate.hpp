#pragma once
// The decay gate on the CPU: threads own rows forward and heads backward, so that the sums over tokens have one order.

#include <cmath>

#include "kimik3/backend/cpu.hpp"
#include "kimik3/ops/cpu/lanes.hpp"
#include "kimik3/ops/decay_gate.hpp"
#include "kimik3/ops/formulas.hpp"

namespace kimik3 {
namespace detail {

template <class T>
void require_gate_shapes(In<T> z, Out<T> out, InVector<accumulator_t<T>> A_log, InVector<accumulator_t<T>> dt_bias) {
    require_shape("decay_gate: z", z, out.rows, out.cols);
    require_size("decay_gate: dt_bias", dt_bias, out.cols);
    require(A_log.size > 0 && out.cols % A_log.size == 0, "decay_gate: {} columns are no multiple of {} heads",
            out.cols, A_log.size);
}

/// sum over the lanes of head h of term(at), at in columns of the whole matrix.
template <class T, class Term>
T sum_head_lanes(Index h, Index width, Term&& term) {
    return sum_lanes<T>(width, [&](auto part) -> Lane<T> {
        auto at = part;
        at.begin += h * width;
        return term(at);
    });
}

/// The gate of one lane of logits (dt_bias added), rate = e^A, and the gradient of its logits.
template <class T>
Lane<T> decay_lane(DecayGateForm gate, T rate, const Lane<T>& logit) {
    // (KDA-6)
    if (gate.kind == DecayGate::bounded) return static_cast<T>(gate.lower_bound) * sigmoid(Lane<T>(rate * logit));
    // (KDA-7)
    return -rate * softplus(logit);
}
template <class T>
Lane<T> decay_lane_gradient(DecayGateForm gate, T rate, const Lane<T>& logit, const Lane<T>& dg) {
    // (KDA-8)
    if (gate.kind != DecayGate::bounded) return -rate * dg * sigmoid(logit);
    const Lane<T> s = sigmoid(Lane<T>(rate * logit));
    return static_cast<T>(gate.lower_bound) * rate * dg * s * (T(1) - s);
}

}  // namespace detail

template <class T>
void decay_gate_forward(const Context<Cpu>& ctx, DecayGateForm gate, In<T> z, InVector<accumulator_t<T>> A_log,
                        InVector<accumulator_t<T>> dt_bias, Out<T> g) {
    using detail::Lane;
    detail::require_gate_shapes<T>(z, g, A_log, dt_bias);
    const Index heads = A_log.size, width = g.cols / heads;
    ctx.parallel(g.rows, 16, [&](Index first, Index last) {
        for (Index n = first; n < last; ++n) {
            for (Index h = 0; h < heads; ++h) {
                const T rate = std::exp(A_log[h]);
                detail::for_lanes<T>(width, [&](auto part) {
                    auto at = part;
                    at.begin += h * width;
                    at.store(g.row(n), detail::decay_lane<T>(gate, rate, at.load(z.row(n)) + at.load(dt_bias.data)));
                });
            }
        }
    });
}

template <class T>
void decay_gate_backward(const Context<Cpu>& ctx, DecayGateForm gate, In<T> dg, In<T> z,
                         InVector<accumulator_t<T>> A_log, InVector<accumulator_t<T>> dt_bias, Out<T> dz,
                         std::type_identity_t<OutVector<accumulator_t<T>>> dA_log,
                         std::type_identity_t<OutVector<accumulator_t<T>>> ddt_bias) {
    using detail::Lane;
    detail::require_gate_shapes<T>(z, dz, A_log, dt_bias);
    require_shape("decay_gate: dg", dg, dz.rows, dz.cols);
    require_size("decay_gate: dA_log", dA_log, A_log.size);
    require_size("decay_gate: ddt_bias", ddt_bias, dz.cols);
    const Index width = dz.cols / A_log.size;
    ctx.parallel(A_log.size, 1, [&](Index first, Index last) {
        for (Index h = first; h < last; ++h) {
            const T rate = std::exp(A_log[h]);
            dA_log[h] += detail::sum_head_lanes<T>(h, width, [&](auto at) -> Lane<T> {
                Lane<T> total = at.load(ddt_bias.data), moment = detail::lane(T(0));
                for (Index n = 0; n < dz.rows; ++n) {
                    const Lane<T> logit = at.load(z.row(n)) + at.load(dt_bias.data), gradient = at.load(dg.row(n));
                    const Lane<T> logit_gradient = detail::decay_lane_gradient<T>(gate, rate, logit, gradient);
                    moment += gate.kind == DecayGate::bounded
                                  ? Lane<T>(logit_gradient * logit)
                                  : Lane<T>(gradient * detail::decay_lane<T>(gate, rate, logit));
                    total += logit_gradient;
                    at.store(dz.row(n), logit_gradient);
                }
                at.store(ddt_bias.data, total);
                return moment;
            });
        }
    });
}

}  // namespace kimik3
