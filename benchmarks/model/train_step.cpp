// A training step of the presets tiny and small, and in the same run the matrix products of that step alone
// (products.hpp). Times are the best of all repeats, in milliseconds: step, forward_backward, optimizer, products.
// share = products / step is how much of the step a product library would take; share_of_passes leaves the optimizer
// out. gflops: what the products reach; fma: what the machine can. Arguments: sequences, tokens of each.

#include <benchmark/benchmark.h>

#include "kimik3/kimik3.hpp"
#include "model/products.hpp"

namespace {

using namespace kimik3;
using namespace kimik3::bench;

std::vector<std::int32_t> random_ids(Index count, int vocab, std::uint64_t seed) {
    Philox numbers(seed);
    std::vector<std::int32_t> ids(to_size(count));
    for (std::int32_t& id : ids) id = static_cast<std::int32_t>(numbers.below(static_cast<std::uint64_t>(vocab)));
    return ids;
}

template <ModelConfig config, OptimizerKind kind>
void train_step(benchmark::State& state) {
    const Index batch = state.range(0), tokens = batch * state.range(1);
    KimiK3<config> model(context(), 1);
    Optimizer<Cpu, float> optimizer(model.parameters(), model.weights().size, {.kind = kind});
    const auto ids = random_ids(tokens, config.vocab_size, 1), targets = random_ids(tokens, config.vocab_size, 2);
    const auto passes = [&] {
        model.zero_gradients();
        model.forward_backward(ids, targets, batch);
    };
    passes();
    const Products products(model, tokens);
    model.clear_balance();
    double best_passes = 1e9, best_update = 1e9, best_step = 1e9, best_products = 1e9;
    for (auto _ : state) {
        const double forward_backward = seconds(passes);
        const double update = seconds([&] {
            optimizer.step(model.context(), 1e-4, model.weights(), model.gradients());
            model.update_balance();
        });
        best_passes = (std::min)(best_passes, forward_backward), best_update = (std::min)(best_update, update);
        best_step = (std::min)(best_step, forward_backward + update);
        best_products = (std::min)(best_products, seconds([&] { products.run(); }));
        state.SetIterationTime(forward_backward + update);
    }
    state.counters["step"] = 1e3 * best_step, state.counters["forward_backward"] = 1e3 * best_passes;
    state.counters["optimizer"] = 1e3 * best_update, state.counters["products"] = 1e3 * best_products;
    state.counters["share"] = best_products / best_step,
    state.counters["share_of_passes"] = best_products / best_passes;
    state.counters["tokens/s"] = static_cast<double>(tokens) / best_step;
    state.counters["gflops"] = 1e-9 * products.flops() / best_products;
    static const double fma = fma_rate();
    state.counters["fma"] = 1e-9 * fma;
}

void arguments(benchmark::internal::Benchmark* b) {
    b->Args({8, 256})->Iterations(7)->UseManualTime()->Unit(benchmark::kMillisecond);
}

BENCHMARK_TEMPLATE(train_step, presets::small, OptimizerKind::adamw)->Apply(arguments);
BENCHMARK_TEMPLATE(train_step, presets::small, OptimizerKind::muon)->Apply(arguments);
BENCHMARK_TEMPLATE(train_step, presets::tiny, OptimizerKind::adamw)->Apply(arguments);
BENCHMARK_TEMPLATE(train_step, presets::tiny, OptimizerKind::muon)->Apply(arguments);

}  // namespace
