// Stable LatentMoE's operations in bf16 on one GPU at the sizes of k3_300m: 32,768 tokens of width 640, 64 experts of
// which each takes 4, latent 320, expert width 288.
//   experts [--json FILE] [--only TEXT]

#include "timing.cuh"
#include "kimik3/core/rng.hpp"
#include "kimik3/ops/cuda/expert_dispatch.cuh"
#include "kimik3/ops/cuda/expert_products.cuh"
#include "kimik3/ops/cuda/quantile_balance.cuh"
#include "kimik3/ops/cuda/router.cuh"

using namespace kimik3;
using namespace kimik3::bench;

namespace {

constexpr Index tokens = 32768, width = 640, experts = 64, chosen = 4, latent = 320, inner = 288;
constexpr double pairs = tokens * chosen;

/// The choice of each token, evenly spread or mostly among few of the experts.
std::vector<std::int32_t> choices(bool skewed) {
    std::vector<std::int32_t> all;
    Philox numbers(5);
    for (Index n = 0; n < tokens; ++n) {
        std::vector<std::int32_t> own;
        while (own.size() < to_size(chosen)) {
            const double u = numbers.uniform();
            const auto e = static_cast<std::int32_t>(static_cast<double>(experts) * (skewed ? u * u * u : u));
            if (std::ranges::find(own, e) == own.end()) own.push_back(e);
        }
        all.insert(all.end(), own.begin(), own.end());
    }
    return all;
}

void route(Table& table) {
    const Context<Cuda>& ctx = context();
    const Numbers<bf16> x(tokens, width, 1), dx(tokens, width, 2);
    const Numbers<float> w(experts, width, 3, 0.02f), bias(1, experts, 4, 0.03f), scores(tokens, experts),
        weights(tokens, chosen), cutoff(1, tokens), dw(experts, width, 5);
    const Buffer<std::int32_t, Cuda> ids(tokens * chosen);
    const MatrixView<std::int32_t> choice(ids.data(), tokens, chosen);
    const RouterRule rule{true, 2.5};
    const double product = 2.0 * tokens * width * experts, in = 2.0 * tokens * width, wide = 4.0 * tokens * experts;
    const auto row = [&](const char* name, double bytes, double flops, auto&& run) {
        if (table.wants(name)) table.add(name, median_ms(4, [&](int) { run(); }), bytes, flops);
    };
    const auto forward = [&] {
        router_forward(ctx, x.view, w.view, bias.vector(), rule, scores.view, choice, weights.view, cutoff.vector());
    };
    forward();
    row("router forward", in + wide, product, forward);
    const Buffer<std::int64_t, Cuda> counts(experts * (Balance::bins + 1));
    const Balance balance{MatrixView<std::int64_t>(counts.data(), experts, Balance::bins),
                          VectorView<std::int64_t>(counts.data() + experts * Balance::bins, experts)};
    row("balance count", wide, 0, [&] {
        balance_count<float>(ctx, scores.view, cutoff.vector(), choice, bias.vector(), {}, balance);
    });
    row("balance count of 64 tokens, update", 16.0 * experts * Balance::bins, 0, [&] {
        balance_count<float>(ctx, scores.view.middle_rows(0, 64), VectorView<float>(cutoff.view.data, 64),
                             choice.middle_rows(0, 64), bias.vector(), {}, balance);
        balance_update(ctx, balance, chosen, bias.vector());
    });
    row("router backward", 3 * in + wide, 2 * 2.0 * tokens * width * chosen, [&] {
        router_backward<bf16>(ctx, x.view, w.view, rule, choice, weights.view, scores.view, dx.view, dw.view);
    });
}

void work(Table& table, bool skewed) {
    const Context<Cuda>& ctx = context();
    const Buffer<std::int32_t, Cuda> ids(tokens * chosen);
    const MatrixView<std::int32_t> choice(ids.data(), tokens, chosen);
    const std::vector<std::int32_t> host = choices(skewed);
    copy_from_host(ctx, std::span<const std::int32_t>(host), ids.view());
    const Index most = ExpertDispatch::max_rows(tokens, chosen, experts);
    const Buffer<Index, Cuda> offset(experts + 1), source(most), position(tokens * chosen);
    const ExpertDispatch d{offset.view(), source.view(), MatrixView<Index>(position.data(), tokens, chosen)};
    const auto row = [&](const char* name, double bytes, double flops, auto&& run) {
        const std::string whole = fmt::format("{}, {}", name, skewed ? "skewed" : "balanced");
        if (table.wants(whole)) table.add(whole, median_ms(2, [&](int) { run(); }), bytes, flops);
    };
    const auto dispatch = [&] { expert_dispatch(ctx, choice, d); };
    dispatch();
    row("dispatch", 4.0 * pairs + 16.0 * pairs, 0, dispatch);

    const Numbers<bf16> z(tokens, latent, 1), du(tokens, latent, 2), w1(experts * inner, latent, 3, 0.05f),
        w3(experts * inner, latent, 4, 0.05f), w2(experts * latent, inner, 5, 0.05f), u(tokens, latent),
        dz(tokens, latent), gate(most, inner), up(most, inner);
    const Numbers<float> p(tokens, chosen, 6), dw1(experts * inner, latent, 7), dw3(experts * inner, latent, 8),
        dw2(experts * latent, inner, 9);
    const ExpertRows<Cuda, bf16> saved{gate.view, up.view};
    const SituBetas betas{4.0, 25.0};
    const double product = 2.0 * pairs * latent * inner, rows = 2.0 * pairs, latents = 2.0 * tokens * latent,
                 weights = 2.0 * 3 * experts * latent * inner;
    // Forward writes gate and up, backward reads them and adds to the weights' gradients in float32.
    row("experts forward", 2 * latents + weights + 2 * rows * inner, 3 * product, [&] {
        expert_products_forward(ctx, z, w1, w3, w2, betas, d, p, saved, u.view);
    });
    row("experts backward", 3 * latents + weights + 2 * rows * inner + 4 * weights, 6 * product, [&] {
        expert_products_backward(ctx, z, du, w1, w3, w2, betas, d, saved, p.view, dz.view, dw1.view, dw3.view,
                                 dw2.view);
    });
}

}  // namespace

int main(int argc, char** argv) {
    Table table(argc, argv);
    route(table);
    for (const bool skewed : {false, true}) work(table, skewed);
    return 0;
}
