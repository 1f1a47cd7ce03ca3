#pragma once
// Products of KDA's states with the operands of a chunk. Operands lie in shared memory as blocks of 64 columns: rows of
// 128 bytes, of which row r has its 16-byte piece p in place p ^ (r % 8), as the warpgroup product of compute
// capability 9.0 reads them in either direction; a block begins at a multiple of 1024 bytes. Other GPUs take the same
// blocks through ldmatrix, warp by warp. Left operands and sums are in registers, 16 rows a warp.

#include "kimik3/ops/cuda/kda_tiles.cuh"
#include "kimik3/ops/cuda/warpgroup_products.cuh"

namespace kimik3::gpu::kda {

/// Copies [rows, 64 blocks] to blocks of rows; rows from count on are zeros.
template <int threads, int rows, int blocks>
__device__ void copy_blocks(bf16* to, const bf16* from, Index stride, int count) {
#pragma unroll
    for (int i = threadIdx.x; i < rows * 8 * blocks; i += threads) {
        const int row = i / (8 * blocks), piece = i % (8 * blocks);
        copy_16_bytes(to + in_blocks<rows>(row, piece * 8), row < count ? from + row * stride + piece * 8 : from,
                      row < count);
    }
}

#if KIMIK3_WARPGROUPS

/// Of a block at the multiple of 1024 bytes below m; leading: bytes between blocks for operands read turned.
__device__ inline std::uint64_t descriptor(const bf16* m, int leading) {
    const std::uint64_t address = (shared_address(m) & 0x3ffffu) >> 4;
    return address | static_cast<std::uint64_t>(leading >> 4) << 16 | std::uint64_t{1024 >> 4} << 32 |
           std::uint64_t{1} << 62;
}

/// Copies of whole blocks by the copy engine; one thread starts them, all wait for the bytes that it announced.
using Arrival = std::uint64_t;
__device__ inline void begin_arrivals(Arrival* at) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(at)) : "memory");
    show_to_products();
}
__device__ inline void announce(Arrival* at, int bytes) {
    if (threadIdx.x == 0)
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(at)), "r"(bytes)
                     : "memory");
}
template <int threads>
__device__ void copy_whole(void* to, const void* from, int bytes, Arrival* at) {
    if (threadIdx.x == 0)
        asm volatile(
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                shared_address(to)),
            "l"(from), "r"(bytes), "r"(shared_address(at))
            : "memory");
}
__device__ inline void wait_for_arrival(Arrival* at, int phase) {
    std::uint32_t done = 0;
    while (done == 0)
        asm volatile(
            "{\n.reg .pred p;\n"
            "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
            "selp.u32 %0, 1, 0, p;\n}"
            : "=r"(done)
            : "r"(shared_address(at)), "r"(phase)
            : "memory");
}

/// The warpgroup's product with 16 tiles columns.
template <int tiles, bool turned>
__device__ inline void group_multiply(float (&c)[tiles][2][4], const Fragment& a, std::uint64_t b) {
    if constexpr (tiles == 2)
        asm volatile(
            "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {"
            "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
            "}, {%16,%17,%18,%19}, %20, 1, 1, 1, %21;"
            : "+f"(c[0][0][0]), "+f"(c[0][0][1]), "+f"(c[0][0][2]), "+f"(c[0][0][3]),
              "+f"(c[0][1][0]), "+f"(c[0][1][1]), "+f"(c[0][1][2]), "+f"(c[0][1][3]),
              "+f"(c[1][0][0]), "+f"(c[1][0][1]), "+f"(c[1][0][2]), "+f"(c[1][0][3]),
              "+f"(c[1][1][0]), "+f"(c[1][1][1]), "+f"(c[1][1][2]), "+f"(c[1][1][3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(turned ? 1 : 0));
    else if constexpr (tiles == 4)
        asm volatile(
            "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
            "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
            "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
            "}, {%32,%33,%34,%35}, %36, 1, 1, 1, %37;"
            : "+f"(c[0][0][0]), "+f"(c[0][0][1]), "+f"(c[0][0][2]), "+f"(c[0][0][3]),
              "+f"(c[0][1][0]), "+f"(c[0][1][1]), "+f"(c[0][1][2]), "+f"(c[0][1][3]),
              "+f"(c[1][0][0]), "+f"(c[1][0][1]), "+f"(c[1][0][2]), "+f"(c[1][0][3]),
              "+f"(c[1][1][0]), "+f"(c[1][1][1]), "+f"(c[1][1][2]), "+f"(c[1][1][3]),
              "+f"(c[2][0][0]), "+f"(c[2][0][1]), "+f"(c[2][0][2]), "+f"(c[2][0][3]),
              "+f"(c[2][1][0]), "+f"(c[2][1][1]), "+f"(c[2][1][2]), "+f"(c[2][1][3]),
              "+f"(c[3][0][0]), "+f"(c[3][0][1]), "+f"(c[3][0][2]), "+f"(c[3][0][3]),
              "+f"(c[3][1][0]), "+f"(c[3][1][1]), "+f"(c[3][1][2]), "+f"(c[3][1][3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(turned ? 1 : 0));
    else if constexpr (tiles == 8)
        asm volatile(
            "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
            "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
            "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
            "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
            "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
            "}, {%64,%65,%66,%67}, %68, 1, 1, 1, %69;"
            : "+f"(c[0][0][0]), "+f"(c[0][0][1]), "+f"(c[0][0][2]), "+f"(c[0][0][3]),
              "+f"(c[0][1][0]), "+f"(c[0][1][1]), "+f"(c[0][1][2]), "+f"(c[0][1][3]),
              "+f"(c[1][0][0]), "+f"(c[1][0][1]), "+f"(c[1][0][2]), "+f"(c[1][0][3]),
              "+f"(c[1][1][0]), "+f"(c[1][1][1]), "+f"(c[1][1][2]), "+f"(c[1][1][3]),
              "+f"(c[2][0][0]), "+f"(c[2][0][1]), "+f"(c[2][0][2]), "+f"(c[2][0][3]),
              "+f"(c[2][1][0]), "+f"(c[2][1][1]), "+f"(c[2][1][2]), "+f"(c[2][1][3]),
              "+f"(c[3][0][0]), "+f"(c[3][0][1]), "+f"(c[3][0][2]), "+f"(c[3][0][3]),
              "+f"(c[3][1][0]), "+f"(c[3][1][1]), "+f"(c[3][1][2]), "+f"(c[3][1][3]),
              "+f"(c[4][0][0]), "+f"(c[4][0][1]), "+f"(c[4][0][2]), "+f"(c[4][0][3]),
              "+f"(c[4][1][0]), "+f"(c[4][1][1]), "+f"(c[4][1][2]), "+f"(c[4][1][3]),
              "+f"(c[5][0][0]), "+f"(c[5][0][1]), "+f"(c[5][0][2]), "+f"(c[5][0][3]),
              "+f"(c[5][1][0]), "+f"(c[5][1][1]), "+f"(c[5][1][2]), "+f"(c[5][1][3]),
              "+f"(c[6][0][0]), "+f"(c[6][0][1]), "+f"(c[6][0][2]), "+f"(c[6][0][3]),
              "+f"(c[6][1][0]), "+f"(c[6][1][1]), "+f"(c[6][1][2]), "+f"(c[6][1][3]),
              "+f"(c[7][0][0]), "+f"(c[7][0][1]), "+f"(c[7][0][2]), "+f"(c[7][0][3]),
              "+f"(c[7][1][0]), "+f"(c[7][1][1]), "+f"(c[7][1][2]), "+f"(c[7][1][3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(turned ? 1 : 0));
}

/// sum += a b(k, n) = m(n, 16 step + k), m in blocks of C::rows.
template <class C, int tiles>
__device__ void multiply_rows(float (&sum)[tiles][2][4], const Fragment& a, const bf16* m, int step) {
    group_multiply<tiles, false>(sum, a, descriptor(m + step / 4 * C::rows * 64 + step % 4 * 16, 16));
}
/// sum += a b(k, n) = m(16 step + k, n), m in blocks of C::rows.
template <class C, int tiles>
__device__ void multiply_columns(float (&sum)[tiles][2][4], const Fragment& a, const bf16* m, int step) {
    group_multiply<tiles, true>(sum, a, descriptor(m + step * 1024, C::rows * 128));
}

#else

using Arrival = std::uint64_t;
__device__ inline void begin_arrivals(Arrival*) {}
__device__ inline void announce(Arrival*, int) {}
template <int threads>
__device__ void copy_whole(void* to, const void* from, int bytes, Arrival*) {
    for (int i = threadIdx.x * 16; i < bytes; i += 16 * threads)
        copy_16_bytes(static_cast<char*>(to) + i, static_cast<const char*>(from) + i);
}
__device__ inline void wait_for_arrival(Arrival*, int) {}

template <class C, int tiles>
__device__ void multiply_rows(float (&sum)[tiles][2][4], const Fragment& a, const bf16* m, int step) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int t = 0; t < tiles; ++t) {
        Fragment b;
        load_matrices(b, m + step / 4 * C::rows * 64 + swizzled(16 * t + lane % 8 + lane / 16 * 8,
                                                                16 * (step % 4) + lane / 8 % 2 * 8));
        multiply_tile(sum[t], a, b);
    }
}
template <class C, int tiles>
__device__ void multiply_columns(float (&sum)[tiles][2][4], const Fragment& a, const bf16* m, int step) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int t = 0; t < tiles; ++t) {
        Fragment b;
        load_matrices_transposed(b, m + t / 4 * C::rows * 64 + swizzled(16 * step + lane % 16,
                                                                        16 * (t % 4) + lane / 16 * 8));
        multiply_tile(sum[t], a, b);
    }
}

#endif

}  // namespace kimik3::gpu::kda
