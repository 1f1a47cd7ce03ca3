#pragma once
// A decoding step's products on the GPU: a block a tile of 16 rows of the weights. Up to eight tokens, every block mixes
// and norms the input for itself; more tokens are normed by a launch of their own and go through in groups of 32.

#include "kimik3/ops/cuda/few_rows.cuh"
#include "kimik3/ops/cuda/situ.cuh"
#include "kimik3/ops/step_products.hpp"

namespace kimik3 {
namespace gpu {

/// Eight warps, each with up to four times 32 columns at a time.
inline constexpr int step_warps = 8, step_stage = 4;

__device__ inline int step_column(const TileLane& lane, int i) {
    return 32 * (step_warps * i + lane.warp) + 8 * lane.c;
}

/// Divides rows that the block holds by their root mean square and multiplies by w.
template <class T>
__device__ void norm_held(Octet<T> (&x)[step_stage], TileLane lane, const float* w, bool wide, float eps, int width,
                          float (*squares)[8]) {
    Octet<float> scale[step_stage];
    float sum = 0;
#pragma unroll
    for (int i = 0; i < step_stage; ++i) {
        scale[i] = load_octet(w, step_column(lane, i), width, wide);
        for (int e = 0; e < 8; ++e) sum += x[i][e] * x[i][e];
    }
    sum = lane.quad_sum(sum);
    if (lane.c == 0) squares[lane.warp][lane.r] = sum;
    __syncthreads();
    float total = 0;
    for (int warp = 0; warp < step_warps; ++warp) total += squares[warp][lane.r];
    const float r = 1.0f / sqrtf(total / static_cast<float>(width) + eps);
#pragma unroll
    for (int i = 0; i < step_stage; ++i) {
        float value[8];
        for (int e = 0; e < 8; ++e) value[e] = x[i][e] * r * scale[i][e];
        x[i] = Octet<T>::of(value);
    }
}

/// Sources of x. Those that hold make eight rows in registers, step_column(lane, i) on of row first + lane.r.
template <class T>
struct RowSource {
    static constexpr bool holds = false;
    struct Shared {};
    MatrixView<const T> x;
    bool wide;

    __device__ int width() const { return static_cast<int>(x.cols); }
    __device__ Octet<T> octet(int token, int k) const {
        return load_octet(token < x.rows ? x.row(token) : nullptr, k, width(), wide);
    }
};

template <class T>
struct MixSource {
    static constexpr bool holds = true;
    static constexpr int most = most_step_candidates;
    struct Shared {
        float2 scores[step_warps][8][most];
        float share[8][most], squares[step_warps][8];
    };
    MatrixView<const T> candidate[most];
    int count;
    const float *gamma, *pi, *norm;
    float mix_eps, eps;
    bool wide, wide_norm, wide_mix;

    __device__ int width() const { return static_cast<int>(candidate[0].cols); }
    __device__ const T* row(int j, int token) const {
        return token < candidate[0].rows ? candidate[j].row(token) : nullptr;
    }
    __device__ void hold(Octet<T> (&x)[step_stage], TileLane lane, int first, Shared& shared) const {
        const int token = first + lane.r;
        if (count == 1) {
#pragma unroll
            for (int i = 0; i < step_stage; ++i) x[i] = load_octet(row(0, token), step_column(lane, i), width(), wide);
        } else {
            mix(x, lane, token, shared);
        }
        if (norm != nullptr) norm_held(x, lane, norm, wide_norm, eps, width(), shared.squares);
    }

private:
    __device__ void mix(Octet<T> (&x)[step_stage], TileLane lane, int token, Shared& shared) const {
        {
            Octet<float> slope[step_stage];
#pragma unroll
            for (int i = 0; i < step_stage; ++i) {
                const Octet<float> a = load_octet(gamma, step_column(lane, i), width(), wide_mix),
                                   b = load_octet(pi, step_column(lane, i), width(), wide_mix);
                for (int e = 0; e < 8; ++e) slope[i].value[e] = a[e] * b[e];
            }
            for (int j = 0; j < count; ++j) {
                float squares = 0, score = 0;
#pragma unroll
                for (int i = 0; i < step_stage; ++i) {
                    const Octet<T> v = load_octet(row(j, token), step_column(lane, i), width(), wide);
                    for (int e = 0; e < 8; ++e) squares += v[e] * v[e], score += v[e] * slope[i][e];
                }
                squares = lane.quad_sum(squares), score = lane.quad_sum(score);
                if (lane.c == 0) shared.scores[lane.warp][lane.r][j] = {squares, score};
            }
        }
        __syncthreads();
        const int mine = static_cast<int>(threadIdx.x) % 32;  // warp t: the softmax of token t
        float squares = 0, score = -INFINITY;
        if (mine < count) {
            score = 0;
            for (int warp = 0; warp < step_warps; ++warp) {
                const float2 part = shared.scores[warp][lane.warp][mine];
                squares += part.x, score += part.y;
            }
            score *= 1.0f / sqrtf(squares / static_cast<float>(width()) + mix_eps);
        }
        const float weight = expf(score - warp_max(score));
        shared.share[lane.warp][mine] = weight / warp_sum(weight);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < step_stage; ++i) {
            float sum[8] = {};
            for (int j = 0; j < count; ++j) {
                const float share = shared.share[lane.r][j];
                const Octet<T> v = load_octet(row(j, token), step_column(lane, i), width(), wide);
                for (int e = 0; e < 8; ++e) sum[e] += share * v[e];
            }
            x[i] = Octet<T>::of(sum);
        }
    }
};

template <class T>
struct SumSource {
    static constexpr bool holds = true;
    struct Shared {
        float squares[step_warps][8];
    };
    MatrixView<const T> parts;
    MatrixView<const float> weights;
    const float* norm;
    float eps;
    bool wide, wide_norm;

    __device__ int width() const { return static_cast<int>(parts.cols); }
    __device__ void hold(Octet<T> (&x)[step_stage], TileLane lane, int first, Shared& shared) const {
        const int token = first + lane.r, count = static_cast<int>(weights.cols);
        const bool exists = token < weights.rows;
#pragma unroll
        for (int i = 0; i < step_stage; ++i) {
            float sum[8] = {};
            for (int j = 0; exists && j < count; ++j) {
                const Octet<T> v =
                    load_octet(parts.row(Index{token} * count + j), step_column(lane, i), width(), wide);
                for (int e = 0; e < 8; ++e) sum[e] += weights(token, j) * v[e];
            }
            x[i] = Octet<T>::of(sum);
        }
        if (norm != nullptr) norm_held(x, lane, norm, wide_norm, eps, width(), shared.squares);
    }
};

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
        bool wide_rows;
    };
    static constexpr int most = 8;
    Product product[most];
    int count, tiles, tokens;
    RowSource<T> second;  // with w2, of the first product
    const T* w2;
    bool wide_w2;
    MatrixView<T> kept;  // where block 0 leaves x, or no rows
    SituNumbers<float> form;
};

/// The sums of a tile: w of x, and of the second rows where the product has any.
template <class W, class T, class Source, int groups>
__device__ void step_tile(const Source& source, const StepWork<T>& work, const TileRows<W>& rows,
                          const TileRows<T>& second_rows, bool wide, int first, float (&parts)[groups][step_warps][16][8],
                          typename Source::Shared& shared) {
    const TileLane lane;
    const int inner = source.width(), chunks = ceil_div(inner, 32),
              second = second_rows.first == nullptr ? 0 : work.second.width(), all = chunks + ceil_div(second, 32);
    Octet<W> w[step_stage][2];
    Octet<T> x[step_stage];
    TileSums<W> sums[groups];
    for (int base = 0; base < all; base += step_warps * step_stage) {
#pragma unroll
        for (int i = 0; i < step_stage; ++i) {
            const int chunk = base + step_warps * i + lane.warp, k = 32 * chunk + 8 * lane.c;
            if constexpr (std::is_same_v<W, T>) {
                if (chunk >= chunks) {
                    second_rows.load(w[i], lane, k - 32 * chunks, second, work.wide_w2);
                    continue;
                }
            }
            rows.load(w[i], lane, k, inner, wide);
        }
        if (base == 0) {
            await_predecessor();
            if constexpr (Source::holds) {
                source.hold(x, lane, first, shared);
                if (blockIdx.x == 0 && work.kept.rows > 0 && first + lane.r < work.tokens) {
                    for (int i = 0; i < step_stage; ++i)
                        for (int e = 0; e < 8; ++e)
                            if (step_column(lane, i) + e < inner)
                                work.kept(first + lane.r, step_column(lane, i) + e) = static_cast<T>(x[i][e]);
                }
            }
        }
#pragma unroll
        for (int g = 0; g < groups; ++g) {
#pragma unroll
            for (int i = 0; i < step_stage; ++i) {
                const int chunk = base + step_warps * i + lane.warp, k = 32 * chunk + 8 * lane.c,
                          token = first + 8 * g + lane.r;
                Octet<T> value = x[i];
                if (chunk >= chunks) value = work.second.octet(token, second == 0 ? 0 : k - 32 * chunks);
                else if constexpr (!Source::holds) value = source.octet(token, k);
                if (chunk < all) sums[g].add(w[i], value, lane, work.tokens - first - 8 * g);
            }
        }
    }
#pragma unroll
    for (int g = 0; g < groups; ++g) sums[g].store(parts[g][lane.warp], lane, work.tokens - first - 8 * g);
    __syncthreads();
}

template <class T, class Source, int groups>
__global__ void __launch_bounds__(32 * step_warps, groups == 1 ? 2 : 1)
    step_products_kernel(const __grid_constant__ Source source, const __grid_constant__ StepWork<T> work) {
    __shared__ __align__(16) float parts[groups][step_warps][16][8];
    __shared__ typename Source::Shared shared;
    int tile = static_cast<int>(blockIdx.x) % work.tiles, p = 0;
    const int first = static_cast<int>(blockIdx.x) / work.tiles * 8 * groups;
    while (p + 1 < work.count && tile >= work.product[p + 1].first_tile) ++p;
    const auto& product = work.product[p];
    tile -= product.first_tile;
    const int inner = source.width(), rows = product.rows, per_tile = product.up != nullptr ? 8 : 16;
    if (product.wide != nullptr) {
        step_tile<float, T>(source, work, TileRows<float>::of(product.wide, rows, inner, tile), {}, product.wide_rows,
                            first, parts, shared);
    } else {
        const bool two = p == 0 && work.w2 != nullptr;
        step_tile<T, T>(source, work,
                        product.up != nullptr ? TileRows<T>::pair(product.w, product.up, rows, inner, tile)
                                              : TileRows<T>::of(product.w, rows, inner, tile),
                        two ? TileRows<T>::of(work.w2, rows, work.second.width(), tile) : TileRows<T>{},
                        product.wide_rows, first, parts, shared);
    }
    for (int i = static_cast<int>(threadIdx.x); i < per_tile * 8 * groups; i += 32 * step_warps) {
        const int row = i % per_tile, t = i / per_tile, token = first + t, out = per_tile * tile + row;
        if (token >= work.tokens || out >= rows) continue;
        float value = over_warps<step_warps>(parts[t / 8], row, t % 8);
        if (product.wide != nullptr) {
            product.scores(token, out) = sigmoid(value);
            continue;
        }
        if (product.up != nullptr) value = work.form.value(value, over_warps<step_warps>(parts[t / 8], row + 8, t % 8));
        if (product.residual.rows > 0) value += product.residual(token, out);
        product.y(token, out) = static_cast<T>(value);
    }
}

/// Leaves x of eight rows a block.
template <class T, class Source>
__global__ void __launch_bounds__(32 * step_warps)
    step_rows_kernel(const __grid_constant__ Source source, MatrixView<T> kept) {
    __shared__ typename Source::Shared shared;
    const TileLane lane;
    Octet<T> x[step_stage];
    const int first = 8 * static_cast<int>(blockIdx.x), token = first + lane.r;
    await_predecessor();
    source.hold(x, lane, first, shared);
    if (token >= kept.rows) return;
#pragma unroll
    for (int i = 0; i < step_stage; ++i)
        for (int e = 0; e < 8; ++e)
            if (const int k = step_column(lane, i) + e; k < source.width()) kept(token, k) = static_cast<T>(x[i][e]);
}

template <class T, class Source>
void launch_products(const Context<Cuda>& ctx, const Source& source, const StepWork<T>& work) {
    if (work.tokens <= 8) {
        launch_early(ctx, work.tiles, 32 * step_warps, 0, step_products_kernel<T, Source, 1>, source, work);
    } else if constexpr (!Source::holds) {
        launch_early(ctx, work.tiles * ceil_div(Index{work.tokens}, 32), 32 * step_warps, 0,
                     step_products_kernel<T, Source, 4>, source, work);
    } else {
        launch_early(ctx, ceil_div(Index{work.tokens}, 8), 32 * step_warps, 0, step_rows_kernel<T, Source>, source,
                     work.kept);
        const MatrixView<const T> rows = work.kept;
        launch_products(ctx, RowSource<T>{rows, is_wide(rows)}, work);
    }
}

}  // namespace gpu

template <class T>
void step_products(const Context<Cuda>& ctx, const StepInput<T>& in, std::initializer_list<StepProduct<T>> products,
                   SituBetas betas = SituBetas::swiglu()) {
    static_assert(std::is_same_v<accumulator_t<T>, float>, "kimik3: a step of few rows computes in float");
    const Index inner = in.rows.rows > 0 ? in.rows.cols : in.parts.rows > 0 ? in.parts.cols : in.candidates.view[0].cols;
    gpu::StepWork<T> work{.form = gpu::SituNumbers<float>(betas)};
    for (const StepProduct<T>& p : products) {
        const bool wide = p.wide.rows > 0;
        const Index rows = wide ? p.wide.rows : p.w.rows;
        if (rows == 0) continue;
        require(work.count < gpu::StepWork<T>::most, "step_products: at most {} products", gpu::StepWork<T>::most);
        require_shape("step_products: w", p.w, wide ? 0 : rows, wide ? 0 : inner);
        const bool aligned = wide ? gpu::is_wide(p.wide)
                                  : gpu::is_wide(p.w) && (p.up.rows == 0 || gpu::is_wide(p.up));
        work.product[work.count++] = {p.w.data,   p.up.data,   p.wide.data,           p.y,    p.scores,
                                      p.residual, static_cast<int>(rows), work.tiles, aligned};
        work.tiles += static_cast<int>(ceil_div(rows, p.up.rows > 0 ? 8 : 16));
        work.tokens = static_cast<int>(wide ? p.scores.rows : p.y.rows);
        if (p.w2.rows > 0) {
            require(work.count == 1, "step_products: only the first product has second rows");
            work.second = {p.second, gpu::is_wide(p.second)}, work.w2 = p.w2.data, work.wide_w2 = gpu::is_wide(p.w2);
        }
    }
    if (work.count == 0 || work.tokens == 0) return;
    work.kept = in.normed;
    if (in.rows.rows > 0) {
        gpu::launch_products(ctx, gpu::RowSource<T>{in.rows, gpu::is_wide(in.rows)}, work);
    } else if (in.parts.rows > 0) {
        gpu::launch_products(ctx,
                             gpu::SumSource<T>{in.parts, in.weights, in.norm.data, static_cast<float>(in.eps),
                                               gpu::is_wide(in.parts), gpu::is_wide(in.norm.data, 8, in.norm.size)},
                             work);
    } else {
        gpu::MixSource<T> source{.count = static_cast<int>(in.candidates.count)};
        source.wide = true;
        for (Index j = 0; j < in.candidates.count; ++j) {
            source.candidate[j] = in.candidates.view[j];
            source.wide = source.wide && gpu::is_wide(in.candidates.view[j]);
        }
        source.gamma = in.gamma.data, source.pi = in.pi.data, source.norm = in.norm.data;
        source.mix_eps = static_cast<float>(in.mix_eps), source.eps = static_cast<float>(in.eps);
        source.wide_norm = gpu::is_wide(in.norm.data, 8, in.norm.size);
        source.wide_mix = gpu::is_wide(in.gamma.data, 8, in.gamma.size) && gpu::is_wide(in.pi.data, 8, in.pi.size);
        gpu::launch_products(ctx, source, work);
    }
}

}  // namespace kimik3
