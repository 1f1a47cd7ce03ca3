#pragma once
// The instructions that kernels for tensor cores are made of, from compute capability 8.0 on: tiles of bf16 between
// device memory, shared memory and registers, and the product of a warp,
//   c [16, 8] float += a [16, 16] b [16, 8].
// With lane = 4 row + column (row 0..7, column 0..3) a thread holds
//   a: (row, 2 column), (row + 8, 2 column), (row, 2 column + 8), (row + 8, 2 column + 8), two along K in each
//   b: (2 column, row), (2 column + 8, row), two along K in each
//   c: (row, 2 column), (row, 2 column + 1), (row + 8, 2 column), (row + 8, 2 column + 1)

#include "kimik3/ops/cuda/launch.cuh"

namespace kimik3::gpu {

/// Two numbers as bf16 in one register, the first in the lower half.
__device__ inline std::uint32_t pack_bf16(float first, float second) {
    std::uint32_t both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
    return both;
}
__device__ inline float2 unpack_bf16(std::uint32_t both) {
    return {__uint_as_float(both << 16), __uint_as_float(both & 0xffff0000u)};
}

__device__ inline std::uint32_t shared_address(const void* pointer) {
    return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

/// Four 8 x 8 matrices of bf16 from shared memory; lane 8 i + j names row j (16 bytes, so aligned) of matrix i.
__device__ inline void load_matrices(std::uint32_t (&to)[4], const bf16* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(shared_address(row))
                 : "memory");
}
/// The same, each transposed.
__device__ inline void load_matrices_transposed(std::uint32_t (&to)[4], const bf16* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(shared_address(row))
                 : "memory");
}

__device__ inline void multiply_add(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// 16 bytes from device to shared memory, both aligned to 16, or zeros where there is nothing to read; complete after
/// wait_for_copies and a barrier.
__device__ inline void copy_16_bytes(void* to, const void* from, bool exists = true) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :
                 : "r"(shared_address(to)), "l"(from), "r"(exists ? 16 : 0)
                 : "memory");
}
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// Waits until at most pending of the committed groups are under way.
template <int pending>
__device__ void wait_for_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

}  // namespace kimik3::gpu
