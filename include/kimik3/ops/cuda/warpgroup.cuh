#pragma once
// The instructions of sm_90a that attention is made of. A warpgroup, 128 threads, multiplies
//   c [64, n] float += a [64, 16] b [16, n],
// b from shared memory, a from there or from registers. Warp w holds the rows 16 w.. of c, and of a as tensor_core.cuh
// says: c[4 j], c[4 j + 1] are (row, 8 j + 2 column..), c[4 j + 2], c[4 j + 3] those of row + 8.
// Matrices in shared memory are cut into panels of 64 columns: a row of a panel is 128 bytes, whose eight pieces of 16
// bytes are exchanged by the row's number (piece ^ row % 8). A panel begins at a multiple of 1,024 bytes. It serves as
// a matrix [rows, columns] whose columns are summed over, and as one whose rows are.

#include "kimik3/ops/cuda/warpgroup_products.cuh"

namespace kimik3::gpu::warpgroup {

inline constexpr int panel_columns = 64, panel_row_bytes = 128;

/// Matrices in shared memory as products name them, from the given address on: one whose columns are summed over, and
/// one whose rows are, with panel_bytes from panel to panel. later: so many bytes further.
__device__ __forceinline__ std::uint64_t along_columns(std::uint32_t address) {
    return (std::uint64_t{1} << 62) | (std::uint64_t{1024 >> 4} << 32) | (std::uint64_t{1} << 16) | (address >> 4);
}
__device__ __forceinline__ std::uint64_t along_rows(std::uint32_t address, int panel_bytes) {
    return (std::uint64_t{1} << 62) | (std::uint64_t{1024 >> 4} << 32) |
           (std::uint64_t{static_cast<std::uint32_t>(panel_bytes) >> 4} << 16) | (address >> 4);
}
__device__ __forceinline__ std::uint64_t later(std::uint64_t matrix, int bytes) {
    return matrix + static_cast<std::uint32_t>(bytes >> 4);
}
/// The address of 8 columns of a row within a panel.
__device__ __forceinline__ std::uint32_t piece(std::uint32_t panel, int row, int eight) {
    return panel + static_cast<std::uint32_t>(row * panel_row_bytes + ((eight ^ (row & 7)) << 4));
}

/// A barrier in shared memory that completes a phase when count threads have arrived.
__device__ __forceinline__ void start_barrier(std::uint32_t barrier, int count) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
__device__ __forceinline__ void arrive(std::uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(barrier) : "memory");
}
/// Arrives when the copies that this thread has started are complete.
__device__ __forceinline__ void arrive_after_copies(std::uint32_t barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}
/// Waits for the end of the phase of that parity.
__device__ __forceinline__ void wait(std::uint32_t barrier, std::uint32_t parity) {
    asm volatile(
        "{ .reg .pred done; again: mbarrier.try_wait.parity.shared.b64 done, [%0], %1; @!done bra again; }" ::"r"(
            barrier),
        "r"(parity)
        : "memory");
}

/// A ring of stages in shared memory, each with two barriers: full when all copying threads have arrived, empty when all
/// reading warps have.
struct Ring {
    std::uint32_t barriers;  // full and empty of every stage
    int stages, stage = 0;
    std::uint32_t parity = 0;

    __device__ Ring(std::uint32_t at, int count) : barriers(at), stages(count) {}
    __device__ __forceinline__ std::uint32_t full() const { return barriers + stage * 16; }
    __device__ __forceinline__ std::uint32_t empty() const { return barriers + stage * 16 + 8; }
    __device__ __forceinline__ void next() {
        if (++stage == stages) stage = 0, parity ^= 1;
    }
    __device__ void start(int threads, int warps) const {
        for (int i = 0; i < stages; ++i)
            start_barrier(barriers + i * 16, threads), start_barrier(barriers + i * 16 + 8, warps);
    }
    __device__ __forceinline__ void wait_empty() const { wait(empty(), parity ^ 1); }
    __device__ __forceinline__ void wait_full() const {
        wait(full(), parity);
        show_to_products();
    }
    __device__ __forceinline__ void release() const {
        if (threadIdx.x % 32 == 0) arrive(empty());
    }
};

/// 16 or 4 bytes from device to shared memory, or zeros where there is nothing to read.
__device__ __forceinline__ void copy_16(std::uint32_t to, const void* from, bool exists) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(exists ? 16 : 0) : "memory");
}
__device__ __forceinline__ void copy_4(std::uint32_t to, const void* from, bool exists) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(exists ? 4 : 0) : "memory");
}
/// Waits for the copies that this thread has started.
__device__ __forceinline__ void finish_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

__device__ __forceinline__ float2 load_floats(std::uint32_t address) {
    float2 both;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(both.x), "=f"(both.y) : "r"(address) : "memory");
    return both;
}
__device__ __forceinline__ uint4 load_piece(std::uint32_t address) {
    uint4 all;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(all.x), "=r"(all.y), "=r"(all.z), "=r"(all.w)
                 : "r"(address)
                 : "memory");
    return all;
}

#if KIMIK3_WARPGROUPS

template <int registers>
__device__ __forceinline__ void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
}
template <int registers>
__device__ __forceinline__ void give_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
}

/// Keeps the program from moving or reading these before this place.
template <class T, int count>
__device__ __forceinline__ void pin(T (&registers)[count]) {
    for (int i = 0; i < count; ++i) {
        if constexpr (std::is_same_v<T, float>) asm volatile("" : "+f"(registers[i])::"memory");
        else asm volatile("" : "+r"(registers[i])::"memory");
    }
}

#define KIMIK3_EIGHT(c, i) \
    "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3]), "+f"(c[i + 4]), "+f"(c[i + 5]), "+f"(c[i + 6]), \
        "+f"(c[i + 7])

#define KIMIK3_EIGHT_NEW(c, i) \
    "=f"(c[i]), "=f"(c[i + 1]), "=f"(c[i + 2]), "=f"(c[i + 3]), "=f"(c[i + 4]), "=f"(c[i + 5]), "=f"(c[i + 6]), \
        "=f"(c[i + 7])

// multiply: c = a b; add_multiple: c += a b; a and b along columns.
__device__ __forceinline__ void multiply(float (&c)[32], std::uint64_t a, std::uint64_t b) {
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, 0, 0; "
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, "
        "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31 "
        "}, %32, %33, p, 1, 1, 0, 0; }"
        : KIMIK3_EIGHT_NEW(c, 0), KIMIK3_EIGHT_NEW(c, 8), KIMIK3_EIGHT_NEW(c, 16), KIMIK3_EIGHT_NEW(c, 24)
        : "l"(a), "l"(b));
}
__device__ __forceinline__ void add_multiple(float (&c)[32], std::uint64_t a, std::uint64_t b) {
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, 1, 0; "
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, "
        "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31 "
        "}, %32, %33, p, 1, 1, 0, 0; }"
        : KIMIK3_EIGHT(c, 0), KIMIK3_EIGHT(c, 8), KIMIK3_EIGHT(c, 16), KIMIK3_EIGHT(c, 24)
        : "l"(a), "l"(b));
}
__device__ __forceinline__ void multiply(float (&c)[64], std::uint64_t a, std::uint64_t b) {
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, 0, 0; "
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, "
        "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "
        "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, "
        "%59, %60, %61, %62, %63 "
        "}, %64, %65, p, 1, 1, 0, 0; }"
        : KIMIK3_EIGHT_NEW(c, 0), KIMIK3_EIGHT_NEW(c, 8), KIMIK3_EIGHT_NEW(c, 16), KIMIK3_EIGHT_NEW(c, 24),
        KIMIK3_EIGHT_NEW(c, 32), KIMIK3_EIGHT_NEW(c, 40), KIMIK3_EIGHT_NEW(c, 48), KIMIK3_EIGHT_NEW(c, 56)
        : "l"(a), "l"(b));
}
__device__ __forceinline__ void add_multiple(float (&c)[64], std::uint64_t a, std::uint64_t b) {
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, 1, 0; "
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, "
        "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "
        "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, "
        "%59, %60, %61, %62, %63 "
        "}, %64, %65, p, 1, 1, 0, 0; }"
        : KIMIK3_EIGHT(c, 0), KIMIK3_EIGHT(c, 8), KIMIK3_EIGHT(c, 16), KIMIK3_EIGHT(c, 24), KIMIK3_EIGHT(c, 32),
        KIMIK3_EIGHT(c, 40), KIMIK3_EIGHT(c, 48), KIMIK3_EIGHT(c, 56)
        : "l"(a), "l"(b));
}

// c += a b; a from registers, b along rows.
__device__ __forceinline__ void add_registers(float (&c)[64], const std::uint32_t (&a)[4],
                                                   std::uint64_t b) {
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, 1, 0; "
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, "
        "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "
        "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, "
        "%59, %60, %61, %62, %63 "
        "}, {%64, %65, %66, %67}, %68, p, 1, 1, 1; }"
        : KIMIK3_EIGHT(c, 0), KIMIK3_EIGHT(c, 8), KIMIK3_EIGHT(c, 16), KIMIK3_EIGHT(c, 24), KIMIK3_EIGHT(c, 32),
        KIMIK3_EIGHT(c, 40), KIMIK3_EIGHT(c, 48), KIMIK3_EIGHT(c, 56)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
__device__ __forceinline__ void add_registers(float (&c)[96], const std::uint32_t (&a)[4],
                                                   std::uint64_t b) {
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, 1, 0; "
        "wgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, "
        "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "
        "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, "
        "%59, %60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, "
        "%78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95 "
        "}, {%96, %97, %98, %99}, %100, p, 1, 1, 1; }"
        : KIMIK3_EIGHT(c, 0), KIMIK3_EIGHT(c, 8), KIMIK3_EIGHT(c, 16), KIMIK3_EIGHT(c, 24), KIMIK3_EIGHT(c, 32),
        KIMIK3_EIGHT(c, 40), KIMIK3_EIGHT(c, 48), KIMIK3_EIGHT(c, 56), KIMIK3_EIGHT(c, 64), KIMIK3_EIGHT(c, 72),
        KIMIK3_EIGHT(c, 80), KIMIK3_EIGHT(c, 88)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

#undef KIMIK3_EIGHT
#undef KIMIK3_EIGHT_NEW
#endif  // KIMIK3_WARPGROUPS

}  // namespace kimik3::gpu::warpgroup
