#pragma once
// Sums of squares on the GPU: a block a piece.

#include "kimik3/ops/cuda/launch.cuh"
#include "kimik3/ops/gradient_norm.hpp"

namespace kimik3 {

template <class T>
void gradient_square_sums(const Context<Cuda>& ctx, std::span<const ElementPiece> pieces, VectorView<const T> g,
                          OutVector<double> sums) {
    const Index count = static_cast<Index>(pieces.size());
    require_size("gradient_square_sums: sums", sums, count);
    const ElementPiece* list = ctx.on_device(pieces);
    gpu::for_rows(ctx, count, 16384, [=] __device__(Index p, gpu::Team team) {
        double sum = 0.0;
        for (Index i = team.rank; i < list[p].count; i += team.size) {
            const double value = static_cast<double>(g[list[p].offset + i]);
            sum += value * value;
        }
        sum = team.sum(sum);
        if (team.rank == 0) sums[p] = sum;
    });
}

}  // namespace kimik3
