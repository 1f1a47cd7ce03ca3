#pragma once
// The products of Hopper's warpgroups (sm_90a): four warps that begin at a multiple of four make
//   c [64, n] float = or += a [64, 16] b [16, n]
// of bf16 in shared memory, while they go on to other work. An operand is described by its address and two distances.
// It stands in rows of 128 bytes, whose 16-byte pieces are permuted: piece i of row r at i ^ (r % 8); eight rows, 1,024
// bytes, begin at a multiple of 1,024.
//   along K (as an operand [rows, K] is read): a row holds 64 values of K, the next eight rows stand 1,024 bytes on;
//     the next 16 values of K begin 32 bytes on.
//   turned (an operand [K, columns]): a row holds 64 columns of one K, the next 64 columns stand `apart` bytes on; the
//     next 16 rows of K begin 2,048 bytes on.
// Thread t of the warpgroup holds of c the rows 16 (t / 32) + t % 32 / 4 and the one 8 below, in both the columns
// 8 j + 2 (t % 4) and the next: c[4 j .. 4 j + 1] and c[4 j + 2 .. 4 j + 3].

#include "kimik3/ops/cuda/warpgroup_products.cuh"

namespace kimik3::gpu {

/// Tells by its limit what it was compiled for.
template <class>
__global__ void __launch_bounds__(KIMIK3_WARPGROUPS ? 64 : 32) warpgroups_kernel() {}

/// Whether this GPU has warpgroup products and this program's kernels were compiled for them.
inline bool has_warpgroups() {
    static const bool found = [] {
        cudaFuncAttributes kernel{};
        KIMIK3_CUDA(cudaFuncGetAttributes(&kernel, warpgroups_kernel<void>));
        return kernel.maxThreadsPerBlock == 64;
    }();
    return found;
}

/// 16-byte piece of a row of 128 bytes, as the operands stand.
__device__ inline std::uint32_t operand_bytes(int row, int piece) { return row * 128 + ((piece ^ (row & 7)) << 4); }

/// address: in shared memory; apart: bytes between 64 columns of a turned operand and the next.
__device__ inline std::uint64_t operand(std::uint32_t address, std::uint32_t apart = 16) {
    const std::uint32_t low = (address & 0x3ffffu) >> 4 | apart >> 4 << 16;
    return std::uint64_t{1u << 30 | 1024u >> 4} << 32 | low;
}
/// The operand that stands bytes further on.
__device__ inline std::uint64_t further(std::uint64_t from, std::uint32_t bytes) {
    return (from & 0xffffffff00000000u) | (static_cast<std::uint32_t>(from) + (bytes >> 4));
}

/// Four 8 x 8 matrices of bf16 from registers to shared memory, as load_matrices reads them.
__device__ inline void store_matrices(void* row, const std::uint32_t (&from)[4]) {
#if KIMIK3_WARPGROUPS
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(shared_address(row)),
                 "r"(from[0]), "r"(from[1]), "r"(from[2]), "r"(from[3])
                 : "memory");
#endif
}

#if KIMIK3_WARPGROUPS

#define KIMIK3_SUMS(i)                                                                                       \
    "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3]), "+f"(c[i + 4]), "+f"(c[i + 5]), "+f"(c[i + 6]), \
        "+f"(c[i + 7])

template <bool a_turned, bool b_turned>
__device__ inline void multiply_add(float (&c)[48], std::uint64_t a, std::uint64_t b, bool keep) {
    asm volatile(
        "{.reg .pred keep; setp.ne.b32 keep, %50, 0; "
        "wgmma.mma_async.sync.aligned.m64n96k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47}, "
        "%48, %49, keep, 1, 1, %51, %52;}"
        : KIMIK3_SUMS(0), KIMIK3_SUMS(8), KIMIK3_SUMS(16), KIMIK3_SUMS(24), KIMIK3_SUMS(32),
          KIMIK3_SUMS(40)
        : "l"(a), "l"(b), "r"(static_cast<int>(keep)), "n"(static_cast<int>(a_turned)),
          "n"(static_cast<int>(b_turned)));
}
template <bool a_turned, bool b_turned>
__device__ inline void multiply_add(float (&c)[64], std::uint64_t a, std::uint64_t b, bool keep) {
    asm volatile(
        "{.reg .pred keep; setp.ne.b32 keep, %66, 0; "
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
        "%64, %65, keep, 1, 1, %67, %68;}"
        : KIMIK3_SUMS(0), KIMIK3_SUMS(8), KIMIK3_SUMS(16), KIMIK3_SUMS(24), KIMIK3_SUMS(32), KIMIK3_SUMS(40), KIMIK3_SUMS(48), KIMIK3_SUMS(56)
        : "l"(a), "l"(b), "r"(static_cast<int>(keep)), "n"(static_cast<int>(a_turned)),
          "n"(static_cast<int>(b_turned)));
}
template <bool a_turned, bool b_turned>
__device__ inline void multiply_add(float (&c)[72], std::uint64_t a, std::uint64_t b, bool keep) {
    asm volatile(
        "{.reg .pred keep; setp.ne.b32 keep, %74, 0; "
        "wgmma.mma_async.sync.aligned.m64n144k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71}, "
        "%72, %73, keep, 1, 1, %75, %76;}"
        : KIMIK3_SUMS(0), KIMIK3_SUMS(8), KIMIK3_SUMS(16), KIMIK3_SUMS(24), KIMIK3_SUMS(32),
          KIMIK3_SUMS(40), KIMIK3_SUMS(48), KIMIK3_SUMS(56), KIMIK3_SUMS(64)
        : "l"(a), "l"(b), "r"(static_cast<int>(keep)), "n"(static_cast<int>(a_turned)),
          "n"(static_cast<int>(b_turned)));
}
template <bool a_turned, bool b_turned>
__device__ inline void multiply_add(float (&c)[80], std::uint64_t a, std::uint64_t b, bool keep) {
    asm volatile(
        "{.reg .pred keep; setp.ne.b32 keep, %82, 0; "
        "wgmma.mma_async.sync.aligned.m64n160k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79}, "
        "%80, %81, keep, 1, 1, %83, %84;}"
        : KIMIK3_SUMS(0), KIMIK3_SUMS(8), KIMIK3_SUMS(16), KIMIK3_SUMS(24), KIMIK3_SUMS(32),
          KIMIK3_SUMS(40), KIMIK3_SUMS(48), KIMIK3_SUMS(56), KIMIK3_SUMS(64), KIMIK3_SUMS(72)
        : "l"(a), "l"(b), "r"(static_cast<int>(keep)), "n"(static_cast<int>(a_turned)),
          "n"(static_cast<int>(b_turned)));
}
template <bool a_turned, bool b_turned>
__device__ inline void multiply_add(float (&c)[96], std::uint64_t a, std::uint64_t b, bool keep) {
    asm volatile(
        "{.reg .pred keep; setp.ne.b32 keep, %98, 0; "
        "wgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95}, "
        "%96, %97, keep, 1, 1, %99, %100;}"
        : KIMIK3_SUMS(0), KIMIK3_SUMS(8), KIMIK3_SUMS(16), KIMIK3_SUMS(24), KIMIK3_SUMS(32),
          KIMIK3_SUMS(40), KIMIK3_SUMS(48), KIMIK3_SUMS(56), KIMIK3_SUMS(64), KIMIK3_SUMS(72),
          KIMIK3_SUMS(80), KIMIK3_SUMS(88)
        : "l"(a), "l"(b), "r"(static_cast<int>(keep)), "n"(static_cast<int>(a_turned)),
          "n"(static_cast<int>(b_turned)));
}

#undef KIMIK3_SUMS
#else

template <bool a_turned, bool b_turned, int count>
__device__ void multiply_add(float (&)[count], std::uint64_t, std::uint64_t, bool) {
    __trap();
}

#endif

}  // namespace kimik3::gpu
