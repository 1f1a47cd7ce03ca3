#pragma once
// The embedding on the GPU. ids are device memory and were checked on the host. Backward counts how often each id
// occurs and puts its tokens into a row of 32 places; a warp sorts them and adds up their rows. Meanwhile the tokens of
// an id with more are listed in their order by a block that looks through all ids; they are added up in 64 groups by
// blocks that share out the columns. Which places tokens get depends on the order in which blocks run, what is added to
// what does not.

#include "kimik3/ops/cuda/vectors.cuh"
#include "kimik3/ops/embedding.hpp"

namespace kimik3 {
namespace gpu {

/// The tokens of every id, in scratch memory.
struct TokenLists {
    static constexpr int few = 32;  // tokens that have a place of their own
    int *taken, *count, *begin;     // [3] ids seen, ids with more, tokens of those; [vocab]; [N / few]; all cleared
    int *more;                      // [N / few]: the ids with more; what begin says follows at list
    int *place, *seen, *listed;     // [vocab, few]; [N] each
    Index tokens, vocab;

    /// Numbers that are to be cleared, and all.
    static Index cleared(Index tokens, Index vocab) { return 3 + vocab + tokens / few; }
    static Index size(Index tokens, Index vocab) {
        return cleared(tokens, vocab) + tokens / few + few * vocab + 2 * tokens;
    }
    TokenLists(int* memory, Index tokens, Index vocab)
        : taken(memory),
          count(taken + 3),
          begin(count + vocab),
          more(begin + tokens / few),
          place(more + tokens / few),
          seen(place + few * vocab),
          listed(seen + tokens),
          tokens(tokens),
          vocab(vocab) {}

    /// Where the tokens of more[k] begin in listed: list says it to all blocks, at waits for that.
    __device__ void list(int k, int first) const {
        __threadfence();
        *static_cast<volatile int*>(begin + k) = first + 1;
    }
    __device__ int at(int k) const {
        int first = 0;
        while (first == 0) first = *static_cast<volatile int*>(begin + k);
        __threadfence();
        return first - 1;
    }
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

/// Lists the tokens of an id that has more than places: each warp looks through a stretch of all ids, twice.
__device__ inline void list_tokens(const TokenLists& lists, const std::int32_t* ids, int k) {
    constexpr int warps = block_threads / 32, wide = 16;
    __shared__ int found[warps], begin;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, id = lists.more[k];
    const Index stretch = (lists.tokens + warps - 1) / warps, first = warp * stretch,
                last = first + stretch < lists.tokens ? first + stretch : lists.tokens;
    const auto each = [&](auto&& body) {  // body(n, which lanes hold the id)
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
    if (threadIdx.x == 0) begin = atomicAdd(lists.taken + 2, lists.count[id]);
    __syncthreads();
    int at = begin;
    for (int w = 0; w < warp; ++w) at += found[w];
    each([&](Index n, unsigned all) {
        if (all >> lane & 1) lists.listed[at + __popc(all & ((1u << lane) - 1))] = static_cast<int>(n);
        at += __popc(all);
    });
    __syncthreads();
    if (threadIdx.x == 0) lists.list(k, begin);
}

/// wide numbers side by side, as they are stored.
template <int wide, class T>
using Numbers = std::conditional_t<wide == 8, Eight<T>, T>;
template <int wide, class T>
__device__ Numbers<wide, T> load_numbers(const T* from) {
    if constexpr (wide == 8) return Eight<T>::load(from);
    else return *from;
}
template <int wide, class T>
__device__ void add_numbers(const Numbers<wide, T>& of, accumulator_t<T> (&to)[wide]) {
    if constexpr (wide == 8) {
        accumulator_t<T> value[8];
        of.get(value);
#pragma unroll
        for (int i = 0; i < 8; ++i) to[i] += value[i];
    } else {
        to[0] += static_cast<accumulator_t<T>>(of);
    }
}
/// Adds the numbers at row(k), k = first, first + step, ... below count, so many at a time on their way together.
template <int wide, int ahead, class T, class Row>
__device__ void add_rows(int first, int step, int count, Row row, accumulator_t<T> (&sum)[wide]) {
    for (int k = first; k < count; k += ahead * step) {
        Numbers<wide, T> loaded[ahead];
#pragma unroll
        for (int i = 0; i < ahead; ++i)
            if (k + i * step < count) loaded[i] = load_numbers<wide>(row(k + i * step));
#pragma unroll
        for (int i = 0; i < ahead; ++i)
            if (k + i * step < count) add_numbers<wide, T>(loaded[i], sum);
    }
}
template <int wide, class A>
__device__ void store_numbers(const A (&from)[wide], A* to) {
    if constexpr (wide == 8) Eight<A>::of(from).store(to);
    else *to = from[0];
}

/// wide: numbers that a thread adds up side by side. The first blocks list the tokens of ids that have more than places,
/// while the warps of the others add up those of the rest; then all blocks share out the listed ones, 4 wide columns of
/// an id at a time. All blocks are there together, so that one can wait for another's list.
template <int wide, class T>
#ifndef EMB
#define EMB 4
#endif
__global__ void __launch_bounds__(block_threads, EMB)
    add_token_rows_kernel(TokenLists lists, const std::int32_t* ids, MatrixView<const T> dy,
                          MatrixView<accumulator_t<T>> dtable) {
    using A = accumulator_t<T>;
    constexpr int few = TokenLists::few, warps = block_threads / 32, lanes = 4, groups = block_threads / lanes;
    begin_in_turn();
    __shared__ A sums[warps][lanes * wide];
    __shared__ int sorted[warps][few], begin;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, block = static_cast<int>(blockIdx.x),
              blocks = static_cast<int>(gridDim.x), seen = lists.taken[0], larger = lists.taken[1],
              listing = larger < blocks / 2 ? larger : blocks / 2, width = static_cast<int>(dy.cols);
    const auto add_few = [&](int id, int count) {
        if (count > few) return;
        const int mine = lane < count ? lists.place[Index{id} * few + lane] : 0;
        int rank = 0;
        for (int k = 0; k < count; ++k) rank += __shfl_sync(0xffffffffu, mine, k) < mine;
        __syncwarp();
        if (lane < count) sorted[warp][rank] = mine;
        __syncwarp();
        for (int c = lane * wide; c < width; c += 32 * wide) {
            A* to = dtable.row(id) + c;
            A sum[wide] = {};
            add_numbers<wide, A>(load_numbers<wide>(to), sum);
            add_rows<wide, 8 / sizeof(T), T>(0, 1, count, [&](int k) { return dy.row(sorted[warp][k]) + c; }, sum);
            store_numbers<wide>(sum, to);
        }
    };
    const auto add_many = [&](int k, int slice) {
        const int id = lists.more[k], c = (slice * lanes + lane % lanes) * wide;
        __syncthreads();
        if (threadIdx.x == 0) begin = lists.at(k);
        __syncthreads();
        const int* tokens = lists.listed + begin;
        A sum[wide] = {};
        if (c < width)
            add_rows<wide, 16 / sizeof(T), T>(threadIdx.x / lanes, groups, lists.count[id],
                                              [&](int i) { return dy.row(tokens[i]) + c; }, sum);
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
        add_numbers<wide, A>(load_numbers<wide>(dtable.row(id) + c), sum);
        store_numbers<wide>(sum, dtable.row(id) + c);
    };

    if (block < listing) {
        for (int k = block; k < larger; k += listing) list_tokens(lists, ids, k);
    } else {
        const int step = (blocks - listing) * warps, first = (block - listing) * warps + warp;
        const auto id_at = [&](int place) { return place < seen ? lists.seen[place] : -1; };
        const auto count_of = [&](int id) { return id < 0 ? 0 : lists.count[id]; };
        int id = id_at(first), next = id_at(first + step), count = count_of(id);
        for (int place = first; place < seen; place += step) {  // what comes next is on its way
            const int next_count = count_of(next), later = id_at(place + 2 * step);
            add_few(id, count);
            id = next, next = later, count = next_count;
        }
    }
    const int slices = (width + lanes * wide - 1) / (lanes * wide);
    for (Index item = block; item < Index{larger} * slices; item += blocks)
        add_many(static_cast<int>(item / slices), static_cast<int>(item % slices));
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
    clear(ctx, VectorView<int>(lists.taken, gpu::TokenLists::cleared(tokens, vocab)));
    gpu::launch_early(ctx, ceil_div(tokens, gpu::block_threads), gpu::block_threads, 0,
                      gpu::place_tokens_kernel<gpu::TokenLists>, lists, ids.data());
    const auto add = [&](auto kernel) {
        gpu::launch_early(ctx, (std::max)(Index{2}, gpu::resident_blocks(kernel, gpu::block_threads)),
                          gpu::block_threads, 0, kernel, lists, ids.data(), MatrixView<const T>(dy), dtable);
    };
    if (gpu::in_eights<const T>({dy}) && gpu::in_eights<A>({dtable})) add(gpu::add_token_rows_kernel<8, T>);
    else add(gpu::add_token_rows_kernel<1, T>);
}

}  // namespace kimik3
