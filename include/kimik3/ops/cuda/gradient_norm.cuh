#pragma once
// Sums of squares on the GPU: a block a piece, 16 bytes at a time where its elements begin at multiples of them.

#include "kimik3/ops/cuda/packs.cuh"
#include "kimik3/ops/gradient_norm.hpp"

namespace kimik3 {

template <class T>
void gradient_square_sums(const Context<Cuda>& ctx, std::span<const ElementPiece> pieces, VectorView<const T> g,
                          OutVector<double> sums) {
    const Index count = static_cast<Index>(pieces.size());
    require_size("gradient_square_sums: sums", sums, count);
    const ElementPiece* list = ctx.on_device(pieces);
    gpu::for_rows(ctx, count, 16384, [=] __device__(Index p, gpu::Team team) {
        using P = gpu::Pack<T>;
        const ElementPiece piece = list[p];
        const T* values = g.data + piece.offset;
        const Index packs = gpu::holds_packs(values) ? piece.count / P::size : 0;
        double sum = 0.0;
        const auto add = [&](double value) { sum += value * value; };
#pragma unroll 4
        for (Index i = team.rank; i < packs; i += team.size) {
            const P pack = gpu::load_pack<P>(values, i);
            for (int j = 0; j < P::size; ++j) add(static_cast<double>(pack.at[j]));
        }
        for (Index i = packs * P::size + team.rank; i < piece.count; i += team.size)
            add(static_cast<double>(values[i]));
        sum = team.sum(sum);
        if (team.rank == 0) sums[p] = sum;
    });
}

}  // namespace kimik3
