#pragma once
// The routed experts of Stable LatentMoE (spec 6.1, 6.2), E experts of inner width F on latents z [N, L]:
//   E_e(z) = w2_e SiTU(w1_e z, w3_e z),  u[n] = sum over slots j, in their order, of p[n, j] E_e(n,j)(z[n])   (MOE-4)
//   expert_products_forward (ctx, z, w1, w3 [E F, L], w2 [E L, F], betas, dispatch, p [N, k], saved, u [N, L])
//   expert_products_backward(ctx, z, du, w1, w3, w2, betas, dispatch, saved, p, dz, dw1, dw3, dw2)
//     dz is overwritten and may be du or z; p becomes dp, the dot product of du with the expert's output; weight gradients
//     are added to, those of idle experts are left alone; saved is used up.
// Weights and gradients of the experts stand one below the other. Sums and p in accumulator_t<T>.

#include "kimik3/ops/expert_dispatch.hpp"
#include "kimik3/ops/situ.hpp"

namespace kimik3 {

/// What backward needs of forward, one row a row of the dispatch. A backend may keep less.
template <class Backend, class T>
struct ExpertRows {
    MatrixView<T> rows;              // [rows, L] the gathered latents
    MatrixView<T> gate, up, hidden;  // [rows, F]
    MatrixView<T> out;               // [rows, L] forward: expert outputs; backward: du, then dz of each row

    static ExpertRows bind(Arena& arena, Index rows, Index latent, Index inner) {
        return {arena.matrix<T>(rows, latent), arena.matrix<T>(rows, inner), arena.matrix<T>(rows, inner),
                arena.matrix<T>(rows, inner), arena.matrix<T>(rows, latent)};
    }
};

template <class Backend>
void expert_products_forward(const Context<Backend>&, ...) {
    static_assert(missing_overload<Backend>,
                  "kimik3: expert_products_forward(ctx, z, w1, w3, w2, betas, dispatch, p, saved, u) "
                  "has no overload for these arguments");
}
template <class Backend>
void expert_products_backward(const Context<Backend>&, ...) {
    static_assert(missing_overload<Backend>,
                  "kimik3: expert_products_backward(ctx, z, du, w1, w3, w2, betas, dispatch, saved, p, dz, "
                  "dw1, dw3, dw2) has no overload for these arguments");
}

}  // namespace kimik3
