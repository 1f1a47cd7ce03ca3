// Fused KDA in bf16 on the GPU: milliseconds a call and per cent of the floor (bytes read and written once at 4.3
// TB/s).
//   kda [--json FILE] [--check]
// --check compares with the same operation in float32, by norm.

#include <cstdio>
#include <cstring>
#include <functional>

#include "kimik3/ops/cuda/kda_fused.cuh"

using namespace kimik3;

namespace {

struct Case {
    const char* name;
    Index tokens, heads, sequences;
    bool training;
};
const Case cases[] = {
    {"B16 T2048 H5", 32768, 5, 16, true}, {"T2048 H12 N1", 2048, 12, 1, false},  {"T2048 H16 N1", 2048, 16, 1, false},
    {"T4096 H8 N1", 4096, 8, 1, false},   {"T4096 H12 N1", 4096, 12, 1, false},  {"T8192 H12 N4", 8192, 12, 4, false},
    {"T8192 H16 N1", 8192, 16, 1, false}, {"T1024 H4 N1", 1024, 4, 1, false},    {"T3072 H10 N1", 3072, 10, 1, false},
    {"T8192 H24 N1", 8192, 24, 1, false}, {"T16384 H16 N8", 16384, 16, 8, false}};
constexpr Index width = 128, chunk = 64;

/// Numbers from a normal distribution, the same for the same seed.
template <class T>
void fill(const Context<Cuda>& ctx, MatrixView<T> m, unsigned seed, float scale, float mean = 0) {
    gpu::for_each(ctx, m.size(), [=] __device__(Index i) {
        const auto uniform = [](std::uint64_t x) {
            x ^= x >> 31, x *= 0x7fb5d329728ea185ull, x ^= x >> 27, x *= 0x81dadef4bc2dd44dull, x ^= x >> 33;
            return (static_cast<float>(x >> 40) + 0.5f) / 16777216.0f;
        };
        const std::uint64_t at = (static_cast<std::uint64_t>(seed) << 40) + static_cast<std::uint64_t>(i) * 2;
        const float u = uniform(at), v = uniform(at + 1);
        m(i / m.cols, i % m.cols) = T(float(bf16(mean + scale * sqrtf(-2 * logf(u)) * cospif(2 * v))));
    });
}

/// Inputs, outputs and gradients of one call.
template <class T>
struct Set {
    Buffer<T, Cuda> memory;
    Buffer<T, Cuda> kept, prepared;
    Buffer<float, Cuda> gate;
    MatrixView<T> q, k, v, z, b, o, d_o, dq, dk, dv, dz, db;
    MatrixView<T> states;
    VectorView<float> A_log, dt_bias, dA_log, ddt_bias;

    Set(const Context<Cuda>& ctx, const Case& c, const Sequences& seq, unsigned seed) {
        const Index wide = c.heads * width;
        memory = Buffer<T, Cuda>(c.tokens * (11 * wide + 2 * round_up(c.heads, 64)));
        T* next = memory.data();
        for (MatrixView<T>* m : {&q, &k, &v, &z, &o, &d_o, &dq, &dk, &dv, &dz}) {
            *m = {next, c.tokens, wide};
            next += m->size();
        }
        for (MatrixView<T>* m : {&b, &db}) *m = {next, c.tokens, c.heads}, next += c.tokens * round_up(c.heads, 64);
        states = {nullptr, 0, wide * width};
        if (c.training) {
            kept = Buffer<T, Cuda>(kda_chunks(seq, chunk) * wide * width);
            states = {kept.data(), kda_chunks(seq, chunk), wide * width};
            prepared = Buffer<T, Cuda>(KdaPrepared<Cuda, T>::size(seq, {c.heads, chunk}, width, width));
        }
        gate = Buffer<float, Cuda>(2 * (c.heads + wide));
        A_log = {gate.data(), c.heads}, dA_log = {A_log.end(), c.heads};
        dt_bias = {dA_log.end(), wide}, ddt_bias = {dt_bias.end(), wide};
        fill(ctx, q, seed, 1), fill(ctx, k, seed + 1, 1), fill(ctx, v, seed + 2, 1), fill(ctx, z, seed + 3, 3, -3);
        fill(ctx, b, seed + 4, 1), fill(ctx, d_o, seed + 5, 1);
        fill(ctx, MatrixView<float>(A_log.data, 1, c.heads), seed + 6, 0.3f);
        fill(ctx, MatrixView<float>(dt_bias.data, 1, wide), seed + 7, 1);
    }
    KdaRawInput<T> input() const { return {q, k, v, z, b, A_log, dt_bias, {}, prepared.view()}; }
    void forward(const Context<Cuda>& ctx, const Sequences& seq, Index heads) const {
        kda_fused_forward(ctx, seq, {heads, chunk}, input(), o, {}, states);
    }
    void backward(const Context<Cuda>& ctx, const Sequences& seq, Index heads) const {
        kda_fused_backward(ctx, seq, {heads, chunk}, input(), states, d_o, {},
                           KdaRawGradient<T>{dq, dk, dv, dz, db, dA_log, ddt_bias});
    }
};

double median_ms(const Context<Cuda>& ctx, const std::function<void(int)>& call) {
    constexpr int warm = 5, repeats = 30;
    cudaEvent_t begin, end;
    KIMIK3_CUDA(cudaEventCreate(&begin));
    KIMIK3_CUDA(cudaEventCreate(&end));
    std::vector<float> times;
    for (int i = 0; i < warm + repeats; ++i) {
        KIMIK3_CUDA(cudaEventRecord(begin, ctx.stream()));
        call(i);
        KIMIK3_CUDA(cudaEventRecord(end, ctx.stream()));
        KIMIK3_CUDA(cudaEventSynchronize(end));
        float ms = 0;
        KIMIK3_CUDA(cudaEventElapsedTime(&ms, begin, end));
        if (i >= warm) times.push_back(ms);
    }
    std::ranges::sort(times);
    return static_cast<double>(times[times.size() / 2]);
}

void report(const char* name, double ms, double floor_ms, const char* json) {
    std::printf("%-34s %8.4f ms   floor %8.4f   %5.1f %%\n", name, ms, floor_ms, 100 * floor_ms / ms);
    if (json == nullptr) return;
    if (std::FILE* file = std::fopen(json, "a")) {
        std::fprintf(file, "{\"name\": \"%s\", \"ms\": %.5f, \"floor_ms\": %.5f}\n", name, ms, floor_ms);
        std::fclose(file);
    }
}

template <class T, class U>
void compare(const Context<Cuda>& ctx, const char* name, MatrixView<T> found, MatrixView<U> expected) {
    std::vector<T> a;
    std::vector<U> b;
    on_host(ctx, MatrixView<const T>(found), a), on_host(ctx, MatrixView<const U>(expected), b);
    double error = 0, size = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
        const double x = static_cast<double>(static_cast<float>(a[i])), y = static_cast<double>(b[i]);
        error += (x - y) * (x - y), size += y * y;
    }
    std::printf("  %-8s error %.2e (norm %.3g)\n", name, std::sqrt(error / size), std::sqrt(size));
}

void check(const Context<Cuda>& ctx, const Case& c, bool backward) {
    const Sequences seq = Sequences::uniform(c.sequences, c.tokens / c.sequences);
    const Set<bf16> half(ctx, c, seq, 1);
    const Set<float> whole(ctx, c, seq, 1);
    half.forward(ctx, seq, c.heads), whole.forward(ctx, seq, c.heads);
    compare(ctx, "o", half.o, whole.o);
    if (!backward) return;
    half.backward(ctx, seq, c.heads), whole.backward(ctx, seq, c.heads);
    compare(ctx, "dq", half.dq, whole.dq), compare(ctx, "dk", half.dk, whole.dk), compare(ctx, "dv", half.dv, whole.dv);
    compare(ctx, "dz", half.dz, whole.dz), compare(ctx, "db", half.db, whole.db);
    const auto row = [](VectorView<float> v) { return MatrixView<float>(v.data, 1, v.size); };
    compare(ctx, "dA_log", row(half.dA_log), row(whole.dA_log));
    compare(ctx, "ddt_bias", row(half.ddt_bias), row(whole.ddt_bias));
}

}  // namespace

int main(int argc, char** argv) {
    const char* json = nullptr;
    bool checks = false, backward = true;
    for (int i = 1; i < argc; ++i) {
        if (std::strcmp(argv[i], "--json") == 0 && i + 1 < argc) json = argv[++i];
        if (std::strcmp(argv[i], "--check") == 0) checks = true;
        if (std::strcmp(argv[i], "--forward") == 0) backward = false;
    }
    const Context<Cuda> ctx;
    for (const Case& c : cases) {
        const Sequences seq = Sequences::uniform(c.sequences, c.tokens / c.sequences);
        const Index bytes = c.tokens * c.heads * width * 10,
                    sets = (std::clamp)(ceil_div(180 << 20, bytes), Index{1}, Index{24});
        std::vector<Set<bf16>> rotated;
        for (Index s = 0; s < sets; ++s) rotated.emplace_back(ctx, c, seq, static_cast<unsigned>(10 * s));
        const auto set = [&](int i) -> const Set<bf16>& { return rotated[to_size(i % sets)]; };
        const double unit_ms = static_cast<double>(c.tokens * c.heads) * 1e-6;
        const double forward = median_ms(ctx, [&](int i) { set(i).forward(ctx, seq, c.heads); });
        report(fmt::format("KDA forward {}", c.name).c_str(), forward, 0.30 * unit_ms, json);
        if (!c.training || !backward) continue;
        const double both =
            median_ms(ctx, [&](int i) { set(i).forward(ctx, seq, c.heads), set(i).backward(ctx, seq, c.heads); });
        report(fmt::format("KDA forward + backward {}", c.name).c_str(), both, 0.92 * unit_ms, json);
    }
    if (checks) check(ctx, cases[0], backward);
}
