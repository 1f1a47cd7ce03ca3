// Kimi Delta Attention in its three forms, forward and backward, on one thread and on all, at the head shapes of the
// presets small and k3_300m. Every line shows its floor: the larger of FLOPs over the measured FMA rate and bytes over
// the measured read bandwidth; share_of_floor is floor over measured time. Chunked forms count the FLOPs of their
// chunk, the recurrent one those of the recurrence.

#include <benchmark/benchmark.h>

#include <chrono>

#include "kimik3/core/rng.hpp"
#include "kimik3/ops/cpu/decay_gate.hpp"
#include "kimik3/ops/cpu/kda_chunk.hpp"
#include "kimik3/ops/cpu/kda_fused.hpp"
#include "kimik3/ops/cpu/kda_recurrent.hpp"
#include "kimik3/ops/cpu/l2_norm.hpp"
#include "kimik3/ops/cpu/sigmoid.hpp"
#include "kimik3/tensor/arena.hpp"

namespace {

using namespace kimik3;

template <class Work>
double seconds(Work&& work) {
    const auto start = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Multiplications and additions a second of one thread, from registers.
double fma_rate() {
    static const double rate = [] {
        constexpr int chains = 12, turns = 2'000'000;
        detail::Lane<float> sum[chains];
        for (auto& lane : sum) lane.setConstant(1.0f);
        const detail::Lane<float> a = detail::lane(0.999f), b = detail::lane(0.001f);
        const double time = seconds([&] {
            for (int t = 0; t < turns; ++t)
                for (auto& lane : sum) lane = lane * a + b;
        });
        for (auto& lane : sum) benchmark::DoNotOptimize(lane);
        return 2.0 * chains * turns * detail::lane_width<float> / time;
    }();
    return rate;
}

/// Bytes a second that one thread reads from memory.
double read_rate() {
    static const double rate = [] {
        const Index count = Index{1} << 26;
        const Buffer<float> memory(count);
        double total = 0;
        const double time =
            seconds([&] { total += static_cast<double>(detail::dot(memory.data(), memory.data(), count)); });
        benchmark::DoNotOptimize(total);
        return static_cast<double>(count) * sizeof(float) / time;
    }();
    return rate;
}

enum Way { recurrent, chunkwise, fused };

struct Problem {
    Problem(Index batch, Index length, Index head_count, Index width)
        : seq(Sequences::uniform(batch, length)),
          heads(head_count),
          size(width),
          tokens(batch * length) {
        Philox numbers(1);
        for (Buffer<float>* m : {&q, &k, &v, &z}) {
            *m = Buffer<float>(tokens * heads * size);
            for (float& value : *m) value = static_cast<float>(numbers.normal());
        }
        for (Buffer<float>* m : {&unit_q, &unit_k, &g, &o, &dq, &dk, &dv, &dz})
            *m = Buffer<float>(tokens * heads * size);
        for (Buffer<float>* m : {&b, &beta, &r, &db}) *m = Buffer<float>(tokens * heads);
        A_log = Buffer<float>(heads), dA = Buffer<float>(heads);
        dt = Buffer<float>(heads * size), ddt = Buffer<float>(heads * size);
        for (float& value : dt)
            value = static_cast<float>(-4.5 + numbers.normal());  // half-lives as at the start of training
        states = Buffer<float>(kda_chunks(seq, chunk) * heads * size * size);
    }

    MatrixView<float> wide(const Buffer<float>& m) const { return {m.data(), tokens, heads * size}; }
    MatrixView<float> thin(const Buffer<float>& m) const { return {m.data(), tokens, heads}; }
    MatrixView<float> kept() const { return {states.data(), kda_chunks(seq, chunk), heads * size * size}; }
    KdaInput<float> unit() const { return {wide(unit_q), wide(unit_k), wide(v), wide(g), thin(beta)}; }
    KdaRawInput<float> raw() const { return {wide(q), wide(k), wide(v), wide(z), thin(b), A_log.view(), dt.view()}; }

    void forward(const Context<Cpu>& ctx, Way way) const {
        if (way == fused) return kda_fused_forward(ctx, seq, {heads, chunk, -5.0}, raw(), wide(o), {}, kept());
        l2_norm_forward(ctx, heads, wide(q), wide(unit_q), thin(r));
        l2_norm_forward(ctx, heads, wide(k), wide(unit_k), thin(r));
        decay_gate_forward(ctx, {}, wide(z), A_log.view(), dt.view(), wide(g));
        sigmoid_forward(ctx, thin(b), thin(beta));
        if (way == recurrent)
            kda_recurrent_forward(ctx, seq, heads, unit(), wide(o), {});
        else
            kda_chunk_forward(ctx, seq, heads, chunk, unit(), wide(o), {}, kept());
    }

    void backward(const Context<Cpu>& ctx, Way way) const {
        const MatrixView<const float> d_o = wide(o);
        if (way == fused)
            return kda_fused_backward(
                ctx, seq, {heads, chunk, -5.0}, raw(), kept(), d_o, {},
                KdaRawGradient<float>{wide(dq), wide(dk), wide(dv), wide(dz), thin(db), dA.view(), ddt.view()});
        const KdaGradient<float> gradient{wide(dq), wide(dk), wide(dv), wide(dz), thin(db)};
        if (way == recurrent)
            kda_recurrent_backward(ctx, seq, heads, unit(), d_o, {}, gradient);
        else
            kda_chunk_backward(ctx, seq, heads, chunk, unit(), kept(), d_o, {}, gradient);
        l2_norm_backward(ctx, heads, wide(dq), wide(unit_q), thin(r), wide(dq));
        l2_norm_backward(ctx, heads, wide(dk), wide(unit_k), thin(r), wide(dk));
        decay_gate_backward(ctx, {}, wide(dz), wide(z), A_log.view(), dt.view(), wide(dz), dA.view(), ddt.view());
        sigmoid_backward(ctx, thin(db), thin(beta), thin(db));
    }

    /// FLOPs of one token of one head: products with the state, then those within a chunk and its 16-row tiles.
    double flops(Way way, bool back) const {
        const double state = static_cast<double>(size * size), c = static_cast<double>(chunk),
                     d = static_cast<double>(size);
        if (way == recurrent) return (back ? 19.0 : 7.0) * state;
        return back ? 14 * state + (9 * (c + 16) + 2 * c) * d : 6 * state + (3 * (c + 16) + c) * d;
    }
    double bytes(Way way, bool back) const {
        const double kept_bytes =
            way == recurrent ? 0.0 : static_cast<double>(size * size) / static_cast<double>(chunk);
        return 4 * ((back ? 9.0 : 5.0) * static_cast<double>(size) + kept_bytes);
    }

    static constexpr Index chunk = 32;
    Sequences seq;
    Index heads, size, tokens;
    Buffer<float> q, k, v, z, b, unit_q, unit_k, g, beta, r, o, dq, dk, dv, dz, db, A_log, dA, dt, ddt, states;
};

void kda(benchmark::State& state, Way way, bool back, Index batch, Index heads, Index size) {
    const int threads = static_cast<int>(state.range(0));
    const Context<Cpu> ctx(threads);
    const Problem problem(batch, 512, heads, size);
    problem.forward(ctx, way);
    double spent = 0;
    for (auto _ : state) spent += seconds([&] { back ? problem.backward(ctx, way) : problem.forward(ctx, way); });
    const double count = static_cast<double>(problem.tokens * heads),
                 time = spent / static_cast<double>(state.iterations());
    const double compute = problem.flops(way, back) * count / (fma_rate() * threads);
    const double memory = problem.bytes(way, back) * count / read_rate();
    state.counters["GFLOP/s"] = problem.flops(way, back) * count / time * 1e-9;
    state.counters["ns_token_head"] = time / count * 1e9;
    state.counters["floor_ms"] = 1e3 * (std::max)(compute, memory);
    state.counters["share_of_floor"] = (std::max)(compute, memory) / time;
}

#define KIMIK3_KDA(way)                                                  \
    BENCHMARK_CAPTURE(kda, way##_forward_small, way, false, 1, 4, 64)    \
        ->Arg(1)                                                         \
        ->Arg(2)                                                         \
        ->UseRealTime()                                                  \
        ->Unit(benchmark::kMillisecond);                                 \
    BENCHMARK_CAPTURE(kda, way##_backward_small, way, true, 1, 4, 64)    \
        ->Arg(1)                                                         \
        ->Arg(2)                                                         \
        ->UseRealTime()                                                  \
        ->Unit(benchmark::kMillisecond);                                 \
    BENCHMARK_CAPTURE(kda, way##_forward_k3_300m, way, false, 2, 5, 128) \
        ->Arg(1)                                                         \
        ->Arg(2)                                                         \
        ->UseRealTime()                                                  \
        ->Unit(benchmark::kMillisecond);                                 \
    BENCHMARK_CAPTURE(kda, way##_backward_k3_300m, way, true, 2, 5, 128) \
        ->Arg(1)                                                         \
        ->Arg(2)                                                         \
        ->UseRealTime()                                                  \
        ->Unit(benchmark::kMillisecond)
KIMIK3_KDA(recurrent);
KIMIK3_KDA(chunkwise);
KIMIK3_KDA(fused);

/// One decode step of one sequence, the state in place.
void kda_decode(benchmark::State& state, Index heads, Index size) {
    const Context<Cpu> ctx(static_cast<int>(state.range(0)));
    const Problem problem(1, 1, heads, size);
    const Buffer<float> memory(heads * size * size);
    const MatrixView<float> kept(memory.data(), 1, memory.size());
    KdaRawInput<float> raw = problem.raw();
    raw.initial = kept;
    const Sequences seq({0, 1}, {}, {1});
    for (auto _ : state) kda_fused_forward(ctx, seq, {heads, 32, -5.0}, raw, problem.wide(problem.o), kept, {});
    state.counters["state_GB/s"] =
        benchmark::Counter(static_cast<double>(memory.size()) * 8, benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK_CAPTURE(kda_decode, small, 4, 64)->Arg(1)->Arg(2)->UseRealTime()->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(kda_decode, k3_300m, 5, 128)->Arg(1)->Arg(2)->UseRealTime()->Unit(benchmark::kMicrosecond);

}  // namespace
