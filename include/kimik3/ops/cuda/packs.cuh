#pragma once
// Several numbers that are loaded or stored at once.

#include "kimik3/ops/cuda/launch.cuh"

namespace kimik3::gpu {

template <class T, int count = 16 / static_cast<int>(sizeof(T))>
struct alignas(sizeof(T) * count) Pack {
    static constexpr int size = count;
    T at[count];
};

/// Pack i of an array that begins at a multiple of a pack.
template <class P, class T>
__device__ P load_pack(const T* array, Index i) {
    return reinterpret_cast<const P*>(array)[i];
}
template <class P, class T>
__device__ void store_pack(T* array, Index i, const P& pack) {
    reinterpret_cast<P*>(array)[i] = pack;
}

/// Whether packs of T can be read from there.
template <class T>
KIMIK3_HOST_DEVICE bool holds_packs(const T* array) {
    return reinterpret_cast<std::uintptr_t>(array) % sizeof(Pack<T>) == 0;
}

}  // namespace kimik3::gpu
