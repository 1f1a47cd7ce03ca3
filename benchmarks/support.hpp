#pragma once
// What the benchmarks share: matrices with numbers in them, a clock, and the ceilings of this machine, each measured on
// all threads of the context: the rate of Eigen's product, of multiplying and adding in registers, of reading.

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <vector>

#include "kimik3/core/rng.hpp"
#include "kimik3/ops/cpu/matmul.hpp"
#include "kimik3/tensor/arena.hpp"

namespace kimik3::bench {

/// The context of all benchmarks: as many threads as the environment variable KIMIK3_THREADS says, else all.
inline const Context<Cpu>& context() {
    static const char* const threads = std::getenv("KIMIK3_THREADS");
    static const Context<Cpu> ctx(threads != nullptr ? std::atoi(threads) : 0);
    return ctx;
}

/// A matrix of its own, filled with numbers in (-1, 1).
struct Numbers {
    Buffer<float> memory;
    MatrixView<float> view;

    Numbers(Index rows, Index cols, std::uint64_t seed = 1) : memory(rows * cols), view(memory.data(), rows, cols) {
        Philox numbers(seed);
        for (float& value : memory) value = static_cast<float>(2.0 * numbers.uniform() - 1.0);
    }
    operator MatrixView<const float>() const { return view; }
    VectorView<float> vector() const { return memory.view(); }
};

/// Processor time of the calling program.
template <class Work>
double processor_seconds(Work&& work) {
    const std::clock_t start = std::clock();
    work();
    return static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
}

/// Wall time; with one thread processor time, so that what else the machine does hardly counts.
template <class Work>
double seconds(Work&& work) {
    if (context().threads() == 1) return processor_seconds(work);
    const auto start = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

inline double median(std::vector<double> times) {
    std::ranges::sort(times);
    return times[times.size() / 2];
}

/// The best of several runs, in units of work a second.
template <class Work>
double best_rate(double work, Work&& run) {
    double best = 0.0;
    for (int repeat = 0; repeat < 9; ++repeat) best = (std::max)(best, work / seconds(run));
    return best;
}

/// Operations a second of y [rows, out] = x [rows, in] w[out, in]^T.
inline double product_rate(Index rows, Index in, Index out) {
    const Numbers x(rows, in), w(out, in), y(rows, out);
    return best_rate(2.0 * static_cast<double>(rows * in * out), [&] { matmul_nt(context(), x, w, y.view, Add::no); });
}

/// Multiplications and additions a second of all threads, from registers.
inline double fma_rate() {
    constexpr int chains = 12, turns = 1'000'000;
    const Numbers sums(context().threads(), 64);
    const double work = 2.0 * chains * turns * static_cast<double>(detail::lane_width<float> * context().threads());
    return best_rate(work, [&] {
        context().parallel(context().threads(), 1, [&](Index first, Index last) {
            for (Index t = first; t < last; ++t) {
                detail::Lane<float> sum[chains];
                for (int c = 0; c < chains; ++c) sum[c] = detail::lane(sums.view(t, c));
                const detail::Lane<float> a = detail::lane(0.999f), b = detail::lane(0.001f);
                for (int turn = 0; turn < turns; ++turn)
                    for (auto& lane : sum) lane = lane * a + b;
                for (auto& lane : sum) sums.view(t, 1) += lane.sum();
            }
        });
    });
}

/// Memory of that many bytes, and all threads reading it once.
class Reading {
public:
    explicit Reading(double bytes) : memory_(static_cast<Index>(bytes / (row * sizeof(float))), row) {}

    void run() {
        context().parallel(memory_.view.rows, 1, [&](Index first, Index last) {
            for (Index n = first; n < last; ++n)
                sums_.view(n, 0) = detail::dot(memory_.view.row(n), memory_.view.row(n), row);
        });
    }
    double bytes() const { return 4.0 * static_cast<double>(memory_.view.size()); }

private:
    static constexpr Index row = 4096;
    Numbers memory_, sums_{memory_.view.rows, 1};
};

/// Bytes a second that all threads read, going round and round a buffer of that many bytes.
inline double read_rate(double bytes) {
    Reading reading(bytes);
    return best_rate(reading.bytes(), [&] { reading.run(); });
}

}  // namespace kimik3::bench
