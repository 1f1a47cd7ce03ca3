#pragma once
// Eight numbers of bf16 in a piece of 16 bytes, as memory is read and written fastest.

#include "kimik3/ops/cuda/tensor_core.cuh"

namespace kimik3::gpu {

__device__ inline uint4 pack_eight(const float (&v)[8]) {
    return {pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]), pack_bf16(v[4], v[5]), pack_bf16(v[6], v[7])};
}
__device__ inline void unpack_eight(uint4 from, float (&to)[8]) {
    const std::uint32_t pairs[4] = {from.x, from.y, from.z, from.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float2 both = unpack_bf16(pairs[i]);
        to[2 * i] = both.x, to[2 * i + 1] = both.y;
    }
}

}  // namespace kimik3::gpu
