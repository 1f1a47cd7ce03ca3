// The memory-bound operations at the shapes of preset k3_300m and 32,768 tokens, in bf16: forward and backward against
// the time in which a copy moves as many bytes as the operation must: at the rate of a large copy ("percent"), and as a
// copy of just so many bytes takes, which starts and ends as the operation does ("of copy").
// rows [--only TEXT] [--json FILE]

#include <cmath>

#include "kimik3/core/rng.hpp"
#include "kimik3/ops/cuda/add.cuh"
#include "kimik3/ops/cuda/attn_res.cuh"
#include "kimik3/ops/cuda/cross_entropy.cuh"
#include "kimik3/ops/cuda/embedding.cuh"
#include "kimik3/ops/cuda/gated_norm.cuh"
#include "kimik3/ops/cuda/l2_norm.cuh"
#include "kimik3/ops/cuda/rms_norm.cuh"
#include "kimik3/ops/cuda/short_conv.cuh"
#include "kimik3/ops/cuda/sigmoid_gate.cuh"
#include "kimik3/ops/cuda/situ.cuh"
#include "timing.cuh"

namespace {

using namespace kimik3;
using namespace kimik3::bench;

constexpr Index tokens = 32768, hidden = 640;

/// count matrices [rows, cols] of their own for each set.
template <class T>
class Sets {
public:
    Sets(int sets, int count, Index rows, Index cols) : count_(count) {
        for (int m = 0; m < sets * count; ++m) memory_.emplace_back(rows, cols, static_cast<std::uint64_t>(m + 1));
    }
    MatrixView<T> operator()(int set, int m) const { return memory_[to_size(set * count_ + m)].view; }

private:
    int count_;
    std::vector<Numbers<T>> memory_;
};

double bytes_of(Index rows, Index cols, int matrices, Index size = 2) {
    return static_cast<double>(rows * cols * size * matrices);
}
std::string shape(const char* name, Index rows, Index cols) { return fmt::format("{} {} x {}", name, rows, cols); }

/// Times run(set, matrices) where the sets hold count matrices [rows, cols], each moved once.
template <class Run>
void measure(Table& table, const std::string& name, int count, Index rows, Index cols, double more_bytes, Run run) {
    if (!table.wants(name)) return;
    const double bytes = bytes_of(rows, cols, count) + more_bytes;
    const int sets = sets_for(bytes);
    const Sets<bf16> m(sets, count, rows, cols);
    table.add(name, median_ms(sets, [&](int set) { run(set, m); }), bytes, 0.0, copy_ms(bytes));
}

void norms(Table& table) {
    const auto& ctx = context();
    for (const Index width : {hidden, Index{320}, Index{256}, Index{128}}) {
        const Numbers<float> w(1, width), r(1, tokens, 2, 0.1f, 1.0f), dw(1, width);
        measure(table, shape("rms_norm forward", tokens, width), 2, tokens, width, 4.0 * tokens, [&](int s, auto& m) {
            rms_norm_forward(ctx, m(s, 0), w, 1e-5, m(s, 1), r.vector());
        });
        measure(table, shape("rms_norm backward", tokens, width), 3, tokens, width, 4.0 * tokens, [&](int s, auto& m) {
            rms_norm_backward(ctx, m(s, 0), m(s, 1), w, r, m(s, 2), dw.vector());
        });
    }
    const Index heads = 5, width = hidden / heads;
    const Numbers<float> w(1, width), r(tokens, heads, 2, 0.1f, 1.0f), dw(1, width);
    const double statistics = 4.0 * tokens * heads;
    measure(table, "gated_norm forward 5 x 128", 3, tokens, hidden, statistics, [&](int s, auto& m) {
        gated_norm_forward(ctx, heads, m(s, 0), m(s, 1), w, 1e-5, m(s, 2), r.view);
    });
    measure(table, "gated_norm backward 5 x 128", 5, tokens, hidden, statistics, [&](int s, auto& m) {
        gated_norm_backward(ctx, heads, m(s, 0), m(s, 1), m(s, 2), w, r, m(s, 3), m(s, 4), dw.vector());
    });
    measure(table, "l2_norm forward 5 x 128", 2, tokens, hidden, statistics, [&](int s, auto& m) {
        l2_norm_forward(ctx, heads, m(s, 0), m(s, 1), r.view);
    });
    measure(table, "l2_norm backward 5 x 128", 3, tokens, hidden, statistics, [&](int s, auto& m) {
        l2_norm_backward(ctx, heads, m(s, 0), m(s, 1), r, m(s, 2));
    });
}

void elementwise(Table& table) {
    const auto& ctx = context();
    measure(table, shape("add", tokens, hidden), 3, tokens, hidden, 0.0,
            [&](int s, auto& m) { add_to(ctx, m(s, 0), m(s, 1)); });
    measure(table, shape("sigmoid_gate forward", tokens, hidden), 3, tokens, hidden, 0.0,
            [&](int s, auto& m) { sigmoid_gate_forward(ctx, m(s, 0), m(s, 1), m(s, 2)); });
    measure(table, shape("sigmoid_gate backward", tokens, hidden), 5, tokens, hidden, 0.0, [&](int s, auto& m) {
        sigmoid_gate_backward(ctx, m(s, 0), m(s, 1), m(s, 2), m(s, 3), m(s, 4));
    });
    for (const Index width : {Index{576}, Index{3072}}) {
        const SituBetas betas{4.0, 25.0};
        measure(table, shape("situ forward", tokens, width), 3, tokens, width, 0.0,
                [&](int s, auto& m) { situ_forward(ctx, m(s, 0), m(s, 1), betas, m(s, 2)); });
        measure(table, shape("situ backward", tokens, width), 5, tokens, width, 0.0, [&](int s, auto& m) {
            situ_backward(ctx, m(s, 0), m(s, 1), m(s, 2), betas, m(s, 3), m(s, 4));
        });
    }
}

void mixtures(Table& table) {
    const auto& ctx = context();
    const Numbers<float> gamma(1, hidden), pi(1, hidden, 2, 0.1f), w(1, hidden), norm_r(1, tokens, 3, 0.1f, 1.0f);
    const Numbers<float> dgamma(1, hidden), dpi(1, hidden), dw(1, hidden);
    for (const int count : {2, 3, 4, 5, 6, 8}) {
        const Numbers<float> p(tokens, count, 4, 0.02f, 1.0f / static_cast<float>(count)),
            r(tokens, count, 5, 0.1f, 1.0f);
        const double statistics = 8.0 * tokens * count + 4.0 * tokens;
        const auto candidates = [&](int s, auto& m, int first) {
            Candidates<bf16> all;
            for (int j = 0; j < count; ++j) all.add(m(s, first + j));
            return all;
        };
        const auto read_only = [](const Candidates<bf16>& all) {
            Candidates<const bf16> same;
            for (Index j = 0; j < all.count; ++j) same.add(all.view[j]);
            return same;
        };
        measure(table, fmt::format("attn_res forward, {} candidates", count), count + 1, tokens, hidden, statistics,
                [&](int s, auto& m) {
                    attn_res_forward(ctx, read_only(candidates(s, m, 1)), gamma, pi, 1e-5, m(s, 0), p.view, r.view);
                });
        measure(table, fmt::format("attn_res_norm forward, {} candidates", count), count + 1, tokens, hidden,
                statistics, [&](int s, auto& m) {
                    attn_res_norm_forward(ctx, read_only(candidates(s, m, 1)), gamma, pi, 1e-5, w, 1e-5,
                                          MatrixView<bf16>(m(s, 0)), m(s, 0), p.view, r.view, norm_r.vector());
                });
        // v is read, dv read and written
        measure(table, fmt::format("attn_res_norm backward, {} candidates", count), 1 + 2 * count, tokens, hidden,
                statistics + bytes_of(tokens, hidden, count), [&](int s, auto& m) {
                    attn_res_norm_backward(ctx, m(s, 0), read_only(candidates(s, m, 1)), gamma, pi, w, p, r, norm_r,
                                           MatrixView<bf16>(m(s, 0)), candidates(s, m, 1 + count), dgamma.vector(),
                                           dpi.vector(), dw.vector(), m(s, 0));
                });
    }
}

void convolutions(Table& table) {
    const auto& ctx = context();
    const Sequences seq = Sequences::uniform(16, tokens / 16);
    const Numbers<float> w(hidden, 4, 1, 0.5f), dw(hidden, 4);
    measure(table, "short_conv forward 32768 x 640", 2, tokens, hidden, 0.0, [&](int s, auto& m) {
        short_conv_forward(ctx, seq, m(s, 0), w, MatrixView<const float>{}, m(s, 1), MatrixView<float>{});
    });
    measure(table, "short_conv backward 32768 x 640", 3, tokens, hidden, 0.0, [&](int s, auto& m) {
        const MatrixView<float> none;
        short_conv_backward(ctx, seq, m(s, 0), m(s, 1), w, none, none, m(s, 2), dw.view, none);
    });
}

/// ids as words of a language come: the k-th most frequent 1/k as often as the first, in a fixed random order.
Buffer<std::int32_t, Cuda> zipf_ids(Index count, Index vocab) {
    std::vector<double> below(to_size(vocab));
    double sum = 0.0;
    for (Index k = 0; k < vocab; ++k) below[to_size(k)] = sum += 1.0 / static_cast<double>(k + 1);
    Philox numbers(7);
    std::vector<std::int32_t> ids;
    for (Index n = 0; n < count; ++n) {
        const auto at = std::ranges::upper_bound(below, numbers.uniform() * sum) - below.begin();
        ids.push_back(static_cast<std::int32_t>((std::min)(Index{at}, vocab - 1) * 7919 % vocab));
    }
    Buffer<std::int32_t, Cuda> memory(count);
    copy_from_host(context(), ids, memory.view());
    return memory;
}

void vocabulary(Table& table) {
    const auto& ctx = context();
    const Index vocab = 49152;
    const Buffer<std::int32_t, Cuda> ids = zipf_ids(tokens, vocab);
    const std::span<const std::int32_t> all(ids.data(), to_size(tokens));
    const Numbers<bf16> words(vocab, hidden);
    const Numbers<float> dwords(vocab, hidden);
    measure(table, "embedding forward 32768 x 640", 2, tokens, hidden, 0.0,
            [&](int s, auto& m) { embedding_forward(ctx, all, words, m(s, 1)); });
    std::vector<std::int32_t> seen;
    for (std::int32_t id : on_host(ctx, VectorView<const std::int32_t>(ids.view()), seen)) (void)id;
    std::ranges::sort(seen);
    const double rows = static_cast<double>(std::ranges::unique(seen).begin() - seen.begin());
    measure(table, fmt::format("embedding backward, {} ids", rows), 1, tokens, hidden, rows * hidden * 8.0,
            [&](int s, auto& m) { embedding_backward(ctx, all, m(s, 0), dwords.view); });
    for (const Index rows : {512, 2048, 4096}) {
        const Numbers<float> loss(1, rows);
        const auto targets = all.first(to_size(rows));
        const double bytes = bytes_of(rows, vocab, 1);
        measure(table, shape("cross_entropy", rows, vocab), 1, rows, vocab, 0.0,
                [&](int s, auto& m) { cross_entropy(ctx, m(s, 0), targets, loss.vector()); });
        measure(table, shape("cross_entropy backward", rows, vocab), 1, rows, vocab, bytes,
                [&](int s, auto& m) { cross_entropy_backward(ctx, m(s, 0), targets, 1.0 / tokens, loss.vector()); });
    }
}

}  // namespace

int main(int argc, char** argv) {
    Table table(argc, argv);
    norms(table);
    elementwise(table);
    mixtures(table);
    convolutions(table);
    vocabulary(table);
}
