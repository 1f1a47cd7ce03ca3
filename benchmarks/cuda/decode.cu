// Decoding of k3_300m in bf16 with random weights: milliseconds a step of one token a sequence, greedy, the token drawn
// on the GPU and fed back by the host, and of a prefill of 2,048 tokens. floor: the bytes that a step must touch
// (weights of the layers, of the head and of the experts that the tokens choose if they choose at random, KDA states
// read and written, cached latents read) at the rate of a device copy.
//   decode [--json FILE] [--only TEXT]

#include <chrono>
#include <cmath>

#include "cuda/timing.cuh"
#include "kimik3/cuda.cuh"

namespace {

using namespace kimik3;
using namespace kimik3::bench;

constexpr ModelConfig config = presets::k3_300m;
using Model = KimiK3<config, Cuda, bf16>;
constexpr double chosen = static_cast<double>(config.num_experts_per_token) / config.num_experts;  // of the experts

double bytes_touched(Model& model, Index batch, Index past) {
    const double tokens = static_cast<double>(batch), idle = 1.0 - chosen;
    double bytes = 0;
    for (const ParameterInfo& tensor : model.parameters()) {
        const double share = tensor.experts > 0 ? 1.0 - std::pow(idle, tokens) : 1.0;
        bytes += 2.0 * share * static_cast<double>(tensor.count);
    }
    for (Index layer = 0; layer < config.num_layers; ++layer) {
        if (config.layer_types[layer] == 'K') bytes += tokens * 8.0 * config.kda_width() * config.kda_head_dim;
        else bytes += tokens * 2.0 * static_cast<double>(past * (config.kv_lora_rank + config.qk_rope_head_dim));
    }
    return bytes;
}

double milliseconds() {
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::vector<std::int32_t> random_tokens(Index count) {
    Philox random(7);
    std::vector<std::int32_t> tokens;
    for (Index i = 0; i < count; ++i)
        tokens.push_back(static_cast<std::int32_t>(random.below(static_cast<std::uint64_t>(config.vocab_size))));
    return tokens;
}

/// How far the logits of steps lie from those of a whole pass, by norm, with biases by which all tokens choose the same
/// experts: where roundings change choices of untrained weights, the two are as far apart as they are large.
void check() {
    Model model(context(), 1);
    for (const ParameterInfo& tensor : model.parameters()) {
        if (!tensor.name.ends_with("e_score_correction_bias")) continue;
        std::vector<float> bias;
        for (Index e = 0; e < tensor.count; ++e) bias.push_back(static_cast<float>(2 * e));
        copy_from_host(context(), bias, VectorView<float>(model.weights().data + tensor.offset, tensor.count));
    }
    const Index length = 24;
    const std::vector<std::int32_t> tokens = random_tokens(length);
    model.evaluate(tokens, tokens);
    std::vector<bf16> whole, memory;
    on_host(context(), model.logits(), whole);
    for (const Index batch : {1, 3, 12}) {
        auto state = model.new_state(batch, 64);
        std::vector<Index> counts(to_size(batch), 1), slots;
        for (Index s = 0; s < batch; ++s) slots.push_back(s);
        double apart = 0, size = 0;
        for (Index t = 0; t < length; ++t) {
            const std::vector<std::int32_t> now(to_size(batch), tokens[to_size(t)]);
            const auto logits = on_host(context(), model.step(state, now, counts, slots), memory);
            double step_apart = 0, step_size = 0;
            for (Index c = 0; c < logits.cols; ++c) {
                const double expected = whole[to_size(t * logits.cols + c)], found = logits(batch - 1, c);
                apart += (found - expected) * (found - expected), size += expected * expected;
                step_apart += (found - expected) * (found - expected), step_size += expected * expected;
            }
            if (batch == 1 && t < 6) std::printf("step %td: %.2e\n", t, std::sqrt(step_apart / step_size));
        }
        std::printf("steps of %td against a whole pass: relative error %.2e\n", batch, std::sqrt(apart / size));
    }
}

void decode(Model& model, Table& table, Index batch, Index past) {
    const std::string name = fmt::format("decode batch {} past {}", batch, past);
    if (!table.wants(name)) return;
    const int steps = 120, warm = 20;
    auto state = model.new_state(batch, past + steps + warm);
    std::vector<std::int32_t> tokens = random_tokens(past), chosen, none;
    for (Index s = 0; s < batch; ++s) model.step(state, tokens, s);
    std::vector<Index> counts(to_size(batch), 1), slots;
    std::vector<SampleRow> rows;
    for (Index s = 0; s < batch; ++s)
        slots.push_back(s), rows.push_back({.row = s, .vocabulary = config.vocab_size, .temperature = 0.0});
    chosen = random_tokens(batch);
    std::vector<double> times;
    for (int step = 0; step < steps + warm; ++step) {
        const double begin = milliseconds();
        const auto logits = model.step(state, chosen, counts, slots);
        sample(context(), logits, rows, none, chosen);
        if (step >= warm) times.push_back(milliseconds() - begin);
    }
    std::ranges::sort(times);
    const double ms = times[times.size() / 2];
    table.add(name, ms, bytes_touched(model, batch, past));
    // Without the host's part: the same step again and again, as recorded.
    cudaEvent_t first, last;
    KIMIK3_CUDA(cudaEventCreate(&first));
    KIMIK3_CUDA(cudaEventCreate(&last));
    auto fresh = model.new_state(batch, past + steps + warm);
    for (Index s = 0; s < batch; ++s) model.step(fresh, tokens, s);
    for (int step = 0; step < warm; ++step) model.step(fresh, chosen, counts, slots);
    context().synchronise();
    KIMIK3_CUDA(cudaEventRecord(first, context().stream()));
    for (int step = 0; step < 50; ++step) model.step(fresh, chosen, counts, slots);
    KIMIK3_CUDA(cudaEventRecord(last, context().stream()));
    KIMIK3_CUDA(cudaEventSynchronize(last));
    float all = 0;
    KIMIK3_CUDA(cudaEventElapsedTime(&all, first, last));
    std::printf("    %.0f tokens/s; back to back without drawing %.4f ms a step\n",
                1e3 * static_cast<double>(batch) / ms, all / 50);
}

void prefill(Model& model, Table& table) {
    if (!table.wants("prefill 2048")) return;
    auto state = model.new_state(1, 2048);
    const std::vector<std::int32_t> tokens = random_tokens(2048);
    std::vector<double> times;
    for (int repeat = -3; repeat < 15; ++repeat) {
        state.reset(0);
        context().synchronise();
        const double begin = milliseconds();
        model.step(state, tokens);
        context().synchronise();
        if (repeat >= 0) times.push_back(milliseconds() - begin);
    }
    std::ranges::sort(times);
    double flops = 0;
    for (const ParameterInfo& tensor : model.parameters()) {
        const double share = tensor.experts > 0 ? chosen : 1.0;
        flops += 2.0 * 2048.0 * share * static_cast<double>(tensor.count);
    }
    table.add("prefill 2048", times[times.size() / 2], bytes_touched(model, 2048, 0), flops);
}

}  // namespace

int main(int argc, char** argv) {
    Table table(argc, argv);
    check();
    Model model(context(), 1);
    for (const Index batch : {1, 8, 64})
        for (const Index past : {16, 1024}) decode(model, table, batch, past);
    prefill(model, table);
}
