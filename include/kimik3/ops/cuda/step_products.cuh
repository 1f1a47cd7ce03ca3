#pragma once
// A decoding step's products on the GPU: a block a tile of 16 rows of the weights, or several in turn. For one token or
// two, every block mixes and norms the input for itself; more tokens, and a head's input, are normed by a launch of
// their own. More than eight go through in groups of 32. A step waits for instructions as much as for memory, since a
// launch runs code that the nearest caches have lost: so all products of few tokens share one short kernel.

#include "kimik3/ops/cuda/situ.cuh"
#include "kimik3/ops/cuda/step_sources.cuh"

namespace kimik3 {
namespace gpu {

/// What a kernel makes of x: products whose tiles stand one after another.
template <class T>
struct StepWork {
    struct Product {
        const T *w, *up;
        const float* wide;  // in place of w where T is not float
        T* y;
        float* scores;      // in place of y
        const T* residual;
        Index stride, residual_stride;  // of y or scores
        int rows;
    };
    static constexpr int most = 8;
    int first_tile[most];  // INT_MAX past the last product
    int tiles, tokens;
    MatrixView<const T> second;  // with w2, of the first product
    const T* w2;
    MatrixView<T> kept;  // where block 0 leaves x, or no rows
    SituNumbers<T> form;
    Product product[most];
    int count;
};

template <class T, bool wide, int groups, bool holding>
struct StepKernel {
    using Parts = float[groups][step_warps][16][8];
    const StepSource<T, wide>& source;
    const StepWork<T>& work;
    StepRows<T>& shared;
    Parts& parts;
    TileLane lane{};

    /// A product's tile of 16 rows for 8 groups tokens, and the chunk of 32 columns that the warps begin with.
    struct Tile {
        int item, product, index, first, base;
    };
    __device__ Tile tile_of(int item) const {
        int tile = item, first = 0, p = 0;
#pragma unroll 1
        while (groups > 1 && tile >= work.tiles) tile -= work.tiles, first += 8 * groups;
#pragma unroll
        for (int j = 1; j < StepWork<T>::most; ++j) p += tile >= work.first_tile[j];
        return {item, p, tile - work.first_tile[p], first, 0};
    }
    __device__ int chunks() const { return ceil_div(source.width, 32); }
    __device__ int second_width(const Tile& tile) const {
        return work.w2 != nullptr && tile.product == 0 ? static_cast<int>(work.second.cols) : 0;
    }
    __device__ int all_chunks(const Tile& tile) const { return chunks() + ceil_div(second_width(tile), 32); }
    /// The lane's column of its chunk i.
    __device__ int column(const Tile& tile, int i) const {
        return 32 * (tile.base + step_warps * i + lane.warp) + 8 * lane.c;
    }

    /// Weights of float beside x in bf16, the router's: tiles of eight rows, in as many registers.
    __device__ bool is_wide(const Tile& tile) const {
        return !std::is_same_v<T, float> && work.product[tile.product].wide != nullptr;
    }
    __device__ int tile_rows(const Tile& tile) const {
        return work.product[tile.product].up != nullptr || is_wide(tile) ? 8 : 16;
    }

    /// The lane's numbers of the tile's weights: of x, then of the second rows. Rows past the end are those before it.
    __device__ void load(Octet<T> (&to)[step_stage][2], const Tile& tile) const {
        const auto& p = work.product[tile.product];
        const int last = p.rows - 1, row = tile_rows(tile) * tile.index + lane.r, low = row < last ? row : last,
                  high = row + 8 < last ? row + 8 : last, inner = source.width, second = second_width(tile),
                  from = 32 * chunks();
        if (is_wide(tile)) {
#pragma unroll
            for (int i = 0; i < step_stage; ++i) {
                const Octet<float> octet = load_octet<wide>(p.wide + Index{low} * inner, column(tile, i), inner);
                if constexpr (sizeof(T) == 2) __builtin_memcpy(to[i], &octet, sizeof octet);
            }
            return;
        }
        const T *first = p.w + Index{low} * inner,
                *other = p.up != nullptr ? p.up + Index{low} * inner : p.w + Index{high} * inner;
#pragma unroll
        for (int i = 0; i < step_stage; ++i) {
            const int k = column(tile, i);
            if (second > 0 && k >= from) {
                to[i][0] = load_octet<wide>(work.w2 + Index{low} * second, k - from, second);
                to[i][1] = load_octet<wide>(work.w2 + Index{high} * second, k - from, second);
            } else {
                to[i][0] = load_octet<wide>(first, k, inner);
                to[i][1] = load_octet<wide>(other, k, inner);
            }
        }
    }

    /// Adds the products of a group of eight tokens; tokens past the last are the last.
    __device__ void multiply(TileSums<T>& sums, const Octet<T> (&w)[step_stage][2], const Tile& tile,
                             int group) const {
        const bool held = holding && source.holds, in_float = is_wide(tile);
        const int last = work.tokens - 1, t = tile.first + 8 * group + lane.r, token = t < last ? t : last,
                  end = 32 * all_chunks(tile), from = 32 * chunks();
        const T *x = held ? shared.x[token] : source.from[0].data + token * source.from[0].stride,
                *x2 = work.second.data + token * work.second.stride;
        Octet<T> octet[step_stage];
#pragma unroll
        for (int i = 0; i < step_stage; ++i) {
            const int k = column(tile, i);
            octet[i] = k < from ? load_octet<wide>(x, k, held ? step_width : source.width)
                                : load_octet<wide>(k < end ? x2 : nullptr, k - from, second_width(tile));
        }
#pragma unroll
        for (int i = 0; i < step_stage; ++i) {
            if (column(tile, i) - 8 * lane.c >= end) continue;
            if (!in_float) {
                sums.add(w[i], octet[i], lane, work.tokens - tile.first - 8 * group);
            } else if constexpr (sizeof(T) == 2) {
                Octet<float> row;
                __builtin_memcpy(&row, w[i], sizeof row);
                sums.add_wide(row, octet[i]);
            }
        }
        __syncwarp();  // no loads of the next group before: they would take too many registers
    }

    /// The element of a tile that is the thread's in turn.
    struct Element {
        int row, t, token, out;
        bool exists;
    };
    __device__ Element element(const Tile& tile, int turn) const {
        const auto& p = work.product[tile.product];
        const int i = static_cast<int>(threadIdx.x) + step_threads * turn, rows = tile_rows(tile),
                  row = i % 16, t = i / 16, token = tile.first + t, out = rows * tile.index + row;
        return {row, t, token, out, row < rows && t < 8 * groups && token < work.tokens && out < p.rows};
    }
    __device__ float residual_of(const Tile& tile, int turn) const {
        const auto& p = work.product[tile.product];
        const Element e = element(tile, turn);
        return p.residual != nullptr && e.exists ? static_cast<float>(p.residual[e.token * p.residual_stride + e.out])
                                                 : 0.0f;
    }
    __device__ void finish(const Tile& tile, float residual) const {
        const auto& p = work.product[tile.product];
#pragma unroll 1
        for (int turn = 0; turn < (groups + 1) / 2; ++turn) {
            const Element e = element(tile, turn);
            if (turn > 0) residual = residual_of(tile, turn);
            if (!e.exists) continue;
            const auto sum = [&](int row) { return over_warps<step_warps>(parts[e.t / 8], row, e.t % 8); };
            const float value = p.up != nullptr ? work.form.value(sum(e.row), sum(e.row + 8)) : sum(e.row);
            if (p.scores != nullptr) p.scores[e.token * p.stride + e.out] = sigmoid(value);
            else p.y[e.token * p.stride + e.out] = static_cast<T>(value + residual);
        }
    }
    __device__ void keep() const {
        if (blockIdx.x != 0 || work.kept.rows == 0) return;
#pragma unroll 1
        for (int token = lane.warp; token < work.tokens; token += step_warps)
#pragma unroll 1
            for (int k = static_cast<int>(threadIdx.x) % 32; k < source.width; k += 32)
                work.kept(token, k) = shared.x[token][k];
    }

    /// The block's tiles, one after another, the weights that follow under way while those before are used.
    __device__ void run() const {
        const int items = work.tiles * ceil_div(work.tokens, 8 * groups);
        Tile now{}, next = tile_of(static_cast<int>(blockIdx.x));
        bool begun = false, more = true;
        float residual = 0;
        TileSums<T> sums[groups];
        Octet<T> w[step_stage][2];
#pragma unroll 1
        for (;;) {
            if (begun) {
#pragma unroll
                for (int g = 0; g < groups; ++g) multiply(sums[g], w, now, g);
            }
            const Tile done = now;
            const bool whole = begun && done.base + step_warps * step_stage >= all_chunks(done);
            if (more) {
                load(w, next);
                now = next;
                next.base += step_warps * step_stage;
                if (next.base >= all_chunks(next)) {
                    more = next.item + static_cast<int>(gridDim.x) < items;
                    if (more) next = tile_of(next.item + static_cast<int>(gridDim.x));
                }
            } else {
                now.product = -1;
            }
            if (!begun) {
                begun = true;
                const Quad<float> norm = holding && source.holds ? source.prepare(shared) : Quad<float>{};
                await_predecessor();
                residual = residual_of(now, 0);
                if (holding && source.holds) source.hold(0, work.tokens, norm, shared), keep();
            } else if (whole) {
#pragma unroll
                for (int g = 0; g < groups; ++g) {
                    sums[g].store(parts[g][lane.warp], lane, work.tokens - done.first - 8 * g);
                    sums[g] = TileSums<T>{};
                }
                __syncthreads();
                finish(done, residual);
                if (now.product < 0) return;
                residual = residual_of(now, 0);
                __syncthreads();
            }
        }
    }
};

/// holding: x may be made here; else it is there, and more blocks can be.
template <class T, bool wide, int groups, bool holding>
__global__ void __launch_bounds__(step_threads, groups == 1 && !holding ? 3 : 2)
    step_products_kernel(const __grid_constant__ StepSource<T, wide> source,
                         const __grid_constant__ StepWork<T> work) {
    __shared__ __align__(16) float parts[groups][step_warps][16][8];
    __shared__ __align__(16) unsigned char memory[holding ? sizeof(StepRows<T>) : 16];
    let_next_begin();
    StepKernel<T, wide, groups, holding>{source, work, *reinterpret_cast<StepRows<T>*>(memory), parts}.run();
}

/// Leaves x, a row a block.
template <class T, bool wide>
__global__ void __launch_bounds__(step_threads)
    step_rows_kernel(const __grid_constant__ StepSource<T, wide> source, MatrixView<T> kept) {
    __shared__ __align__(16) StepRows<T> shared;
    let_next_begin();
    const Quad<float> norm = source.prepare(shared);
    await_predecessor();
    source.hold(static_cast<int>(blockIdx.x), 1, norm, shared);
#pragma unroll 1
    for (int k = static_cast<int>(threadIdx.x); k < source.width; k += step_threads)
        kept(blockIdx.x, k) = shared.x[0][k];
}

template <class T, bool wide>
void launch_products(const Context<Cuda>& ctx, StepSource<T, wide> source, const StepWork<T>& work) {
    const Index few = 2 * multiprocessors(), many = 3 * multiprocessors();
    const bool head = work.count == 1 && work.tiles > 2 * many;  // where the weights are all that counts
    if (source.holds && (work.tokens > most_held_rows || (head && work.kept.rows > 0))) {
        launch_early(ctx, work.tokens, step_threads, 0, step_rows_kernel<T, wide>, source, work.kept);
        source.holds = false, source.from[0] = {work.kept.data, work.kept.stride};
    }
    const auto launch = [&](auto groups, auto holding, Index most) {
        const Index items = work.tiles * ceil_div(Index{work.tokens}, 8 * groups);
        launch_early(ctx, work.count == 1 ? (std::min)(items, most) : items, step_threads, 0,
                     step_products_kernel<T, wide, groups, holding>, source, work);
    };
    if (work.tokens > 8) launch(std::integral_constant<int, 4>{}, std::false_type{}, few);
    else if (head && !source.holds) launch(std::integral_constant<int, 1>{}, std::false_type{}, many);
    else launch(std::integral_constant<int, 1>{}, std::true_type{}, few);
}

}  // namespace gpu

template <class T>
void step_products(const Context<Cuda>& ctx, const StepInput<T>& in, std::initializer_list<StepProduct<T>> products,
                   SituBetas betas = SituBetas::swiglu()) {
    static_assert(std::is_same_v<accumulator_t<T>, float>, "kimik3: a step of few rows computes in float");
    using Work = gpu::StepWork<T>;
    const bool plain = in.rows.rows > 0, summed = !plain && in.parts.rows > 0;
    const Index sources = plain ? 1 : summed ? in.weights.cols : in.candidates.count;
    require(sources >= 1 && sources <= most_step_candidates,
            "step_products: the input is made of 1 to {} candidates or parts, got {}", most_step_candidates, sources);
    const MatrixView<const T> x = plain ? in.rows : summed ? in.parts : in.candidates.view[0];
    const Index tokens = summed ? in.weights.rows : x.rows, inner = x.cols;
    Work work{.tokens = static_cast<int>(tokens), .kept = in.normed, .form = gpu::SituNumbers<T>(betas)};
    std::ranges::fill(work.first_tile, INT_MAX);
    bool wide = gpu::is_wide(x) && gpu::is_wide<T>(in.normed);
    for (const StepProduct<T>& p : products) {
        const bool scores = p.wide.rows > 0;
        const Index rows = scores ? p.wide.rows : p.w.rows;
        if (rows == 0) continue;
        require(work.count < Work::most, "step_products: at most {} products", Work::most);
        typename Work::Product to{.rows = static_cast<int>(rows)};
        if (scores) {
            to.wide = gpu::dense("step_products: wide", p.wide, rows, inner);
            if constexpr (std::is_same_v<T, float>) to.w = to.wide;
            require_shape("step_products: scores", p.scores, tokens, rows);
            to.scores = p.scores.data, to.stride = p.scores.stride;
        } else {
            to.w = gpu::dense("step_products: w", p.w, rows, inner);
            require_shape("step_products: y", p.y, tokens, rows);
            to.y = p.y.data, to.stride = p.y.stride;
        }
        if (p.up.rows > 0) to.up = gpu::dense("step_products: up", p.up, rows, inner);
        if (p.residual.rows > 0) {
            require_shape("step_products: residual", p.residual, tokens, rows);
            to.residual = p.residual.data, to.residual_stride = p.residual.stride;
        }
        if (p.w2.rows > 0) {
            require(work.count == 0, "step_products: only the first product has second rows");
            require(p.up.rows == 0, "step_products: a product of SiTU has no second rows");
            require_shape("step_products: second", p.second, tokens, p.second.cols);
            work.second = p.second, work.w2 = gpu::dense("step_products: w2", p.w2, rows, p.second.cols);
        }
        wide = wide && gpu::is_wide(p.wide) && gpu::is_wide(p.w) && gpu::is_wide(p.up) && gpu::is_wide(p.w2) &&
               gpu::is_wide(p.second);
        work.first_tile[work.count] = work.tiles;
        work.tiles += static_cast<int>(ceil_div(rows, p.up.rows > 0 || (scores && !std::is_same_v<T, float>) ? 8 : 16));
        work.product[work.count++] = to;
    }
    if (work.count == 0 || tokens == 0) return;
    if (!plain) {
        require(StepInput<T>::fits(inner), "step_products: no step mixes or sums rows of {}", inner);
        if (summed) require_shape("step_products: parts", in.parts, tokens * sources, inner);
        for (Index j = 0; j < in.candidates.count && !summed; ++j) {
            require_shape("step_products: a candidate", in.candidates.view[j], tokens, inner);
            wide = wide && gpu::is_wide(in.candidates.view[j]);
        }
        if (!summed && sources > 1) {
            require_size("step_products: gamma", in.gamma, inner);
            require_size("step_products: pi", in.pi, inner);
        }
        if (in.norm.size > 0) require_size("step_products: norm", in.norm, inner);
        require(tokens <= most_held_rows || in.normed.rows > 0,
                "step_products: {} rows need normed, where more than {} are kept", tokens, most_held_rows);
        if (in.normed.rows > 0) require_shape("step_products: normed", in.normed, tokens, inner);
        wide = wide && gpu::is_wide(in.gamma.data, 8, in.gamma.size) && gpu::is_wide(in.pi.data, 8, in.pi.size) &&
               gpu::is_wide(in.norm.data, 8, in.norm.size);
    }
    const auto launch = [&](auto is_wide) {
        gpu::StepSource<T, is_wide> source{.count = static_cast<int>(sources),
                                           .width = static_cast<int>(inner),
                                           .holds = !plain,
                                           .gamma = in.gamma.data,
                                           .pi = in.pi.data,
                                           .norm = in.norm.size > 0 ? in.norm.data : nullptr,
                                           .mix_eps = static_cast<float>(in.mix_eps),
                                           .eps = static_cast<float>(in.eps)};
        if (summed) source.weights = in.weights.data, source.weights_stride = in.weights.stride;
        for (Index j = 0; j < sources; ++j)
            source.from[j] = plain    ? typename gpu::StepSource<T, is_wide>::Rows{x.data, x.stride}
                             : summed ? typename gpu::StepSource<T, is_wide>::Rows{x.row(j), sources * x.stride}
                                      : typename gpu::StepSource<T, is_wide>::Rows{in.candidates.view[j].data,
                                                                                   in.candidates.view[j].stride};
        gpu::launch_products(ctx, source, work);
    };
    if (wide) launch(std::true_type{});
    else launch(std::false_type{});
}

}  // namespace kimik3
