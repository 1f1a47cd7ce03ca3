// The optimizer on shapes of the preset small: AdamW and the gradient norm against the bytes that they must move, Muon
// against the floating-point operations of its products. Compare bytes/s with the machine's bandwidth, and FLOP/s with
// what a matrix product reaches.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <vector>

#include "kimik3/core/rng.hpp"
#include "kimik3/ops/cpu/adamw.hpp"
#include "kimik3/ops/cpu/gradient_norm.hpp"
#include "kimik3/ops/cpu/muon.hpp"
#include "kimik3/tensor/arena.hpp"

namespace {

using kimik3::Buffer;
using kimik3::Context;
using kimik3::Cpu;
using kimik3::Index;

Buffer<float> random(Index count, std::uint64_t seed) {
    Buffer<float> values(count);
    kimik3::Philox rng(seed);
    for (float& value : values) value = static_cast<float>(rng.normal());
    return values;
}

constexpr Index elements = 12 << 20, piece = 16384;

void adamw(benchmark::State& state) {
    const Context<Cpu> ctx;
    const Buffer<float> g = random(elements, 1), w = random(elements, 2), m(elements), v(elements);
    std::vector<kimik3::AdamwPiece> pieces;
    for (Index at = 0; at < elements; at += piece) pieces.push_back({at, at, piece, true});
    kimik3::AdamwRule rule{.lr = 1e-3, .decay = 0.1};
    for (auto _ : state) {
        kimik3::adamw_step<float>(ctx, pieces, rule, g.view(), w.view(), m.view(), v.view());
        ++rule.step;
    }
    state.SetBytesProcessed(state.iterations() * elements * 7 * static_cast<Index>(sizeof(float)));
}
BENCHMARK(adamw)->UseRealTime()->Unit(benchmark::kMillisecond);

void gradient_norm(benchmark::State& state) {
    const Context<Cpu> ctx;
    const Buffer<float> g = random(elements, 1);
    std::vector<kimik3::ElementPiece> pieces;
    for (Index at = 0; at < elements; at += piece) pieces.push_back({at, piece});
    const Buffer<double> sums(static_cast<Index>(pieces.size()));
    for (auto _ : state) {
        kimik3::gradient_square_sums(ctx, pieces, kimik3::VectorView<const float>(g.view()), sums.view());
        benchmark::DoNotOptimize(sums[0]);
    }
    state.SetBytesProcessed(state.iterations() * elements * static_cast<Index>(sizeof(float)));
}
BENCHMARK(gradient_norm)->UseRealTime()->Unit(benchmark::kMillisecond);

/// count blocks [rows, cols].
void muon(benchmark::State& state) {
    const Context<Cpu> ctx;
    const Index rows = state.range(0), cols = state.range(1), count = state.range(2), side = (std::min)(rows, cols);
    const Index size = count * rows * cols;
    const Buffer<float> g = random(size, 1), w = random(size, 2), m(size);
    std::vector<kimik3::MuonBlock> blocks;
    for (Index b = 0; b < count; ++b) blocks.push_back({b * rows * cols, rows, cols, true});
    const kimik3::MuonRule rule{.lr = 1e-3, .decay = 0.1};
    for (auto _ : state) kimik3::muon_step<float>(ctx, blocks, rule, g.view(), w.view(), m.view());
    const double products = 5.0 * static_cast<double>(count * (4 * side * rows * cols + 2 * side * side * side));
    state.counters["FLOP/s"] = benchmark::Counter(products, benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(muon)
    ->Args({32, 256, 64})
    ->Args({64, 128, 64})
    ->Args({128, 64, 64})
    ->Args({256, 256, 8})
    ->Args({768, 256, 2})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

/// The pure matrix product [rows, inner] [cols, inner]^T that the FLOP/s above are compared with.
void product(benchmark::State& state) {
    const Context<Cpu> ctx;
    const Index rows = state.range(0), cols = state.range(1), inner = state.range(2);
    const Buffer<float> a = random(rows * inner, 1), b = random(cols * inner, 2), c(rows * cols);
    for (auto _ : state) {
        const kimik3::MatrixView<float> out(c.data(), rows, cols);
        kimik3::matmul_nt(ctx, {a.data(), rows, inner}, {b.data(), cols, inner}, out, kimik3::Add::no);
        benchmark::DoNotOptimize(c[0]);
    }
    const double operations = 2.0 * static_cast<double>(rows * cols * inner);
    state.counters["FLOP/s"] = benchmark::Counter(operations, benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(product)->Args({256, 256, 256})->Args({1024, 1024, 1024})->UseRealTime()->Unit(benchmark::kMillisecond);

}  // namespace
