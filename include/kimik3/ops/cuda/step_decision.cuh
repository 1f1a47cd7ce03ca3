#pragma once
// The decision about a step on the GPU: one block. Where the sum is not finite, one thread goes through the pieces in
// their order.

#include "kimik3/ops/cuda/launch.cuh"
#include "kimik3/ops/step_decision.hpp"

namespace kimik3 {

template <class A>
void decide_step(const Context<Cuda>& ctx, VectorView<const double> sums, StepNumbers* numbers) {
    gpu::for_rows(ctx, 1, 16384, [=] __device__(Index, gpu::Team team) {
        double total = 0.0;
#pragma unroll 8
        for (Index p = team.rank; p < sums.size; p += team.size) total += sums[p];
        total = team.sum(total);
        if (team.rank != 0) return;
        StepNumbers& to = *numbers;
        const bool clips = to.clip_norm != 0.0 && isfinite(to.clip_norm) && isfinite(total);
        to.norm = sqrt(total);
        to.scale = clips ? fmin(1.0, to.clip_norm / (to.norm + 1e-6)) : 1.0;
        to.not_finite = -1;
        if (!isfinite(static_cast<A>(total * to.scale * to.scale))) {
            double before = 0.0;
            for (Index p = 0; p < sums.size && to.not_finite < 0; ++p) {
                before += sums[p];
                if (!isfinite(static_cast<A>(before * to.scale * to.scale))) to.not_finite = p;
            }
            if (to.not_finite < 0) to.not_finite = sums.size - 1;
        }
        to.applied = to.not_finite < 0 && to.norm <= to.norm_limit;
    });
}

}  // namespace kimik3
