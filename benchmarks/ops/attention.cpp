// Attention, AttnRes and the loss at the shapes of preset small, against their floors: the larger of the time that
// their products take at the rate of the plain matrix product (2048 x 256 x 256) and the time that their bytes take
// at the rate of reading, both measured in this run. Counters: gflops or gbytes is what was reached a second,
// of_floor its share of the rate.

#include <benchmark/benchmark.h>

#include "kimik3/config/presets.hpp"
#include "kimik3/ops/cpu/attn_res.hpp"
#include "kimik3/ops/cpu/causal_attention.hpp"
#include "kimik3/ops/cpu/cross_entropy.hpp"
#include "kimik3/ops/cpu/latent_attention.hpp"
#include "support.hpp"

namespace {

using namespace kimik3;
using bench::context, bench::Numbers;

constexpr MlaHeads heads{presets::small.mla_heads, presets::small.qk_nope_head_dim, presets::small.qk_rope_head_dim,
                         presets::small.v_head_dim};
constexpr Index width = presets::small.hidden_size, latent = presets::small.kv_lora_rank,
                vocab = presets::small.vocab_size;

double product_rate() {
    static const double rate = bench::product_rate(2048, 256, 256);
    return rate;
}

double read_rate() {
    static const double rate = bench::read_rate(4.0 * 1024 * 65536);
    return rate;
}

void report(benchmark::State& state, double flops, double bytes) {
    using benchmark::Counter;
    const bool by_flops = flops / product_rate() > bytes / read_rate();
    const double work = by_flops ? flops / product_rate() : bytes / read_rate();
    state.counters[by_flops ? "gflops" : "gbytes"] =
        Counter((by_flops ? flops : bytes) * 1e-9, Counter::kIsIterationInvariantRate);
    state.counters["of_floor"] = Counter(work, Counter::kIsIterationInvariantRate);
}

/// Arguments: tokens, candidates.
void attn_res(benchmark::State& state, bool backward) {
    const Index tokens = state.range(0), count = state.range(1);
    std::vector<Numbers> v, dv;
    Candidates<const float> candidates;
    Candidates<float> gradients;
    for (Index j = 0; j < count; ++j) {
        candidates.add(v.emplace_back(tokens, width, static_cast<std::uint64_t>(j)).view);
        gradients.add(dv.emplace_back(tokens, width).view);
    }
    const Numbers gamma(1, width), pi(1, width, 2), h(tokens, width), p(tokens, count), r(tokens, count),
        dh(tokens, width), dgamma(1, width), dpi(1, width);
    attn_res_forward(context(), candidates, gamma.vector(), pi.vector(), 1e-5, h.view, p.view, r.view);
    for (auto _ : state) {
        if (backward)
            attn_res_backward(context(), dh, candidates, gamma.vector(), pi.vector(), p, r, h, gradients,
                              dgamma.vector(), dpi.vector());
        else attn_res_forward(context(), candidates, gamma.vector(), pi.vector(), 1e-5, h.view, p.view, r.view);
    }
    const Index rows = backward ? 3 * count + 2 : count + 1;
    report(state, 0, 4.0 * static_cast<double>(rows * tokens * width));
}
BENCHMARK_CAPTURE(attn_res, forward, false)->Args({512, 5})->Args({4096, 5})->UseRealTime();
BENCHMARK_CAPTURE(attn_res, backward, true)->Args({512, 5})->Args({4096, 5})->UseRealTime();

/// Arguments: sequences, tokens of each.
void causal_attention(benchmark::State& state, bool backward) {
    const Sequences seq = Sequences::uniform(state.range(0), state.range(1));
    const Index n = seq.tokens(), h = heads.count;
    const Numbers q(n, h * heads.key()), kv(n, h * (heads.nope + heads.value), 2), shared(n, heads.shared, 3),
        d_o(n, h * heads.value, 4), o(n, h * heads.value), lse(n, h), dq(n, h * heads.key()),
        dkv(n, h * (heads.nope + heads.value)), dshared(n, heads.shared);
    causal_attention_forward(context(), seq, heads, q, kv, shared, o.view, lse.view);
    for (auto _ : state) {
        if (backward)
            causal_attention_backward(context(), seq, heads, d_o, q, kv, shared, o, lse, dq.view, dkv.view,
                                      dshared.view);
        else causal_attention_forward(context(), seq, heads, q, kv, shared, o.view, lse.view);
    }
    const Index pairs = h * n * (state.range(1) + 1) / 2;
    const Index channels = backward ? 3 * heads.key() + 2 * heads.value : heads.key() + heads.value;
    report(state, 2.0 * static_cast<double>(pairs * channels), 0);
}
BENCHMARK_CAPTURE(causal_attention, forward, false)->Args({2, 256})->Args({1, 2048})->UseRealTime();
BENCHMARK_CAPTURE(causal_attention, backward, true)->Args({2, 256})->Args({1, 2048})->UseRealTime();

/// Arguments: sequences, tokens in the cache of each, new tokens of each.
void latent_decode(benchmark::State& state) {
    const Index count = state.range(0), past = state.range(1), fresh = state.range(2), room = past + fresh;
    std::vector<Index> offsets(to_size(count + 1));
    for (Index s = 0; s <= count; ++s) offsets[to_size(s)] = s * fresh;
    const Sequences seq(offsets, {}, std::vector<Index>(to_size(count), past));
    const Numbers cache(count, room * (latent + heads.shared)), q_lat(count * fresh, heads.count * latent),
        q(count * fresh, heads.count * heads.key()), o(count * fresh, heads.count * latent);
    for (auto _ : state) latent_attention(context(), seq, heads, q_lat, q, cache, o.view);
    const double pairs = static_cast<double>(count * heads.count * fresh) *
                         (static_cast<double>(past) + static_cast<double>(fresh + 1) / 2);
    report(state, 2.0 * pairs * static_cast<double>(2 * latent + heads.shared),
           4.0 * static_cast<double>(cache.memory.size()));
}
BENCHMARK(latent_decode)->Args({1, 511, 1})->Args({1, 2047, 1})->Args({64, 2047, 1})->Args({1, 0, 512})->UseRealTime();

/// Argument: rows.
void cross_entropy_with_gradient(benchmark::State& state) {
    const Index rows = state.range(0);
    const Numbers logits(rows, vocab), loss(1, rows);
    const std::vector<std::int32_t> targets(to_size(rows), 7);
    for (auto _ : state) {
        cross_entropy_backward(context(), logits.view, targets, 1.0, loss.vector());
        benchmark::ClobberMemory();
    }
    report(state, 0, 8.0 * static_cast<double>(rows * vocab));
}
BENCHMARK(cross_entropy_with_gradient)->Arg(256)->Arg(4096)->UseRealTime();

}  // namespace
