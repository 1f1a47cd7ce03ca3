// Encoding a text with a tokenizer, one thread, processor time: all of it, and cutting it into pieces alone. best and
// median are those of the iterations. Arguments: the tokenizer (a GGUF file or what load_tokenizer takes) and the text;
// then Google Benchmark's.
#include <benchmark/benchmark.h>

#include "kimik3/io/gguf_tokenizer.hpp"
#include "support.hpp"

namespace {

using namespace kimik3;

template <class Work>
void rate(benchmark::State& state, std::string_view text, Work&& work) {
    std::vector<double> times;
    for (auto _ : state) {
        times.push_back(bench::processor_seconds(work));
        state.SetIterationTime(times.back());
    }
    const double megabytes = 1e-6 * static_cast<double>(text.size());
    state.counters["MB/s"] = megabytes / bench::median(times);
    state.counters["best"] = megabytes / *std::ranges::min_element(times);
}

}  // namespace

int main(int count, char** arguments) {
    benchmark::Initialize(&count, arguments);
    if (count != 3) return std::fprintf(stderr, "usage: bench_text TOKENIZER TEXT\n"), 2;
    const Tokenizer tokenizer = load_any_tokenizer(arguments[1]);
    const PreTokenizer pre_tokenizer(tokenizer.spec().pre_tokenizer);
    const std::string text = detail::read_text_file(arguments[2]);
    const auto add = [&](const char* name, auto work) {
        benchmark::RegisterBenchmark(name, [&text, work](benchmark::State& state) { rate(state, text, work); })
            ->Iterations(21)
            ->UseManualTime()
            ->Unit(benchmark::kMillisecond);
    };
    add("encode", [&] { benchmark::DoNotOptimize(tokenizer.encode(text, Specials::as_text)); });
    add("cut", [&] {
        Matcher matcher;
        Index pieces = 0;
        pre_tokenizer.split(text, matcher, [&](std::string_view) { ++pieces; });
        benchmark::DoNotOptimize(pieces);
    });
    benchmark::RunSpecifiedBenchmarks();
}
