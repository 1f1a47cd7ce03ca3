#include <boost/test/unit_test.hpp>

#include "conformance/device.hpp"
#include "kimik3/ops/cpu/expert_dispatch.hpp"
#include "kimik3/ops/cpu/expert_products.hpp"
#include "kimik3/ops/cpu/quantile_balance.hpp"
#include "kimik3/ops/cpu/router.hpp"
#include "kimik3/ops/cuda/expert_dispatch.cuh"
#include "kimik3/ops/cuda/expert_products.cuh"
#include "kimik3/ops/cuda/quantile_balance.cuh"
#include "kimik3/ops/cuda/router.cuh"

using namespace kimik3;
using namespace kimik3::test;

namespace {

struct Shape {
    Index tokens, experts, chosen, latent, inner;
};
const Shape shapes[] = {{0, 4, 2, 5, 7},      {1, 8, 2, 24, 20},  {5, 8, 3, 33, 7},     {37, 8, 2, 24, 20},
                        {130, 65, 4, 33, 41}, {300, 3, 1, 5, 33}, {37, 8, 2, 24, 16},   {130, 65, 4, 72, 40},
                        {700, 5, 2, 320, 288}, {900, 3, 1, 8, 96}, {300, 64, 4, 168, 152},
                        {300, 4, 2, 392, 360}};

/// By norm: what bf16 left of a result that is kept in float32.
void check_near(const char* name, Both& m, double tolerance) {
    const auto found = m.found();
    const auto expected = m.expected();
    double error = 0, size = 1e-30;
    for (std::size_t i = 0; i < found.size(); ++i) {
        const double apart = static_cast<double>(found[i]) - expected[i];
        error += apart * apart, size += expected[i] * expected[i];
    }
    error = std::sqrt(error / size);
    BOOST_CHECK_MESSAGE(error <= tolerance, name << ": relative error by norm " << error << ", allowed " << tolerance);
}

/// Activations is Both or Half.
template <class Activations>
void check_router(const Shape& shape, RouterRule rule, Index width, Index gap) {
    const Index n = shape.tokens, e = shape.experts, k = shape.chosen;
    Activations x = Activations::random(n, width, 1, 1.0, gap), dx = Activations::random(n, width, 5, 1.0, gap);
    Both w = Both::random(e, width, 2, 0.2, gap), bias = vector_of(e, 3, 0.2), scores(n, e), weights(n, k),
         cutoff = empty_vector(n);
    Ids experts(n, k);
    router_forward(cpu(), x.c(), w.c(), bias.cv(), rule, scores.c(), experts.c(), weights.c(), cutoff.cv());
    router_forward(cuda(), x.g(), w.g(), bias.gv(), rule, scores.g(), experts.g(), weights.g(), cutoff.gv());
    check_equal("experts", experts), check_same("scores", scores), check_same("weights", weights),
        check_same("cutoff", cutoff);
    Both dweights = Both::random(n, k, 4), dw = Both::random(e, width, 6);
    router_backward(cpu(), x.c(), w.c(), rule, experts.c(), dweights.c(), scores.c(), dx.c(), dw.c());
    router_backward(cuda(), x.g(), w.g(), rule, experts.g(), dweights.g(), scores.g(), dx.g(), dw.g());
    check_same("dw", dw, 1e-4);
    if constexpr (std::is_same_v<Activations, Both>) check_same("dx", dx, 1e-4);
    else check_same("dx", dx);
}

template <class Activations>
void check_products(const Shape& shape, SituBetas betas, Index gap) {
    constexpr bool half = std::is_same_v<Activations, Half>;
    const Index n = shape.tokens, e = shape.experts, k = shape.chosen, latent = shape.latent, inner = shape.inner,
                most = ExpertDispatch::max_rows(n, k, e);
    Ids experts(n, k);
    Philox numbers(7);
    for (Index t = 0; t < n; ++t) {
        const Index first = static_cast<Index>(numbers.uniform() * numbers.uniform() * static_cast<double>(e));
        for (Index j = 0; j < k; ++j) experts.host(t, j) = static_cast<std::int32_t>((first + j * j) % e);
    }
    experts.send();
    using Rows = Pair<Index, Index>;
    Rows offset(1, e + 1, 0), source(1, most, 0), position(n, k);
    const ExpertDispatch dc{offset.cv(), source.cv(), position.c()}, dg{offset.gv(), source.gv(), position.g()};
    expert_dispatch(cpu(), experts.c(), dc), expert_dispatch(cuda(), experts.g(), dg);
    check_equal("offset", offset), check_equal("source", source), check_equal("position", position);

    const auto numbers_of = [&](Index rows, Index cols, std::uint64_t seed, double scale = 1.0) {
        return Activations::random(rows, cols, seed, scale, gap);
    };
    Activations z = numbers_of(n, latent, 1), w1 = numbers_of(e * inner, latent, 2, 0.3),
                w3 = numbers_of(e * inner, latent, 3, 0.3), w2 = numbers_of(e * latent, inner, 4, 0.3),
                du = numbers_of(n, latent, 6);
    Activations gate(most, inner, gap), up(most, inner, gap), u(n, latent, gap), dz(n, latent, gap);
    Matrix<double> rows(most, latent), hidden(most, inner), out(most, latent);
    Both p = Both::random(n, k, 5);
    Both dw1 = Both::random(e * inner, latent, 7), dw3 = Both::random(e * inner, latent, 8),
         dw2 = Both::random(e * latent, inner, 9);
    const ExpertRows<Cpu, double> sc{rows, gate.c(), up.c(), hidden, out};
    using Gpu = std::conditional_t<half, bf16, float>;
    const ExpertRows<Cuda, Gpu> sg{gate.g(), up.g()};
    expert_products_forward(cpu(), z.c(), w1.c(), w3.c(), w2.c(), betas, dc, p.c(), sc, u.c());
    expert_products_forward(cuda(), z.g(), w1.g(), w3.g(), w2.g(), betas, dg, p.g(), sg, u.g());
    expert_products_backward(cpu(), z.c(), du.c(), w1.c(), w3.c(), w2.c(), betas, dc, sc, p.c(), dz.c(), dw1.c(),
                             dw3.c(), dw2.c());
    expert_products_backward(cuda(), z.g(), du.g(), w1.g(), w3.g(), w2.g(), betas, dg, sg, p.g(), dz.g(), dw1.g(),
                             dw3.g(), dw2.g());
    if constexpr (half) {
        check_same("u", u, 6e-3), check_same("dz", dz, 8e-3), check_near("dp", p, 6e-3);
        check_near("dw1", dw1, 6e-3), check_near("dw3", dw3, 6e-3), check_near("dw2", dw2, 6e-3);
    } else {
        check_same("u", u), check_same("dz", dz), check_same("dp", p);
        check_same("dw1", dw1), check_same("dw3", dw3), check_same("dw2", dw2);
    }
}

}  // namespace

BOOST_AUTO_TEST_SUITE(conformance_experts)

BOOST_AUTO_TEST_CASE(router) {
    for (const Shape& shape : shapes)
        for (const RouterRule rule : {RouterRule{true, 2.5}, RouterRule{false, 1.0}}) {
            BOOST_TEST_CONTEXT(shape.tokens << " tokens, " << shape.experts << " experts") {
                check_router<Both>(shape, rule, 48, 3);
                check_router<Half>(shape, rule, 48, 3);
                check_router<Half>(shape, rule, 48, 8);
                check_router<Half>(shape, rule, 328, 8);
                check_router<Half>(shape, rule, 37, 3);
            }
        }
}

BOOST_AUTO_TEST_CASE(a_nan_breaks_its_own_token_alone) {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    Pair<float, float> x = Pair<float, float>::random(3, 8, 1), w = Pair<float, float>::random(5, 8, 2),
                       bias = Pair<float, float>::zeros(1, 5, 0);
    x.host(1, 0) = nan, x.send();
    Pair<float, float> scores(3, 5), weights(3, 2), cutoff(1, 3, 0);
    Ids experts(3, 2);
    router_forward(cuda(), x.g(), w.g(), bias.gv(), RouterRule{true, 1.0}, scores.g(), experts.g(), weights.g(),
                   cutoff.gv());
    const auto chosen = experts.found();
    const auto limit = cutoff.found();
    BOOST_CHECK(limit[0] == limit[0] && limit[1] != limit[1] && limit[2] == limit[2]);
    BOOST_CHECK(chosen[2] != chosen[3] && chosen[2] >= 0 && chosen[2] < 5 && chosen[3] >= 0 && chosen[3] < 5);
}

BOOST_AUTO_TEST_CASE(dispatch_and_products) {
    for (const Shape& shape : shapes) {
        BOOST_TEST_CONTEXT(shape.tokens << " tokens, " << shape.experts << " experts, latent " << shape.latent) {
            const SituBetas betas = shape.chosen % 2 == 0 ? SituBetas{4.0, 25.0} : SituBetas::swiglu();
            check_products<Both>(shape, betas, 3);
            check_products<Half>(shape, betas, 3);
            check_products<Half>(shape, betas, 8);
        }
    }
}

BOOST_AUTO_TEST_CASE(quantile_balancing) {
    using Floats = Pair<float, float>;
    using Counts = Pair<std::int64_t, std::int64_t>;
    for (const Shape& shape : shapes) {
        const Index n = shape.tokens, e = shape.experts, k = shape.chosen;
        Floats x = Floats::random(n, 8, 1), w = Floats::random(e, 8, 2), bias = Floats::random(1, e, 3, 0.2, 0),
               scores(n, e), weights(n, k), cutoff(1, n, 0);
        Ids experts(n, k);
        router_forward(cpu(), x.c(), w.c(), bias.cv(), RouterRule{true, 1.0}, scores.c(), experts.c(), weights.c(),
                       cutoff.cv());
        scores.send(), cutoff.send(), experts.send();
        Counts histogram = Counts::zeros(e, Balance::bins), load = Counts::zeros(1, e, 0);
        const Balance c{histogram.c(), load.cv()}, g{histogram.g(), load.gv()};
        balance_count(cpu(), scores.c(), cutoff.cv(), experts.c(), bias.cv(), {}, c),
            balance_count(cuda(), scores.g(), cutoff.gv(), experts.g(), bias.gv(), {}, g);
        check_equal("histogram", histogram), check_equal("load", load);
        balance_update(cpu(), c, k, bias.cv()), balance_update(cuda(), g, k, bias.gv());
        KIMIK3_CHECK_CLOSE_NAMED("bias", bias.found(), bias.expected(), 1e-6);
        check_equal("cleared histogram", histogram), check_equal("cleared load", load);
    }
}

BOOST_AUTO_TEST_SUITE_END()
