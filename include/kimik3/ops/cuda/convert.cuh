#pragma once
// Rounding to another format on the GPU, 16 bytes at a time where the vectors begin at multiples of them.

#include "kimik3/ops/convert.hpp"
#include "kimik3/ops/cuda/packs.cuh"

namespace kimik3 {

template <class From, class To>
void convert(const Context<Cuda>& ctx, VectorView<const From> from, VectorView<To> to) {
    static_assert(sizeof(To) <= sizeof(From));
    require_size("convert: from", from, to.size);
    using Read = gpu::Pack<From>;
    using Written = gpu::Pack<To, Read::size>;
    const Index packs = gpu::holds_packs(from.data) && gpu::holds_packs(to.data) ? to.size / Read::size : 0;
    gpu::for_each(ctx, packs, [=] __device__(Index i) {
        const Read read = gpu::load_pack<Read>(from.data, i);
        Written written;
        for (int j = 0; j < Read::size; ++j) written.at[j] = static_cast<To>(read.at[j]);
        gpu::store_pack(to.data, i, written);
    });
    const Index done = packs * Read::size;
    gpu::for_each(ctx, to.size - done,
                  [=] __device__(Index i) { to[done + i] = static_cast<To>(from[done + i]); });
}

}  // namespace kimik3
