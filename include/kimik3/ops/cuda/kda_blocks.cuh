#pragma once
// Products of KDA's states with the operands of a chunk. Operands lie in shared memory as blocks of 64 columns: rows of
// 128 bytes, of which row r has its 16-byte piece p in place p ^ (r % 8), as the warpgroup product of compute
// capability 9.0 reads them in either direction; a block begins at a multiple of 1024 bytes. Other GPUs take the same
// blocks through ldmatrix, warp by warp. Left operands and sums are in registers, 16 rows a warp.

#include "kimik3/ops/cuda/kda_tiles.cuh"
#include "kimik3/ops/cuda/warpgroup.cuh"

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
    multiply_add<turned>(reinterpret_cast<float (&)[8 * tiles]>(c), a, b);
}

/// sum += a b(k, n) = m(n, 16 step + k), m in blocks of C::rows.
template <class C, int tiles>
__device__ void multiply_rows(float (&sum)[tiles][2][4], const Fragment& a, const bf16* m, int step) {
    group_multiply<tiles, false>(sum, a, operand(shared_address(m + step / 4 * C::rows * 64 + step % 4 * 16)));
}
/// sum += a b(k, n) = m(16 step + k, n), m in blocks of C::rows.
template <class C, int tiles>
__device__ void multiply_columns(float (&sum)[tiles][2][4], const Fragment& a, const bf16* m, int step) {
    group_multiply<tiles, true>(sum, a, operand(shared_address(m + step * 1024), C::rows * 128));
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
