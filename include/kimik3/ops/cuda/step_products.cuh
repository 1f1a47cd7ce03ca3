#pragma once
// A decoding step's products on the GPU: a block a tile of 16 rows of the weights, or several in turn. Up to eight
// tokens, every block mixes and norms the input for itself; more tokens are normed by a launch of their own and go
// through in groups of 32.

#include "kimik3/ops/cuda/situ.cuh"
#include "kimik3/ops/cuda/step_sources.cuh"

namespace kimik3 {
namespace gpu {

/// What a kernel makes of x: products whose tiles stand one after another.
template <class T>
struct StepWork {
    struct Product {
        const T *w, *up;
        const float* wide;
        MatrixView<T> y;
        MatrixView<float> scores;
        MatrixView<const T> residual;
        int rows, first_tile;

        __device__ int tile_rows() const { return up != nullptr ? 8 : 16; }
    };
    static constexpr int most = 8;
    Product product[most];
    int count, tiles, tokens;
    MatrixView<const T> second;  // with w2, of the first product
    const T* w2;
    MatrixView<T> kept;  // where block 0 leaves x, or no rows
    SituNumbers<float> form;
};

template <class T, class Source, int groups>
struct StepKernel {
    using Parts = float[groups][step_warps][16][8];
    const Source& source;
    const StepWork<T>& work;
    typename Source::Shared& shared;
    Parts& parts;
    TileLane lane{};

    /// A product's tile of 16 rows for 8 groups tokens.
    struct Tile {
        const typename StepWork<T>::Product* product;
        int index, first;
    };
    __device__ Tile tile_of(int item) const {
        int tile = item % work.tiles, p = 0;
#pragma unroll 1
        while (p + 1 < work.count && tile >= work.product[p + 1].first_tile) ++p;
        return {&work.product[p], tile - work.product[p].first_tile, item / work.tiles * 8 * groups};
    }
    __device__ int chunks() const { return ceil_div(source.width(), 32); }
    __device__ int second_width(const Tile& tile) const {
        return work.w2 != nullptr && tile.product == &work.product[0] ? static_cast<int>(work.second.cols) : 0;
    }

    /// Weights from chunk base on: those of x, then those of the second rows.
    template <class W>
    __device__ void load(Octet<W> (&w)[step_stage][2], const Tile& tile, const W* matrix, int base) const {
        const auto& p = *tile.product;
        const int inner = source.width();
        TileRows<W> rows = TileRows<W>::of(matrix, p.rows, inner, tile.index);
        if constexpr (std::is_same_v<W, T>)
            if (p.up != nullptr) rows = TileRows<T>::pair(matrix, p.up, p.rows, inner, tile.index);
#pragma unroll
        for (int i = 0; i < step_stage; ++i) {
            const int chunk = base + step_warps * i + lane.warp, k = 32 * chunk + 8 * lane.c;
            if constexpr (std::is_same_v<W, T>) {
                if (chunk >= chunks() && second_width(tile) > 0) {
                    TileRows<T>::of(work.w2, p.rows, static_cast<int>(work.second.cols), tile.index)
                        .template load<Source::wide>(w[i], lane, k - 32 * chunks(), static_cast<int>(work.second.cols));
                    continue;
                }
            }
            rows.template load<Source::wide>(w[i], lane, k, inner);
        }
    }

    /// Adds the products of a group of eight tokens.
    template <class W>
    __device__ void multiply(TileSums<W>& sums, const Octet<W> (&w)[step_stage][2], const Tile& tile, int base,
                             int group) const {
        const int second = second_width(tile), all = chunks() + ceil_div(second, 32),
                  token = tile.first + 8 * group + lane.r;
        Octet<T> x[step_stage];
#pragma unroll
        for (int i = 0; i < step_stage; ++i) {
            const int chunk = base + step_warps * i + lane.warp, k = 32 * chunk + 8 * lane.c;
            x[i] = Octet<T>{};
            if (chunk >= all) continue;
            if (chunk >= chunks()) x[i] = RowSource<T, Source::wide>{work.second}.octet(token, k - 32 * chunks());
            else if constexpr (Source::holds) x[i] = load_octet<true, T>(shared.x[lane.r], k, step_width);
            else x[i] = source.octet(token, k);
        }
#pragma unroll
        for (int i = 0; i < step_stage; ++i)
            if (base + step_warps * i + lane.warp < all)
                sums.add(w[i], x[i], lane, work.tokens - tile.first - 8 * group);
        __syncwarp();  // no loads of the next group before: they would take too many registers
    }

    /// The element of a tile that is the thread's in turn.
    __device__ bool element(const Tile& tile, int turn, int& row, int& t) const {
        const int i = static_cast<int>(threadIdx.x) + 32 * step_warps * turn, rows = tile.product->tile_rows();
        row = i % rows, t = i / rows;
        return t < 8 * groups && tile.first + t < work.tokens && rows * tile.index + row < tile.product->rows;
    }
    __device__ void finish(const Tile& tile, float residual) const {
        const auto& p = *tile.product;
#pragma unroll 1
        for (int turn = 0; turn < (groups + 1) / 2; ++turn) {
            int row, t;
            if (!element(tile, turn, row, t)) continue;
            const int token = tile.first + t, out = p.tile_rows() * tile.index + row;
            float value = over_warps<step_warps>(parts[t / 8], row, t % 8);
            if (p.wide != nullptr) {
                p.scores(token, out) = sigmoid(value);
                continue;
            }
            if (p.up != nullptr) value = work.form.value(value, over_warps<step_warps>(parts[t / 8], row + 8, t % 8));
            if (p.residual.rows > 0) value += turn == 0 ? residual : static_cast<float>(p.residual(token, out));
            p.y(token, out) = static_cast<T>(value);
        }
    }
    __device__ float residual_of(const Tile& tile) const {
        int row, t;
        const auto& p = *tile.product;
        if (p.residual.rows == 0 || !element(tile, 0, row, t)) return 0.0f;
        return p.residual(tile.first + t, p.tile_rows() * tile.index + row);
    }

    __device__ void begin() const {
        if constexpr (Source::holds) source.prepare(shared);
        await_predecessor();
    }
    __device__ void hold() const {
        if constexpr (Source::holds) {
            source.hold(0, work.tokens, shared);
            if (blockIdx.x != 0 || work.kept.rows == 0) return;
#pragma unroll 1
            for (int token = lane.warp; token < work.tokens; token += step_warps)
#pragma unroll 1
                for (int k = static_cast<int>(threadIdx.x) % 32; k < source.width(); k += 32)
                    work.kept(token, k) = shared.x[token][k];
        }
    }

    /// A tile of sigmoids; its weights, of float, would take too many registers while x is made.
    __device__ void run_wide(const Tile& tile) const {
        const int all = chunks(), stage = step_warps * step_stage;
#pragma unroll 1
        for (int k = 32 * static_cast<int>(threadIdx.x % 32); k < source.width(); k += 1024)
#pragma unroll 1
            for (int row = 16 * tile.index + lane.warp;
                 row < tile.product->rows && row < 16 * (tile.index + 1); row += 8)
                prefetch(tile.product->wide + Index{row} * source.width() + k);
        begin();
        hold();
#pragma unroll 1
        for (int g = 0; g < groups; ++g) {
            TileSums<float> sums;
#pragma unroll 1
            for (int base = 0; base < all; base += stage) {
                Octet<float> w[step_stage][2];
                load(w, tile, tile.product->wide, base);
                multiply(sums, w, tile, base, g);
            }
            sums.store(parts[g][lane.warp], lane, work.tokens - tile.first - 8 * g);
        }
        __syncthreads();
        finish(tile, 0.0f);
    }
    /// The block's tiles, one after another, the weights of the next under way while a tile is finished.
    __device__ void run() const {
        const int items = work.tiles * ceil_div(work.tokens, 8 * groups);
        int item = static_cast<int>(blockIdx.x);
        Tile tile = tile_of(item);
        if (tile.product->wide != nullptr) return run_wide(tile);
        Octet<T> w[step_stage][2];
        load(w, tile, tile.product->w, 0);
        begin();
        float residual = residual_of(tile);
        hold();
        const int all = chunks() + ceil_div(second_width(tile), 32);
#pragma unroll 1
        for (;;) {
            TileSums<T> sums[groups];
#pragma unroll
            for (int g = 0; g < groups; ++g) multiply(sums[g], w, tile, 0, g);
#pragma unroll 1
            for (int base = step_warps * step_stage; base < all; base += step_warps * step_stage) {
                load(w, tile, tile.product->w, base);
#pragma unroll
                for (int g = 0; g < groups; ++g) multiply(sums[g], w, tile, base, g);
            }
            const Tile now = tile;
            item += static_cast<int>(gridDim.x);
            if (item < items) tile = tile_of(item), load(w, tile, tile.product->w, 0);
#pragma unroll
            for (int g = 0; g < groups; ++g)
                sums[g].store(parts[g][lane.warp], lane, work.tokens - now.first - 8 * g);
            __syncthreads();
            finish(now, residual);
            if (item >= items) return;
            residual = residual_of(tile);
            __syncthreads();
        }
    }
};

template <class T, class Source, int groups>
__global__ void __launch_bounds__(32 * step_warps, 2)
    step_products_kernel(const __grid_constant__ Source source, const __grid_constant__ StepWork<T> work) {
    __shared__ __align__(16) float parts[groups][step_warps][16][8];
    __shared__ __align__(16) typename Source::Shared shared;
    let_next_begin();
    StepKernel<T, Source, groups>{source, work, shared, parts}.run();
}

/// Leaves x, two rows a block.
template <class T, class Source>
__global__ void __launch_bounds__(32 * step_warps)
    step_rows_kernel(const __grid_constant__ Source source, MatrixView<T> kept) {
    __shared__ __align__(16) typename Source::Shared shared;
    const int first = 2 * static_cast<int>(blockIdx.x), left = static_cast<int>(kept.rows) - first,
              tokens = left < 2 ? left : 2, width = source.width();
    let_next_begin();
    source.prepare(shared);
    await_predecessor();
    source.hold(first, tokens, shared);
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < tokens * width; i += 32 * step_warps)
        kept(first + i / width, i % width) = shared.x[i / width][i % width];
}

template <class T, class Source>
void launch_products(const Context<Cuda>& ctx, const Source& source, const StepWork<T>& work) {
    const auto blocks = [&](Index tokens) {
        const Index items = work.tiles * ceil_div(Index{work.tokens}, tokens);
        return work.count == 1 ? (std::min)(items, Index{264}) : items;  // two for each of 132 multiprocessors
    };
    if (work.tokens <= 8) {
        launch_early(ctx, blocks(8), 32 * step_warps, 0, step_products_kernel<T, Source, 1>, source, work);
    } else if constexpr (!Source::holds) {
        launch_early(ctx, blocks(32), 32 * step_warps, 0, step_products_kernel<T, Source, 4>, source, work);
    } else {
        launch_early(ctx, ceil_div(Index{work.tokens}, 2), 32 * step_warps, 0, step_rows_kernel<T, Source>, source,
                     work.kept);
        launch_products(ctx, RowSource<T, Source::wide>{work.kept}, work);
    }
}

}  // namespace gpu

template <class T>
void step_products(const Context<Cuda>& ctx, const StepInput<T>& in, std::initializer_list<StepProduct<T>> products,
                   SituBetas betas = SituBetas::swiglu()) {
    static_assert(std::is_same_v<accumulator_t<T>, float>, "kimik3: a step of few rows computes in float");
    const Index inner = in.rows.rows > 0    ? in.rows.cols
                        : in.parts.rows > 0 ? in.parts.cols
                                            : in.candidates.view[0].cols;
    gpu::StepWork<T> work{.form = gpu::SituNumbers<float>(betas)};
    bool wide = gpu::is_wide(in.rows) && gpu::is_wide(in.parts) && gpu::is_wide<T>(in.normed);
    for (Index j = 0; j < in.candidates.count; ++j) wide = wide && gpu::is_wide(in.candidates.view[j]);
    for (const StepProduct<T>& p : products) {
        const bool scores = p.wide.rows > 0;
        const Index rows = scores ? p.wide.rows : p.w.rows;
        if (rows == 0) continue;
        require(work.count < gpu::StepWork<T>::most, "step_products: at most {} products", gpu::StepWork<T>::most);
        require_shape("step_products: w", p.w, scores ? 0 : rows, scores ? 0 : inner);
        wide = wide && gpu::is_wide(p.wide) && gpu::is_wide(p.w) && gpu::is_wide(p.up) && gpu::is_wide(p.w2) &&
               gpu::is_wide(p.second);
        work.product[work.count++] = {p.w.data, p.up.data, p.wide.data,           p.y,
                                      p.scores, p.residual, static_cast<int>(rows), work.tiles};
        work.tiles += static_cast<int>(ceil_div(rows, p.up.rows > 0 ? 8 : 16));
        work.tokens = static_cast<int>(scores ? p.scores.rows : p.y.rows);
        if (p.w2.rows > 0) {
            require(work.count == 1, "step_products: only the first product has second rows");
            work.second = p.second, work.w2 = p.w2.data;
        }
    }
    if (work.count == 0 || work.tokens == 0) return;
    work.kept = in.normed;
    const auto launch = [&](auto is_wide) {
        if (in.rows.rows > 0) return gpu::launch_products(ctx, gpu::RowSource<T, is_wide>{in.rows}, work);
        const float eps = static_cast<float>(in.eps);
        if (in.parts.rows > 0) {
            return gpu::launch_products(ctx, gpu::SumSource<T, is_wide>{in.parts, in.weights, in.norm.data, eps}, work);
        }
        gpu::MixSource<T, is_wide> source{.count = static_cast<int>(in.candidates.count)};
        for (Index j = 0; j < in.candidates.count; ++j) source.candidate[j] = in.candidates.view[j];
        source.gamma = in.gamma.data, source.pi = in.pi.data, source.norm = in.norm.data;
        source.mix_eps = static_cast<float>(in.mix_eps), source.eps = eps;
        gpu::launch_products(ctx, source, work);
    };
    if (wide) launch(std::true_type{});
    else launch(std::false_type{});
}

}  // namespace kimik3
