#pragma once
// The embedding on the GPU. ids are device memory and were checked on the host. Backward counts how often each id
// occurs and puts its tokens into a row of 32 places; a warp sorts them and adds up their rows. The tokens of an id
// with more are listed in their order by a block that looks through all ids, and added up in 64 groups by blocks that
// share out the columns. Which places tokens get depends on the order in which blocks run, what is added to what does
// not.

#include "kimik3/ops/cuda/vectors.cuh"
#include "kimik3/ops/embedding.hpp"

namespace kimik3 {
namespace gpu {

/// The tokens of every id, in scratch memory.
struct TokenLists {
    static constexpr int few = 32;  // tokens that have a place of their own
    int *taken, *count;             // [4] ids seen, ids with more, tokens of those, items of work; [vocab]; cleared
    int *place;                     // [vocab, few]
    int *seen, *listed;             // [N] each
    int *more, *begin;              // [N / few] each: an id, and where its tokens stand in listed
    Index tokens, vocab;

    static Index size(Index tokens, Index vocab) { return 4 + (1 + few) * vocab + 2 * tokens + 2 * (tokens / few); }
    TokenLists(int* memory, Index tokens, Index vocab)
        : taken(memory),
          count(taken + 4),
          place(count + vocab),
          seen(place + few * vocab),
          listed(seen + tokens),
          more(listed + tokens),
          begin(more + tokens / few),
          tokens(tokens),
          vocab(vocab) {}
};

template <class Lists>
__global__ void __launch_bounds__(block_threads) place_tokens_kernel(Lists lists, const std::int32_t* ids) {
    begin_in_turn();
    const Index n = Index{blockIdx.x} * block_threads + threadIdx.x;
    const unsigned lane = threadIdx.x % 32, below = (1u << lane) - 1;
    const int id = n < lists.tokens ? ids[n] : -1;
    const unsigned same = __match_any_sync(0xffffffffu, id);  // a warp's tokens of an id take their places together
    int place = 0, at = 0;
    if (id >= 0 && (same & below) == 0) place = atomicAdd(lists.count + id, __popc(same));
    place = __shfl_sync(0xffffffffu, place, __ffs(same) - 1) + __popc(same & below);
    if (id < 0) place = -1;
    const unsigned firsts = __ballot_sync(0xffffffffu, place == 0);
    if (lane == 0 && firsts != 0) at = atomicAdd(lists.taken, __popc(firsts));
    at = __shfl_sync(0xffffffffu, at, 0);
    if (place == 0) lists.seen[at + __popc(firsts & below)] = id;
    if (place == TokenLists::few) lists.more[atomicAdd(lists.taken + 1, 1)] = id;
    if (place >= 0 && place < TokenLists::few) lists.place[Index{id} * TokenLists::few + place] = static_cast<int>(n);
}

/// A block an id that has more tokens than places; each of its warps looks through a stretch of all ids, twice.
template <class Lists>
__global__ void __launch_bounds__(1024) list_tokens_kernel(Lists lists, const std::int32_t* ids) {
    constexpr int warps = 1024 / 32, wide = 16;
    begin_in_turn();
    __shared__ int found[warps], begin;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, larger = lists.taken[1];
    const Index stretch = (lists.tokens + warps - 1) / warps, first = warp * stretch,
                last = first + stretch < lists.tokens ? first + stretch : lists.tokens;
    for (int k = blockIdx.x; k < larger; k += gridDim.x) {
        const int id = lists.more[k];
        const auto each = [&](auto&& body) {  // body(n, whether lanes hold the id)
            for (Index n = first; n < last; n += 32 * wide) {
                int is[wide];
#pragma unroll
                for (int i = 0; i < wide; ++i) is[i] = n + 32 * i + lane < last ? ids[n + 32 * i + lane] : -1;
#pragma unroll
                for (int i = 0; i < wide; ++i) body(n + 32 * i + lane, __ballot_sync(0xffffffffu, is[i] == id));
            }
        };
        int count = 0;
        each([&](Index, unsigned all) { count += __popc(all); });
        if (lane == 0) found[warp] = count;
        __syncthreads();
        if (threadIdx.x == 0) lists.begin[k] = begin = atomicAdd(lists.taken + 2, lists.count[id]);
        __syncthreads();
        int at = begin;
        for (int w = 0; w < warp; ++w) at += found[w];
        each([&](Index n, unsigned all) {
            if (all >> lane & 1) lists.listed[at + __popc(all & ((1u << lane) - 1))] = static_cast<int>(n);
            at += __popc(all);
        });
        __syncthreads();
    }
}

/// The sum of the numbers c ... of row(k), k = first, first + step, ... below count.
template <int wide, class T, class Row>
__device__ void sum_rows(int first, int step, int count, Row row, Index c, accumulator_t<T> (&sum)[wide]) {
#pragma unroll 8
    for (int k = first; k < count; k += step) {
        const T* from = row(k) + c;
        if constexpr (wide == 8) {
            accumulator_t<T> value[8];
            load_eight(from, value);
#pragma unroll
            for (int i = 0; i < 8; ++i) sum[i] += value[i];
        } else {
            sum[0] += static_cast<accumulator_t<T>>(*from);
        }
    }
}
template <int wide, class A>
__device__ void load_numbers(const A* from, A (&to)[wide]) {
    if constexpr (wide == 8) load_eight(from, to);
    else to[0] = *from;
}
template <int wide, class A>
__device__ void store_sum(const A (&a)[wide], const A (&b)[wide], A* to) {
    A sum[wide];
#pragma unroll
    for (int i = 0; i < wide; ++i) sum[i] = a[i] + b[i];
    if constexpr (wide == 8) Eight<A>::of(sum).store(to);
    else *to = sum[0];
}

/// wide: numbers that a thread adds up side by side. Blocks take items of work as they come: first 4 wide columns of an
/// id with more tokens than places, then 32 wide columns of 8 others, a warp each.
template <int wide, class T>
__global__ void __launch_bounds__(block_threads, 5)
    add_token_rows_kernel(TokenLists lists, MatrixView<const T> dy, MatrixView<accumulator_t<T>> dtable) {
    using A = accumulator_t<T>;
    constexpr int few = TokenLists::few, warps = block_threads / 32, lanes = 4, groups = block_threads / lanes;
    begin_in_turn();
    __shared__ A sums[warps][lanes * wide];
    __shared__ int sorted[warps][few], next;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, seen = lists.taken[0];
    const Index width = dy.cols, slices = (width + lanes * wide - 1) / (lanes * wide),
                parts = (width + 32 * wide - 1) / (32 * wide), larger = lists.taken[1] * slices,
                items = larger + (seen + warps - 1) / warps * parts;
    const auto take = [&] {
        if (threadIdx.x == 0) next = atomicAdd(lists.taken + 3, 1);
    };
    const auto add_many = [&](Index item) {
        const Index k = item / slices, c = (item % slices * lanes + lane % lanes) * wide;
        const int id = lists.more[k];
        const int* tokens = lists.listed + lists.begin[k];
        A sum[wide] = {}, before[wide] = {};
        if (c < width && threadIdx.x < lanes) load_numbers(dtable.row(id) + c, before);
        if (c < width)
            sum_rows<wide, T>(threadIdx.x / lanes, groups, lists.count[id], [&](int i) { return dy.row(tokens[i]); },
                              c, sum);
#pragma unroll
        for (int i = 0; i < wide; ++i) {
            for (int apart = lanes; apart < 32; apart *= 2) sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], apart);
            if (lane < lanes) sums[warp][lane * wide + i] = sum[i];
        }
        __syncthreads();
        if (threadIdx.x >= lanes || c >= width) return;
#pragma unroll
        for (int i = 0; i < wide; ++i)
            for (int w = 1; w < warps; ++w) sum[i] += sums[w][lane * wide + i];
        store_sum(sum, before, dtable.row(id) + c);
    };
    const auto add_few = [&](Index item) {
        const Index place = item / parts * warps + warp, c = (item % parts * 32 + lane) * wide;
        if (place >= seen) return;
        const int id = lists.seen[place], count = lists.count[id];
        if (count > few) return;
        const int mine = lane < count ? lists.place[Index{id} * few + lane] : 0;
        A sum[wide] = {}, before[wide] = {};
        if (c < width) load_numbers(dtable.row(id) + c, before);
        int rank = 0;
        for (int k = 0; k < count; ++k) rank += __shfl_sync(0xffffffffu, mine, k) < mine;
        if (lane < count) sorted[warp][rank] = mine;
        __syncwarp();
        if (c >= width) return;
        sum_rows<wide, T>(0, 1, count, [&](int k) { return dy.row(sorted[warp][k]); }, c, sum);
        store_sum(sum, before, dtable.row(id) + c);
    };
    take();
    __syncthreads();
    for (Index item = next; item < items; item = next) {
        __syncthreads();
        take();
        if (item < larger) add_many(item);
        else add_few(item - larger);
        __syncthreads();
    }
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
    clear(ctx, VectorView<int>(lists.taken, 4 + vocab));
    gpu::launch_early(ctx, ceil_div(tokens, gpu::block_threads), gpu::block_threads, 0,
                      gpu::place_tokens_kernel<gpu::TokenLists>, lists, ids.data());
    gpu::launch_early(ctx, (std::min)(tokens / gpu::TokenLists::few, gpu::multiprocessors()), 1024, 0,
                      gpu::list_tokens_kernel<gpu::TokenLists>, lists, ids.data());
    const auto add = [&](auto kernel) {
        gpu::launch_early(ctx, gpu::resident_blocks(kernel, gpu::block_threads), gpu::block_threads, 0, kernel, lists,
                          MatrixView<const T>(dy), dtable);
    };
    if (gpu::in_eights<const T>({dy}) && gpu::in_eights<A>({dtable})) add(gpu::add_token_rows_kernel<8, T>);
    else add(gpu::add_token_rows_kernel<1, T>);
}

}  // namespace kimik3
