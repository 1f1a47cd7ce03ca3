// Decoding one token at a time, batch 1. floor: the time that all threads need to read as many bytes as a token must touch
// (active weights with the head, KDA states read and written, the latent cache read), measured after every token, going
// round and round a buffer of that size. A token chooses other experts than the one before, so the weights touched over
// time are more than that: the floor is not quite reachable. share = floor / time of a token, both medians. Argument:
// tokens already in the state.

#include <benchmark/benchmark.h>

#include "kimik3/kimik3.hpp"
#include "support.hpp"

namespace {

using namespace kimik3;
using namespace kimik3::bench;

template <class Model>
double bytes_touched(const Model& model, Index past) {
    const ModelConfig& c = model.config;
    double numbers = static_cast<double>(count_parameters(c, model.parameters()).active);
    for (Index layer = 0; layer < c.num_layers; ++layer) {
        if (c.layer_types[layer] == 'K') numbers += 2.0 * c.kda_width() * c.kda_head_dim;
        else numbers += static_cast<double>(past * (c.kv_lora_rank + c.qk_rope_head_dim));
    }
    return numbers * sizeof(float);
}

template <ModelConfig config>
void decode(benchmark::State& state) {
    const Index past = state.range(0);
    KimiK3<config> model(context(), 1);
    const std::vector<std::int32_t> prompt(to_size(past), 1);
    auto sequence = model.new_state(1);
    model.step(sequence, prompt);
    const auto start = sequence;
    Reading reading(bytes_touched(model, past));
    std::vector<double> tokens, readings;
    std::int32_t token = 0;
    for (auto _ : state) {
        if (sequence.length(0) == sequence.max_len()) sequence = start;
        const double time = seconds([&] { model.step(sequence, {&token, 1}); });
        tokens.push_back(time);
        readings.push_back(seconds([&] { reading.run(); }));
        token = (token + 1) % config.vocab_size;
        state.SetIterationTime(time);
    }
    const double time = median(tokens), floor = median(readings);
    state.counters["tokens/s"] = 1.0 / time;
    state.counters["best"] = 1.0 / *std::ranges::min_element(tokens);
    state.counters["megabytes"] = 1e-6 * reading.bytes();
    state.counters["gigabytes/s"] = 1e-9 * reading.bytes() / floor;
    state.counters["share"] = floor / time;
}
BENCHMARK_TEMPLATE(decode, presets::small)
    ->Arg(16)
    ->Arg(1024)
    ->Iterations(300)
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK_TEMPLATE(decode, presets::tiny)->Arg(16)->Iterations(300)->UseManualTime()->Unit(benchmark::kMillisecond);

}  // namespace
