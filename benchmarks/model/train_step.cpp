// A training step of the presets tiny and small, and after each the matrix products of that step alone (products.hpp).
// Times are medians, in milliseconds: step, forward_backward, optimizer, products. share = products / step is how much of
// the step a product library would take; share_of_passes compares the passes with their products alone. gflops: what the
// products reach; fma: what the machine can. Arguments: sequences, tokens of each.

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
    const Products products(model, tokens, kind);
    model.clear_balance();
    std::vector<double> of_passes, of_update, of_step, of_products, of_blocks;
    for (auto _ : state) {
        of_passes.push_back(seconds(passes));
        of_update.push_back(seconds([&] {
            optimizer.step(model.context(), 1e-4, model.weights(), model.gradients());
            model.update_balance();
        }));
        of_step.push_back(of_passes.back() + of_update.back());
        of_products.push_back(seconds([&] { products.run(); }));
        of_blocks.push_back(seconds([&] { products.run_blocks(); }));
        state.SetIterationTime(of_step.back());
    }
    const double in_passes = median(of_products), in_step = in_passes + median(of_blocks), step = median(of_step);
    state.counters["step"] = 1e3 * step, state.counters["forward_backward"] = 1e3 * median(of_passes);
    state.counters["optimizer"] = 1e3 * median(of_update), state.counters["products"] = 1e3 * in_step;
    state.counters["share"] = in_step / step, state.counters["share_of_passes"] = in_passes / median(of_passes);
    state.counters["tokens/s"] = static_cast<double>(tokens) / step;
    state.counters["gflops"] = 1e-9 * products.flops() / in_step;
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
