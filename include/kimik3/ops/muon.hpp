#pragma once
// Muon (Jordan et al. 2024; update scale of Moonlight, arXiv 2502.16982) over blocks, dense matrices [R, C] in the flat
// arrays; a projection of many heads is one block a head, so that a loud head does not drown the others (spec 8.2):
//   g' = scale g,  m <- mu m + g',  n = g' + mu m (Nesterov)   (TRAIN-7)
//   w <- (1 - lr decay) w - lr 0.2 sqrt(max(R, C)) NewtonSchulz(n)   (TRAIN-9)
//   muon_step(ctx, blocks, rule, g, w, m)   w and m are overwritten, elements outside the blocks untouched
// The factor makes the root mean square of an update about 0.2, that of AdamW. All arithmetic in T.

#include <algorithm>
#include <span>

#include "kimik3/backend/backend.hpp"
#include "kimik3/tensor/view.hpp"

namespace kimik3 {

/// A matrix [rows, cols] at offset in g, w and m.
struct MuonBlock {
    Index offset = 0, rows = 0, cols = 0;
    bool decay = true;
};

struct MuonRule {
    double lr = 0.0, momentum = 0.95, decay = 0.0;
    double scale = 1.0;  // of the gradient: what clipping leaves of it
    Index newton_schulz_steps = 5;
};

namespace detail {

template <class T>
void check_muon(std::span<const MuonBlock> blocks, VectorView<const T> g, VectorView<T> w, VectorView<T> m) {
    require_size("muon: w", w, g.size);
    require_size("muon: m", m, g.size);
    for (const MuonBlock& b : blocks)
        require((std::min)({b.offset, b.rows, b.cols}) >= 0 && b.offset + b.rows * b.cols <= g.size,
                "muon: a block [{}, {}] at {} does not lie in {} elements", b.rows, b.cols, b.offset, g.size);
}

}  // namespace detail

template <class Backend>
void muon_step(const Context<Backend>&, ...) {
    static_assert(missing_overload<Backend>,
                  "kimik3: muon_step(ctx, blocks, rule, g, w, m) has no overload for these arguments");
}

}  // namespace kimik3
