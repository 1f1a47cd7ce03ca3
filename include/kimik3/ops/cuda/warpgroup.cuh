#pragma once
// The products of Hopper's warpgroups (sm_90a), and what keeps them supplied. A warpgroup, four warps that begin at a
// multiple of four, multiplies bf16 while it goes on to other work:
//   c [64, n] float = or += a [64, 16] b [16, n],
// b from shared memory, a from there or from registers (as tensor_core.cuh says, 16 rows a warp). Thread t holds of c
// the rows 16 (t / 32) + t % 32 / 4 and the one 8 below, in both the columns 8 j + 2 (t % 4) and the next:
// c[4 j .. 4 j + 1] and c[4 j + 2 .. 4 j + 3].
// An operand in shared memory is described by its address and a distance. It stands in rows of 128 bytes, whose 16-byte
// pieces are permuted: piece i of row r at i ^ (r % 8); eight rows, 1,024 bytes, begin at a multiple of 1,024.
//   along K (as an operand [rows, K] is read): a row holds 64 values of K, the next eight rows stand 1,024 bytes on;
//     the next 16 values of K begin 32 bytes on.
//   turned (an operand [K, columns]): a row holds 64 columns of one K, the next 64 columns stand `apart` bytes on; the
//     next 16 rows of K begin 2,048 bytes on.
// Where code is compiled without warpgroups (KIMIK3_WARPGROUPS, launch.cuh) these functions do nothing.

#include "kimik3/ops/cuda/tensor_core.cuh"

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

#define KIMIK3_EIGHT(kind, i)                                                                                   \
    kind(c[i]), kind(c[i + 1]), kind(c[i + 2]), kind(c[i + 3]), kind(c[i + 4]), kind(c[i + 5]), kind(c[i + 6]), \
        kind(c[i + 7])
#define KIMIK3_SUMS_16(kind) KIMIK3_EIGHT(kind, 0), KIMIK3_EIGHT(kind, 8)
#define KIMIK3_SUMS_32(kind) KIMIK3_SUMS_16(kind), KIMIK3_EIGHT(kind, 16), KIMIK3_EIGHT(kind, 24)
#define KIMIK3_SUMS_48(kind) KIMIK3_SUMS_32(kind), KIMIK3_EIGHT(kind, 32), KIMIK3_EIGHT(kind, 40)
#define KIMIK3_SUMS_64(kind) KIMIK3_SUMS_48(kind), KIMIK3_EIGHT(kind, 48), KIMIK3_EIGHT(kind, 56)
#define KIMIK3_SUMS_80(kind) KIMIK3_SUMS_64(kind), KIMIK3_EIGHT(kind, 64), KIMIK3_EIGHT(kind, 72)
#define KIMIK3_SUMS_96(kind) KIMIK3_SUMS_80(kind), KIMIK3_EIGHT(kind, 80), KIMIK3_EIGHT(kind, 88)
#define KIMIK3_LIST_16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define KIMIK3_LIST_32 KIMIK3_LIST_16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define KIMIK3_LIST_48 KIMIK3_LIST_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define KIMIK3_LIST_64 KIMIK3_LIST_48 ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define KIMIK3_LIST_80 KIMIK3_LIST_64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define KIMIK3_LIST_96 KIMIK3_LIST_80 ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"

// multiply: c = a b; multiply_add: c += a b, or c = a b if it is not to keep c. The last numbers are those of the
// operands behind the sums.
#define KIMIK3_PRODUCTS(columns, count, n0, n1, n2, n3, n4, n5)                                                        \
    template <bool a_turned = false, bool b_turned = false>                                                            \
    __device__ __forceinline__ void multiply(float (&c)[count], std::uint64_t a, std::uint64_t b) {                    \
        asm volatile("{ .reg .pred p; setp.ne.b32 p, 0, 0; wgmma.mma_async.sync.aligned.m64n" #columns                 \
                     "k16.f32.bf16.bf16 {" KIMIK3_LIST_##count "}, %" #n0 ", %" #n1 ", p, 1, 1, %" #n2 ", %" #n3 "; }" \
                     : KIMIK3_SUMS_##count("=f")                                                                       \
                     : "l"(a), "l"(b), "n"(a_turned ? 1 : 0), "n"(b_turned ? 1 : 0));                                  \
    }                                                                                                                  \
    template <bool a_turned = false, bool b_turned = false>                                                            \
    __device__ __forceinline__ void multiply_add(float (&c)[count], std::uint64_t a, std::uint64_t b, bool keep) {     \
        asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #n2 ", 0; wgmma.mma_async.sync.aligned.m64n" #columns          \
                     "k16.f32.bf16.bf16 {" KIMIK3_LIST_##count "}, %" #n0 ", %" #n1 ", p, 1, 1, %" #n3 ", %" #n4 "; }" \
                     : KIMIK3_SUMS_##count("+f")                                                                       \
                     : "l"(a), "l"(b), "r"(keep ? 1 : 0), "n"(a_turned ? 1 : 0), "n"(b_turned ? 1 : 0));               \
    }                                                                                                                  \
    template <bool b_turned = false>                                                                                   \
    __device__ __forceinline__ void multiply_add(float (&c)[count], const std::uint32_t (&a)[4], std::uint64_t b) {    \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32.bf16.bf16 {" KIMIK3_LIST_##count "}, {%"    \
                     #n0 ", %" #n1 ", %" #n2 ", %" #n3 "}, %" #n4 ", 1, 1, 1, %" #n5 ";"                               \
                     : KIMIK3_SUMS_##count("+f")                                                                       \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(b_turned ? 1 : 0));                     \
    }
KIMIK3_PRODUCTS(32, 16, 16, 17, 18, 19, 20, 21)
KIMIK3_PRODUCTS(64, 32, 32, 33, 34, 35, 36, 37)
KIMIK3_PRODUCTS(96, 48, 48, 49, 50, 51, 52, 53)
KIMIK3_PRODUCTS(128, 64, 64, 65, 66, 67, 68, 69)
KIMIK3_PRODUCTS(160, 80, 80, 81, 82, 83, 84, 85)
KIMIK3_PRODUCTS(192, 96, 96, 97, 98, 99, 100, 101)

#undef KIMIK3_PRODUCTS
#undef KIMIK3_EIGHT
#undef KIMIK3_SUMS_16
#undef KIMIK3_LIST_16
#undef KIMIK3_SUMS_32
#undef KIMIK3_LIST_32
#undef KIMIK3_SUMS_48
#undef KIMIK3_LIST_48
#undef KIMIK3_SUMS_64
#undef KIMIK3_LIST_64
#undef KIMIK3_SUMS_80
#undef KIMIK3_LIST_80
#undef KIMIK3_SUMS_96
#undef KIMIK3_LIST_96

#else

template <bool a_turned, bool b_turned, int count>
__device__ void multiply_add(float (&)[count], std::uint64_t, std::uint64_t, bool) {
    __trap();
}

#endif

namespace warpgroup {

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

/// A ring of stages in shared memory, each with two barriers: full when all copying threads have arrived, empty when
/// all reading warps have.
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
    __device__ __forceinline__ void release() const { release(empty()); }
    /// All lanes of the warp have read what the barrier stands for.
    __device__ __forceinline__ static void release(std::uint32_t barrier) {
        __syncwarp();
        if (threadIdx.x % 32 == 0) arrive(barrier);
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

#endif

}  // namespace warpgroup
}  // namespace kimik3::gpu
