#pragma once
// The embedding on the GPU. ids are device memory and were checked on the host. Backward sorts the tokens by id: how
// often each occurs is counted, its tokens are listed and ranked, and a warp adds up every 32 of them in their order.
// An id with more tokens has its sums of 32 added up after that. Where the lists lie depends on the order in which
// blocks run, what is added to what does not.

#include "kimik3/ops/cuda/vectors.cuh"
#include "kimik3/ops/embedding.hpp"

namespace kimik3 {
namespace gpu {

/// The tokens of every id, in scratch memory.
struct TokenLists {
    static constexpr int piece = 32;  // tokens that a warp adds up
    int *taken, *count;                  // [2] places taken by lists and by pieces, then [vocab]
    int *begin, *first_piece;            // [vocab] each
    int *slot, *listed, *rank, *sorted;  // [N] each

    static Index size(Index tokens, Index vocab) { return 3 * vocab + 2 + 4 * tokens; }
    TokenLists(int* memory, Index tokens, Index vocab)
        : taken(memory),
          count(taken + 2),
          begin(count + vocab),
          first_piece(begin + vocab),
          slot(first_piece + vocab),
          listed(slot + tokens),
          rank(listed + tokens),
          sorted(rank + tokens) {}
};

inline void list_tokens(const Context<Cuda>& ctx, const TokenLists& lists, const std::int32_t* ids, Index tokens,
                        Index vocab) {
    clear(ctx, VectorView<int>(lists.taken, vocab + 2));
    for_each(ctx, tokens, [=] __device__(Index n) { lists.slot[n] = atomicAdd(lists.count + ids[n], 1); });
    for_each(ctx, vocab, [=] __device__(Index id) {
        const int count = lists.count[id], pieces = (count + TokenLists::piece - 1) / TokenLists::piece;
        if (count > 0) lists.begin[id] = atomicAdd(lists.taken, count);
        if (pieces > 1) lists.first_piece[id] = atomicAdd(lists.taken + 1, pieces);
    });
    for_each(ctx, tokens, [=] __device__(Index n) {
        lists.listed[lists.begin[ids[n]] + lists.slot[n]] = static_cast<int>(n);
    });
    for_rows(ctx, tokens, 32, [=] __device__(Index n, Team team) {
        const int count = lists.count[ids[n]], begin = lists.begin[ids[n]];
        int before = 0;
#pragma unroll 4
        for (int k = team.rank; k < count; k += 32) before += lists.listed[begin + k] < n;
        before = warp_sum(before);
        if (team.rank == 0) lists.rank[n] = before, lists.sorted[begin + before] = static_cast<int>(n);
    });
}

/// Columns of a row that a warp adds up at a time: an Eight or a number a lane.
template <bool eights>
inline constexpr Index columns_of_warp = eights ? 256 : 32;

/// Columns part columns_of_warp ... of to = or += the sum of count rows, row(k) in the order of k.
template <bool eights, class T, class Row>
__device__ void sum_rows(int count, Row row, Index part, Index width, bool added, accumulator_t<T>* to) {
    using A = accumulator_t<T>;
    constexpr int wide = eights ? 8 : 1;
    const Index c = part * columns_of_warp<eights> + wide * (threadIdx.x % 32);
    if (c >= width) return;
    A sum[wide] = {};
#pragma unroll 8
    for (int k = 0; k < count; ++k) {
        const T* from = row(k) + c;
        if constexpr (eights) {
            A value[8];
            load_eight(from, value);
#pragma unroll
            for (int i = 0; i < 8; ++i) sum[i] += value[i];
        } else {
            sum[0] += static_cast<A>(*from);
        }
    }
    if constexpr (eights) {
        if (added) {
            A value[8];
            load_eight(to + c, value);
#pragma unroll
            for (int i = 0; i < 8; ++i) sum[i] += value[i];
        }
        Eight<A>::of(sum).store(to + c);
    } else {
        to[c] = added ? to[c] + sum[0] : sum[0];
    }
}

template <bool eights, class T>
void add_token_rows(const Context<Cuda>& ctx, const TokenLists& lists, const std::int32_t* ids, MatrixView<const T> dy,
                    MatrixView<accumulator_t<T>> dtable, accumulator_t<T>* pieces) {
    using A = accumulator_t<T>;
    constexpr int piece = TokenLists::piece;
    const Index width = dy.cols, parts = ceil_div(width, columns_of_warp<eights>);
    for_rows(ctx, dy.rows * parts, 32, [=] __device__(Index row, Team) {
        const Index n = row / parts, part = row % parts;
        const int rank = lists.rank[n], id = ids[n];
        if (rank % piece != 0) return;
        const int count = lists.count[id], left = count - rank, mine = left < piece ? left : piece;
        const int* tokens = lists.sorted + lists.begin[id] + rank;
        const bool alone = count <= piece;
        A* to = alone ? dtable.row(id) : pieces + (lists.first_piece[id] + rank / piece) * width;
        sum_rows<eights, T>(mine, [&](int k) { return dy.row(tokens[k]); }, part, width, alone, to);
    });
    for_rows(ctx, dy.rows * parts, 32, [=] __device__(Index row, Team) {
        const Index n = row / parts, part = row % parts;
        const int id = ids[n], count = lists.count[id];
        if (lists.rank[n] != 0 || count <= piece) return;
        const A* first = pieces + lists.first_piece[id] * width;
        sum_rows<eights, A>((count + piece - 1) / piece, [&](int k) { return first + k * width; }, part, width, true,
                            dtable.row(id));
    });
}

}  // namespace gpu

template <class T>
void embedding_forward(const Context<Cuda>& ctx, std::span<const std::int32_t> ids, In<T> table, Out<T> y) {
    require_shape("embedding: y", y, static_cast<Index>(ids.size()), table.cols);
    const std::int32_t* id = ids.data();
    if (gpu::in_eights<const T>({table, y})) {
        return gpu::for_eights(ctx, y.rows, y.cols, [=] __device__(Index n, Index c) {
            gpu::Eight<T>::load(table.row(id[n]) + c).store(y.row(n) + c);
        });
    }
    gpu::for_rows(ctx, y.rows, y.cols, [=] __device__(Index n, gpu::Team team) {
        for (Index c = team.rank; c < y.cols; c += team.size) y(n, c) = table(id[n], c);
    });
}

template <class D, class A>
    requires std::is_same_v<accumulator_t<std::remove_const_t<D>>, A>
void embedding_backward(const Context<Cuda>& ctx, std::span<const std::int32_t> ids, MatrixView<D> dy, Out<A> dtable) {
    using T = std::remove_const_t<D>;
    const Index tokens = static_cast<Index>(ids.size()), vocab = dtable.rows, width = dtable.cols;
    require_shape("embedding: dy", dy, tokens, width);
    require(tokens < (Index{1} << 31), "embedding: fewer than 2^31 tokens at a time, got {}", tokens);
    if (tokens == 0) return;
    const gpu::TokenLists lists(ctx.workspace<int>(Scratch::operation, gpu::TokenLists::size(tokens, vocab)), tokens,
                                vocab);
    A* pieces = ctx.workspace<A>(Scratch::sums, 2 * ceil_div(tokens, gpu::TokenLists::piece) * width);
    gpu::list_tokens(ctx, lists, ids.data(), tokens, vocab);
    if (gpu::in_eights<const T>({dy}) && gpu::in_eights<A>({dtable}))
        gpu::add_token_rows<true, T>(ctx, lists, ids.data(), dy, dtable, pieces);
    else
        gpu::add_token_rows<false, T>(ctx, lists, ids.data(), dy, dtable, pieces);
}

}  // namespace kimik3
