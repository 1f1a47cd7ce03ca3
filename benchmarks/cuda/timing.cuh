#pragma once
// What the CUDA benchmarks share: random numbers in device memory, the ceilings of this GPU (a device-to-device copy, a
// product of bf16 matrices), the median time of an operation, and a table of times against their floors.
// A measured call takes its turn among sets of buffers that together are larger than three times the L2 cache; one
// recording holds a call of every set, so that launches cost what they cost in a recorded step.

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "kimik3/core/dtype.hpp"
#include "kimik3/ops/cuda/vectors.cuh"
#include "kimik3/tensor/cuda.cuh"

namespace kimik3::bench {

inline const Context<Cuda>& context() {
    static const Context<Cuda> ctx;
    return ctx;
}

/// to = normal numbers times scale, plus shift.
template <class T>
void fill_normal(VectorView<T> to, std::uint64_t seed, float scale, float shift) {
    gpu::for_each(context(), to.size, [=] __device__(Index i) {
        std::uint64_t x = (seed << 40) + static_cast<std::uint64_t>(i) + 0x9e3779b97f4a7c15ull;
        x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
        x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
        x ^= x >> 31;
        const float u = (static_cast<float>(x >> 40) + 0.5f) * 0x1p-24f;
        const float v = static_cast<float>((x >> 8) & 0xffffffu) * 0x1p-24f;
        to[i] = static_cast<T>(shift + scale * sqrtf(-2.0f * logf(u)) * cospif(2.0f * v));
    });
}

/// A matrix of its own with normal numbers times scale, plus shift.
template <class T>
struct Numbers {
    Buffer<T, Cuda> memory;
    MatrixView<T> view;

    Numbers(Index rows, Index cols, std::uint64_t seed = 1, float scale = 1.0f, float shift = 0.0f)
        : memory(rows * cols), view(memory.data(), rows, cols) {
        fill_normal(memory.view(), seed, scale, shift);
    }
    operator MatrixView<T>() const { return view; }
    operator MatrixView<const T>() const { return view; }
    operator VectorView<const T>() const { return memory.view(); }
    VectorView<T> vector() const { return memory.view(); }
};

/// How many sets of buffers calls that move so many bytes take turns among: at least two, and enough to leave the
/// cache.
inline int sets_for(double bytes) { return static_cast<int>(std::clamp(2.0e8 / bytes, 1.0, 31.0)) + 1; }

/// Milliseconds between events around body, the median of repeats, over calls.
template <class Body>
double median_of(int calls, Body&& body, int repeats = 25) {
    const Context<Cuda>& ctx = context();
    cudaEvent_t first, last;
    KIMIK3_CUDA(cudaEventCreate(&first));
    KIMIK3_CUDA(cudaEventCreate(&last));
    std::vector<double> times;
    for (int repeat = -2; repeat < repeats; ++repeat) {
        KIMIK3_CUDA(cudaEventRecord(first, ctx.stream()));
        body();
        KIMIK3_CUDA(cudaEventRecord(last, ctx.stream()));
        KIMIK3_CUDA(cudaEventSynchronize(last));
        float ms = 0.0f;
        KIMIK3_CUDA(cudaEventElapsedTime(&ms, first, last));
        if (repeat >= 0) times.push_back(ms / calls);
    }
    KIMIK3_CUDA(cudaEventDestroy(first));
    KIMIK3_CUDA(cudaEventDestroy(last));
    std::ranges::sort(times);
    return times[times.size() / 2];
}

/// Milliseconds of a call: run(set) enqueues one on set 0 ... sets - 1; the median of repeats.
template <class Run>
double median_ms(int sets, Run&& run, int repeats = 25) {
    const Context<Cuda>& ctx = context();
    const auto all = [&] {
        for (int set = 0; set < sets; ++set) run(set);
    };
    all(), all();
    ctx.synchronise();
    const auto recording = ctx.record(all);
    return median_of(sets, [&] { recording.start(); }, repeats);
}

inline void copy_words(const uint4* from, uint4* to, Index count) {
    gpu::for_each(context(), count, [=] __device__(Index i) { to[i] = from[i]; });
}

/// Bytes read plus written a millisecond by a copy of device memory: by the driver's copy outside of a recording, or by
/// a plain kernel where that is faster.
inline double copy_rate() {
    static const double rate = [] {
        const Context<Cuda>& ctx = context();
        const Index bytes = Index{1} << 29;
        const Numbers<float> from(1, bytes / 4), to(1, bytes / 4, 2);
        const uint4* first = reinterpret_cast<const uint4*>(from.view.data);
        uint4* second = reinterpret_cast<uint4*>(to.view.data);
        const double by_kernel = median_ms(2, [&](int) { copy_words(first, second, bytes / 16); });
        const double by_driver = median_of(1, [&] { copy(ctx, from, to.view); });
        return 2.0 * static_cast<double>(bytes) / (std::min)(by_kernel, by_driver);
    }();
    return rate;
}

/// Milliseconds of a copy that reads and writes so many bytes in all, a kernel in a recording like the operations.
inline double copy_ms(double bytes) {
    static std::map<double, double> known;
    const auto [at, isnew] = known.try_emplace(bytes);
    if (!isnew) return at->second;
    const int sets = sets_for(bytes);
    const Index cols = 8, rows = static_cast<Index>(bytes / 2.0 / (cols * 2.0));
    std::vector<Numbers<bf16>> from, to;
    for (int set = 0; set < sets; ++set) from.emplace_back(rows, cols, 1), to.emplace_back(rows, cols, 2);
    return at->second = median_ms(sets, [&](int set) {
        const MatrixView<const bf16> in = from[to_size(set)];
        const MatrixView<bf16> out = to[to_size(set)];
        gpu::for_eights(context(), rows, cols, [=] __device__(Index n, Index c) {
            gpu::let_next_begin();
            gpu::Eight<bf16>::load(in.row(n) + c).store(out.row(n) + c);
        });
    });
}

/// Operations a millisecond of a product of bf16 matrices, 8192 each way.
inline double product_rate() {
    static const double rate = [] {
        const int n = 8192;
        const Numbers<bf16> a(n, n, 1), b(n, n, 2), c(n, n, 3);
        const float one = 1.0f, zero = 0.0f;
        const double ms = median_ms(2, [&](int) {
            KIMIK3_CUDA(cublasGemmEx(context().cublas(), CUBLAS_OP_T, CUBLAS_OP_N, n, n, n, &one, a.view.data,
                                     CUDA_R_16BF, n, b.view.data, CUDA_R_16BF, n, &zero, c.view.data, CUDA_R_16BF, n,
                                     CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
        });
        return 2.0 * n * n * n / ms;
    }();
    return rate;
}

/// Prints a line a measurement; with --json FILE on the command line also writes {"name", "ms", "floor_ms"} a line,
/// and with --only TEXT asks for the measurements whose names hold the text.
class Table {
public:
    Table(int argc, char** argv) {
        for (int a = 1; a + 1 < argc; ++a) {
            if (std::strcmp(argv[a], "--json") == 0) json_ = std::fopen(argv[a + 1], "w");
            if (std::strcmp(argv[a], "--only") == 0) only_ = argv[a + 1];
        }
        std::printf("%s: copy %.2f TB/s, bf16 product %.0f TFLOP/s\n", context().name().c_str(), copy_rate() / 1e9,
                    product_rate() / 1e9);
        std::printf("%-44s %9s %9s %9s %9s %7s %7s\n", "", "ms", "floor ms", "TB/s", "TFLOP/s", "percent", "of copy");
    }
    Table(const Table&) = delete;
    Table& operator=(const Table&) = delete;
    ~Table() {
        if (json_ != nullptr) std::fclose(json_);
    }

    /// Whether a measurement was asked for.
    bool wants(const std::string& name) const { return name.find(only_) != std::string::npos; }

    /// bytes and flops: what the operation must move and compute at least; copy: ms of a copy of as many bytes.
    void add(const std::string& name, double ms, double bytes, double flops = 0.0, double copy = 0.0) {
        const double floor = (std::max)(bytes / copy_rate(), flops / product_rate());
        std::printf("%-44s %9.4f %9.4f %9.2f %9.1f %7.1f", name.c_str(), ms, floor, bytes / ms / 1e9, flops / ms / 1e9,
                    100.0 * floor / ms);
        if (copy > 0.0) std::printf(" %7.1f", 100.0 * copy / ms);
        std::printf("\n");
        std::fflush(stdout);
        if (json_ != nullptr)
            std::fprintf(json_, "{\"name\": \"%s\", \"ms\": %.6f, \"floor_ms\": %.6f}\n", name.c_str(), ms, floor);
    }

private:
    std::FILE* json_ = nullptr;
    std::string only_;
};

}  // namespace kimik3::bench
