#pragma once
// Plans of bf16 products with many rows: which of cuBLAS's kernels makes a product of a shape, looked up once. cuBLAS
// ranks tiles of 320 x 128 first; on the shapes of these models smaller ones are faster by a tenth to a third (H200),
// so of its proposals that do not split the sum the first with a tile of that size is taken, else cuBLAS's own first.
// The choice depends on the shape alone, so that runs repeat to the bit.

#include <cublasLt.h>

#include <array>
#include <cstdint>
#include <map>

#include "kimik3/core/base.hpp"

namespace kimik3::detail {

/// c [m, n] = op(a) b by columns, as cuBLAS says it: a [m, k] or turned [k, m], b [k, n], all of bf16.
struct ProductShape {
    Index turned, m, n, k, a_stride, b_stride, c_stride, alignment;

    auto operator<=>(const ProductShape&) const = default;
};

struct ProductPlan {
    cublasLtMatmulDescOpaque_t product;
    cublasLtMatrixLayoutOpaque_t a, b, c;
    cublasLtMatmulAlgo_t algorithm;
    bool exists = false;
};

inline bool takes_tile(const cublasLtMatmulHeuristicResult_t& proposal, cublasLtMatmulTile_t wanted) {
    std::uint32_t tile = 0;
    std::int32_t parts = 0;
    const bool known = cublasLtMatmulAlgoConfigGetAttribute(&proposal.algo, CUBLASLT_ALGO_CONFIG_TILE_ID, &tile,
                                                            sizeof tile, nullptr) == CUBLAS_STATUS_SUCCESS &&
                       cublasLtMatmulAlgoConfigGetAttribute(&proposal.algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &parts,
                                                            sizeof parts, nullptr) == CUBLAS_STATUS_SUCCESS;
    return known && parts <= 1 && tile == static_cast<std::uint32_t>(wanted);
}

/// Without a plan where cuBLAS proposes none.
inline ProductPlan plan_product(cublasHandle_t cublas, const ProductShape& s, std::size_t workspace_bytes) {
    ProductPlan plan{};
    const cublasOperation_t turned = s.turned != 0 ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasLtMatmulPreferenceOpaque_t wishes;
    const auto alignment = static_cast<std::uint32_t>(s.alignment);
    const auto size = [](Index count) { return static_cast<std::uint64_t>(count); };
    bool made =
        cublasLtMatmulDescInit(&plan.product, CUBLAS_COMPUTE_32F, CUDA_R_32F) == CUBLAS_STATUS_SUCCESS &&
        cublasLtMatmulDescSetAttribute(&plan.product, CUBLASLT_MATMUL_DESC_TRANSA, &turned, sizeof turned) ==
            CUBLAS_STATUS_SUCCESS &&
        cublasLtMatrixLayoutInit(&plan.a, CUDA_R_16BF, size(s.turned != 0 ? s.k : s.m),
                                 size(s.turned != 0 ? s.m : s.k), s.a_stride) == CUBLAS_STATUS_SUCCESS &&
        cublasLtMatrixLayoutInit(&plan.b, CUDA_R_16BF, size(s.k), size(s.n), s.b_stride) == CUBLAS_STATUS_SUCCESS &&
        cublasLtMatrixLayoutInit(&plan.c, CUDA_R_16BF, size(s.m), size(s.n), s.c_stride) == CUBLAS_STATUS_SUCCESS &&
        cublasLtMatmulPreferenceInit(&wishes) == CUBLAS_STATUS_SUCCESS &&
        cublasLtMatmulPreferenceSetAttribute(&wishes, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace_bytes,
                                             sizeof workspace_bytes) == CUBLAS_STATUS_SUCCESS;
    for (const auto which :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
        made = made && cublasLtMatmulPreferenceSetAttribute(&wishes, which, &alignment, sizeof alignment) ==
                           CUBLAS_STATUS_SUCCESS;
    constexpr int most = 8;
    cublasLtMatmulHeuristicResult_t proposals[most];
    int count = 0;
    if (!made || cublasLtMatmulAlgoGetHeuristic(reinterpret_cast<cublasLtHandle_t>(cublas), &plan.product, &plan.a,
                                                &plan.b, &plan.c, &plan.c, &wishes, most, proposals,
                                                &count) != CUBLAS_STATUS_SUCCESS ||
        count == 0)
        return plan;
    const cublasLtMatmulTile_t wanted = s.m > 4096 ? CUBLASLT_MATMUL_TILE_176x128 : CUBLASLT_MATMUL_TILE_128x160;
    const auto* chosen = proposals;
    for (const auto* p = proposals + count; p-- != proposals;)
        if (takes_tile(*p, wanted)) chosen = p;
    plan.algorithm = chosen->algo;
    plan.exists = true;
    return plan;
}

}  // namespace kimik3::detail
