#pragma once
// The log-decay of KDA (spec 2.2), channel by channel, from logits z [N, H K], A_log [H] (one a head) and dt_bias [H
// K]:
//   bounded   g = bound sigmoid(e^A (z + dt)), in (bound, 0)     another function than softplus, not a clamp of it
//   softplus  g = -e^A softplus(z + dt)   (KDA-7)
//   decay_gate_forward (ctx, gate, z, A_log, dt_bias, g [N, H K])                              g may be z
//   decay_gate_backward(ctx, gate, dg, z, A_log, dt_bias, dz [N, H K], dA_log [H], ddt_bias [H K])
//     dz may be dg but not z; dA_log and ddt_bias are added to
// Sums in accumulator_t<T>.

#include "kimik3/backend/backend.hpp"
#include "kimik3/config/model_config.hpp"
#include "kimik3/core/dtype.hpp"
#include "kimik3/tensor/view.hpp"

namespace kimik3 {

struct DecayGateForm {
    DecayGate kind = DecayGate::bounded;
    double lower_bound = -5.0;  // of the bounded gate
};

template <class Backend>
void decay_gate_forward(const Context<Backend>&, ...) {
    static_assert(missing_overload<Backend>,
                  "kimik3: decay_gate_forward(ctx, gate, z, A_log, dt_bias, g) has no overload for these arguments");
}
template <class Backend>
void decay_gate_backward(const Context<Backend>&, ...) {
    static_assert(missing_overload<Backend>,
                  "kimik3: decay_gate_backward(ctx, gate, dg, z, A_log, dt_bias, dz, dA_log, ddt_bias) has no overload "
                  "for these arguments");
}

}  // namespace kimik3
