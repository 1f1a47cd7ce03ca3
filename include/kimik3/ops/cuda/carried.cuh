#pragma once
// State carried from call to call, one row a slot, as a kernel reads it (see ops/cpu/carried.hpp).

#include "kimik3/ops/carried.hpp"
#include "kimik3/ops/cuda/launch.cuh"

namespace kimik3::gpu {

/// Where sequence s continues, or nullptr where it begins with zeros.
template <class T>
__device__ const T* carried_in(const DeviceSequences& seq, Index s, const MatrixView<const T>& initial) {
    return initial.rows == 0 || seq.pasts[s] == 0 ? nullptr : initial.row(seq.slots[s]);
}

/// Where sequence s leaves its state, or nullptr where nothing is kept or nothing changes.
template <class T>
__device__ T* carried_out(const DeviceSequences& seq, Index s, const MatrixView<const T>& initial,
                          const MatrixView<T>& final) {
    const bool unchanged = seq.length(s) == 0 && final.data == initial.data;
    return final.rows == 0 || unchanged ? nullptr : final.row(seq.slots[s]);
}

}  // namespace kimik3::gpu
