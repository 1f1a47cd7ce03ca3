#pragma once
// How a program begins, commits and awaits the products of Hopper's warpgroups (sm_90a), which go on beside it; what
// they multiply stands in warpgroup.cuh, expert_warpgroup.cuh and kda_blocks.cuh. KIMIK3_WARPGROUPS: 1 where code is
// compiled for them; elsewhere these functions do nothing.

#include "kimik3/ops/cuda/tensor_core.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define KIMIK3_WARPGROUPS 1
#else
#define KIMIK3_WARPGROUPS 0
#endif

namespace kimik3::gpu {

/// What ordinary stores and copies wrote to shared memory becomes visible to the products, after the next barrier.
__device__ __forceinline__ void show_to_products() {
#if KIMIK3_WARPGROUPS
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}
/// Before the first product, and after registers which products read or add to were touched.
__device__ __forceinline__ void begin_products() {
#if KIMIK3_WARPGROUPS
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ void commit_products() {
#if KIMIK3_WARPGROUPS
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}
/// Waits until at most pending of the committed groups are under way.
template <int pending>
__device__ __forceinline__ void wait_for_products() {
#if KIMIK3_WARPGROUPS
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
#endif
}

}  // namespace kimik3::gpu
