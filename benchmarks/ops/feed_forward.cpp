// The operations of the feed-forward at the shapes of preset small, against their floors. Counters: gflops or gbytes is
// what was reached a second, floor_gflops the plain matrix product (matmul_nt, 2048 x 256 x 256) on this machine in
// this run, floor_gbytes a threaded copy, of_floor their quotient. Arguments: tokens.

#include <benchmark/benchmark.h>

#include "kimik3/config/presets.hpp"
#include "kimik3/layers/latent_moe.hpp"
#include "kimik3/model/parameter_layout.hpp"
#include "kimik3/ops/cpu/expert_dispatch.hpp"
#include "kimik3/ops/cpu/expert_products.hpp"
#include "kimik3/ops/cpu/quantile_balance.hpp"
#include "kimik3/ops/cpu/rms_norm.hpp"
#include "kimik3/ops/cpu/router.hpp"
#include "support.hpp"

namespace {

using namespace kimik3;
using bench::context, bench::Numbers;

const ModelConfig& config = presets::small;

double product_rate() {
    static const double rate = bench::product_rate(2048, 256, 256);
    return rate;
}

/// Bytes read plus written by a copy that does not fit into the caches.
double copy_rate() {
    static const double rate = [] {
        Numbers from(16384, 1024), to(16384, 1024);
        return bench::best_rate(2.0 * static_cast<double>(from.view.size()) * sizeof(float), [&] {
            context().parallel(from.view.rows, 64, [&](Index first, Index last) {
                std::copy_n(from.view.row(first), (last - first) * from.view.cols, to.view.row(first));
            });
        });
    }();
    return rate;
}

void count_flops(benchmark::State& state, double flops) {
    const double total = flops * static_cast<double>(state.iterations());
    state.counters["gflops"] = benchmark::Counter(total * 1e-9, benchmark::Counter::kIsRate);
    state.counters["floor_gflops"] = product_rate() * 1e-9;
    state.counters["of_floor"] = benchmark::Counter(total / product_rate(), benchmark::Counter::kIsRate);
}

void count_bytes(benchmark::State& state, double bytes) {
    const double total = bytes * static_cast<double>(state.iterations());
    state.counters["gbytes"] = benchmark::Counter(total * 1e-9, benchmark::Counter::kIsRate);
    state.counters["floor_gbytes"] = copy_rate() * 1e-9;
    state.counters["of_floor"] = benchmark::Counter(total / copy_rate(), benchmark::Counter::kIsRate);
}

void product_nt(benchmark::State& state) {
    const Index rows = state.range(0), inner = state.range(1), cols = state.range(2);
    Numbers a(rows, inner), b(cols, inner), c(rows, cols);
    for (auto _ : state) matmul_nt(context(), a, b, c.view, Add::no);
    if (rows < 8) count_bytes(state, static_cast<double>(cols * inner) * sizeof(float));
    else count_flops(state, 2.0 * static_cast<double>(rows * inner * cols));
}
void product_nn(benchmark::State& state) {
    const Index rows = state.range(0), inner = state.range(1), cols = state.range(2);
    Numbers a(rows, inner), b(inner, cols), c(rows, cols);
    for (auto _ : state) matmul_nn(context(), a, b, c.view, Add::no);
    count_flops(state, 2.0 * static_cast<double>(rows * inner * cols));
}
void product_tn(benchmark::State& state) {
    const Index rows = state.range(0), inner = state.range(1), cols = state.range(2);
    Numbers a(rows, inner), b(rows, cols), c(inner, cols);
    for (auto _ : state) matmul_tn(context(), a, b, c.view, Add::yes);
    count_flops(state, 2.0 * static_cast<double>(rows * inner * cols));
}

void rms_norm(benchmark::State& state) {
    const Index rows = state.range(0), width = config.hidden_size;
    Numbers x(rows, width), y(rows, width), w(1, width), r(1, rows);
    for (auto _ : state) rms_norm_forward(context(), x, w.vector(), 1e-5, y.view, r.vector());
    count_bytes(state, 2.0 * static_cast<double>(rows * width) * sizeof(float));
}
void rms_norm_grad(benchmark::State& state) {
    const Index rows = state.range(0), width = config.hidden_size;
    Numbers x(rows, width), y(rows, width), dx(rows, width), w(1, width), dw(1, width), r(1, rows);
    rms_norm_forward(context(), x, w.vector(), 1e-5, y.view, r.vector());
    for (auto _ : state) rms_norm_backward(context(), y, x, w.vector(), r.vector(), dx.view, dw.vector());
    count_bytes(state, 3.0 * static_cast<double>(rows * width) * sizeof(float));
}

constexpr SituBetas betas{4.0, 25.0};

void situ(benchmark::State& state) {
    const Index rows = state.range(0), width = config.dense_intermediate_size;
    Numbers gate(rows, width), up(rows, width, 2), y(rows, width);
    for (auto _ : state) situ_forward(context(), gate, up, betas, y.view);
    count_bytes(state, 3.0 * static_cast<double>(rows * width) * sizeof(float));
}
void situ_grad(benchmark::State& state) {
    const Index rows = state.range(0), width = config.dense_intermediate_size;
    Numbers gate(rows, width), up(rows, width, 2), dy(rows, width, 3), dgate(rows, width), dup(rows, width);
    for (auto _ : state) situ_backward(context(), dy, gate, up, betas, dgate.view, dup.view);
    count_bytes(state, 5.0 * static_cast<double>(rows * width) * sizeof(float));
}

void router(benchmark::State& state) {
    const Index rows = state.range(0), experts = config.num_experts, chosen = config.num_experts_per_token;
    Numbers x(rows, config.hidden_size), w(experts, config.hidden_size, 2), bias(1, experts, 3), scores(rows, experts);
    Numbers weights(rows, chosen), cutoff(1, rows);
    Buffer<std::int32_t> choice(rows * chosen);
    for (auto _ : state)
        router_forward(context(), x, w, bias.vector(), {true, 1.0}, scores.view,
                       MatrixView<std::int32_t>(choice.data(), rows, chosen), weights.view, cutoff.vector());
    count_flops(state, 2.0 * static_cast<double>(x.view.size() * experts));
}

/// The whole layer.
struct Moe {
    using Layer = LatentMoeLayer<Cpu, float>;
    Buffer<float> weights, gradients;
    Layer::Params params;
    Layer::Grads grads;
    Buffer<std::byte> memory;
    Sequences sequences;
    Layer::Saved saved;
    Numbers x, y, dy, dx;

    explicit Moe(Index tokens)
        : sequences({0, tokens}),
          x(tokens, config.hidden_size),
          y(tokens, config.hidden_size),
          dy(tokens, config.hidden_size, 2),
          dx(tokens, config.hidden_size) {
        ParameterTable table;
        params.fields(config, FieldBinder<float, float>(table));
        weights = Buffer<float>(table.size());
        gradients = Buffer<float>(table.size());
        params.fields(config, FieldBinder<float, float>(weights.data(), weights.data()));
        grads.fields(config, FieldBinder<float, float>(gradients.data(), gradients.data()));
        Philox numbers(1);
        for (float& value : weights) value = static_cast<float>(0.05 * numbers.normal());
        Arena measure;
        Layer::bind_saved(measure, config, sequences);
        memory = Buffer<std::byte>(measure.used_bytes());
        Arena arena(memory.data(), memory.size());
        saved = Layer::bind_saved(arena, config, sequences);
    }
    void forward() { Layer::forward(context(), config, params, sequences, x, y.view, saved); }
    void backward() { Layer::backward(context(), config, params, grads, sequences, x, dy, dx.view, saved); }

    /// Weights that a token meets.
    static double active_weights() {
        const double width = config.hidden_size, latent = config.moe_latent_size, inner = config.moe_intermediate_size;
        return config.num_experts * width + 2 * latent * width + 3 * width * config.shared_intermediate_size() +
               config.num_experts_per_token * 3 * latent * inner;
    }
};

void moe_forward(benchmark::State& state) {
    Moe moe(state.range(0));
    for (auto _ : state) moe.forward();
    if (state.range(0) == 1) count_bytes(state, Moe::active_weights() * sizeof(float));
    else count_flops(state, 2.0 * Moe::active_weights() * static_cast<double>(state.range(0)));
}
void moe_step(benchmark::State& state) {
    Moe moe(state.range(0));
    for (auto _ : state) {
        moe.forward();
        moe.backward();
    }
    count_flops(state, 6.0 * Moe::active_weights() * static_cast<double>(state.range(0)));
}

// rows x inner x outputs: router, latent, an expert, shared, dense
#define KIMIK3_PRODUCTS         \
    Args({512, 256, 16})        \
        ->Args({512, 256, 128}) \
        ->Args({64, 128, 128})  \
        ->Args({512, 256, 256}) \
        ->Args({512, 256, 768}) \
        ->UseRealTime()
BENCHMARK(product_nt)->KIMIK3_PRODUCTS->Args({1, 256, 768})->Args({1, 256, 256});
BENCHMARK(product_nn)->KIMIK3_PRODUCTS;
BENCHMARK(product_tn)->KIMIK3_PRODUCTS;
BENCHMARK(rms_norm)->Arg(512)->Arg(16384)->UseRealTime();
BENCHMARK(rms_norm_grad)->Arg(512)->Arg(16384)->UseRealTime();
BENCHMARK(situ)->Arg(512)->Arg(16384)->UseRealTime();
BENCHMARK(situ_grad)->Arg(512)->Arg(16384)->UseRealTime();
BENCHMARK(router)->Arg(512)->UseRealTime();
BENCHMARK(moe_forward)->Arg(1)->Arg(4)->Arg(256)->Arg(512)->Arg(2048)->UseRealTime();
BENCHMARK(moe_step)->Arg(256)->Arg(512)->Arg(2048)->UseRealTime();

}  // namespace
