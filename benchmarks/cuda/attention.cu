// Attention in bf16 on the GPU at the sizes of preset k3_300m: forward, backward, and decoding at several pasts and
// batches, against floors: the products of causal pairs at 790 TFLOP/s, or the bytes of the cache at 4.3 TB/s.
//   attention [--json FILE]    one line a case: {"name", "ms", "floor_ms"}

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "kimik3/ops/cuda/causal_attention.cuh"
#include "kimik3/ops/cuda/latent_attention.cuh"

namespace {

using namespace kimik3;

constexpr double product_rate = 790e12, byte_rate = 4.3e12;

void fill(const Context<Cuda>& ctx, VectorView<bf16> to, std::uint32_t seed) {
    gpu::for_each(ctx, to.size, [=] __device__(Index i) {
        std::uint32_t bits = static_cast<std::uint32_t>(i) * 2654435761u + seed * 40503u;
        for (int turn = 0; turn < 3; ++turn) bits = (bits ^ (bits >> 15)) * 2246822519u;
        to[i] = static_cast<bf16>(static_cast<float>(bits >> 8) * 0x1p-23f - 1.0f);
    });
}

/// A matrix of numbers in (-1, 1).
struct Numbers {
    Buffer<bf16, Cuda> memory;
    MatrixView<bf16> view;

    Numbers(const Context<Cuda>& ctx, Index rows, Index cols, std::uint32_t seed)
        : memory(rows * cols), view(memory.data(), rows, cols) {
        fill(ctx, memory.view(), seed);
    }
};

/// Milliseconds of one of the calls that body makes, by a recording of all.
double time_ms(const Context<Cuda>& ctx, int calls, const std::function<void()>& body) {
    body();
    const auto recording = ctx.record(body);
    cudaEvent_t start, end;
    KIMIK3_CUDA(cudaEventCreate(&start));
    KIMIK3_CUDA(cudaEventCreate(&end));
    std::vector<float> times;
    for (int repeat = 0; repeat < 25; ++repeat) {
        KIMIK3_CUDA(cudaEventRecord(start, ctx.stream()));
        recording.start();
        KIMIK3_CUDA(cudaEventRecord(end, ctx.stream()));
        KIMIK3_CUDA(cudaEventSynchronize(end));
        float ms = 0;
        KIMIK3_CUDA(cudaEventElapsedTime(&ms, start, end));
        if (repeat >= 3) times.push_back(ms);
    }
    cudaEventDestroy(start), cudaEventDestroy(end);
    std::ranges::sort(times);
    return static_cast<double>(times[times.size() / 2]) / calls;
}

class Table {
public:
    explicit Table(const char* json) : json_(json == nullptr ? nullptr : std::fopen(json, "w")) {
        std::printf("%-28s %10s %10s %8s %12s\n", "case", "ms", "floor ms", "% floor", "rate");
    }
    ~Table() {
        if (json_ != nullptr) std::fclose(json_);
    }
    void add(const std::string& name, double ms, double flops, double bytes) {
        const bool by_flops = flops / product_rate > bytes / byte_rate;
        const double floor = 1e3 * (by_flops ? flops / product_rate : bytes / byte_rate);
        std::printf("%-28s %10.4f %10.4f %8.1f %7.2f %s\n", name.c_str(), ms, floor, 100 * floor / ms,
                    (by_flops ? flops : bytes) / ms * 1e-9, by_flops ? "TFLOP/s" : "TB/s");
        if (json_ != nullptr)
            std::fprintf(json_, "{\"name\": \"%s\", \"ms\": %.6f, \"floor_ms\": %.6f}\n", name.c_str(), ms, floor);
    }

private:
    std::FILE* json_;
};

constexpr MlaHeads heads{5, 128, 64, 128};
constexpr Index latent = 128;

void training(const Context<Cuda>& ctx, Table& table, Index batch, Index length) {
    const Sequences seq = Sequences::uniform(batch, length);
    const Index n = seq.tokens(), h = heads.count;
    const Numbers q(ctx, n, h * heads.key(), 1), kv(ctx, n, h * (heads.nope + heads.value), 2),
        low(ctx, n, latent + heads.shared, 3), d_o(ctx, n, h * heads.value, 4), o(ctx, n, h * heads.value, 5),
        dq(ctx, n, h * heads.key(), 6), dkv(ctx, n, h * (heads.nope + heads.value), 7), dlow(ctx, n, latent + heads.shared, 8);
    const MatrixView<bf16> shared = low.view.middle_cols(latent, heads.shared),
                           dshared = dlow.view.middle_cols(latent, heads.shared);
    const Buffer<float, Cuda> lse_memory(n * h);
    const MatrixView<float> lse(lse_memory.data(), n, h);
    const double pairs = static_cast<double>(h * batch) * static_cast<double>(length * (length + 1) / 2);
    const double wide = static_cast<double>(heads.key()), deep = static_cast<double>(heads.value);
    const std::string at = " B" + std::to_string(batch) + " T" + std::to_string(length);
    const double forward = time_ms(
        ctx, 1, [&] { causal_attention_forward(ctx, seq, heads, q.view, kv.view, shared, o.view, lse); });
    table.add("forward" + at, forward, 2 * pairs * (wide + deep), 0);
    const double backward = time_ms(ctx, 1, [&] {
        causal_attention_backward(ctx, seq, heads, d_o.view, q.view, kv.view, shared, o.view, lse, dq.view, dkv.view,
                                  dshared);
    });
    table.add("backward" + at, backward, 2 * pairs * (3 * wide + 2 * deep), 0);
}

void decoding(const Context<Cuda>& ctx, Table& table, const MlaHeads& sizes, Index width, Index batch, Index past) {
    std::vector<Index> offsets(to_size(batch + 1));
    for (Index s = 0; s <= batch; ++s) offsets[to_size(s)] = s;
    const Sequences seq(offsets, {}, std::vector<Index>(to_size(batch), past - 1));
    const Index row = width + sizes.shared, size = batch * past * row;
    const int sets = static_cast<int>(std::clamp(Index{100'000'000} / size, Index{2}, Index{64}));
    const Numbers cache(ctx, sets * batch, past * row, 1), q_lat(ctx, batch, sizes.count * width, 2),
        q(ctx, batch, sizes.count * sizes.key(), 3), o(ctx, batch, sizes.count * width, 4);
    const double ms = time_ms(ctx, sets, [&] {
        for (Index s = 0; s < sets; ++s)
            latent_attention(ctx, seq, sizes, q_lat.view, q.view, cache.view.middle_rows(s * batch, batch), o.view);
    });
    table.add("decode " + std::to_string(width) + "+" + std::to_string(sizes.shared) + " H" + std::to_string(sizes.count) +
                  " B" + std::to_string(batch) + " past " + std::to_string(past),
              ms, 0, 2.0 * static_cast<double>(size));
}

}  // namespace

int main(int argc, char** argv) {
    const char* json = argc > 2 && std::strcmp(argv[1], "--json") == 0 ? argv[2] : nullptr;
    const Context<Cuda> ctx;
    Table table(json);
    training(ctx, table, 16, 2048);
    training(ctx, table, 4, 8192);
    for (const Index batch : {1, 8, 64})
        for (const Index past : {2048, 16384}) decoding(ctx, table, heads, latent, batch, past);
    decoding(ctx, table, {16, 128, 64, 128}, 512, 1, 16384);
    decoding(ctx, table, {16, 128, 64, 128}, 512, 64, 2048);
}
