#include "kimik3/ops/cpu/adamw.hpp"

#include <boost/test/unit_test.hpp>
#include <tuple>
#include <vector>

#include "kimik3/core/rng.hpp"
#include "kimik3/ops/cpu/gradient_norm.hpp"

using namespace kimik3;

namespace {

using Numbers = std::tuple<float, double>;

template <class T>
std::vector<T> random(Index count, std::uint64_t seed, double scale = 1.0) {
    Philox rng(seed);
    std::vector<T> values(to_size(count));
    for (T& value : values) value = static_cast<T>(scale * rng.normal());
    return values;
}

template <class T>
VectorView<T> view(std::vector<T>& values) {
    return {values.data(), static_cast<Index>(values.size())};
}

/// The definition, element by element in double.
struct Scalar {
    double w = 0.0, m = 0.0, v = 0.0;

    void step(double g, const AdamwRule& rule, bool decay) {
        g *= rule.scale;
        m = rule.beta1 * m + (1.0 - rule.beta1) * g;
        v = rule.beta2 * v + (1.0 - rule.beta2) * g * g;
        const double t = static_cast<double>(rule.step);
        const double mean = m / (1.0 - std::pow(rule.beta1, t)), square = v / (1.0 - std::pow(rule.beta2, t));
        w -= rule.lr * (decay ? rule.decay : 0.0) * w;
        w -= rule.lr * mean / (std::sqrt(square) + rule.eps);
    }
};

}  // namespace

BOOST_AUTO_TEST_SUITE(adamw)

BOOST_AUTO_TEST_CASE_TEMPLATE(the_fused_pass_is_the_scalar_loop, T, Numbers) {
    const double tolerance = std::is_same_v<T, double> ? 1e-13 : 1e-5;
    for (const Index count : {1, 3, 7, 8, 15, 16, 17, 33, 130}) {
        // Two pieces, the second without decay, with untouched elements around both.
        const Index guard = 5, size = 2 * count + 3 * guard;
        const std::vector<AdamwPiece> pieces = {{guard, 2, count, true}, {2 * guard + count, 2 + count, count, false}};
        std::vector<T> w = random<T>(size, 1), m(to_size(size), T(9)), v(to_size(2 * count + 4), T(9));
        std::vector<Scalar> expected(to_size(2 * count));
        const auto place = [&](Index e) { return e < count ? guard + e : 2 * guard + e; };
        for (Index e = 0; e < 2 * count; ++e) {
            expected[to_size(e)].w = static_cast<double>(w[to_size(place(e))]);
            m[to_size(place(e))] = v[to_size(2 + e)] = T(0);
        }
        const std::vector<T> before = w;
        for (Index step = 1; step <= 10; ++step) {
            std::vector<T> g = random<T>(size, 100 + static_cast<std::uint64_t>(step), 1e-3);
            const AdamwRule rule{.lr = 1e-2, .decay = 0.1, .scale = 0.7, .step = step};
            adamw_step<T>(Context<Cpu>(2), pieces, rule, view(g), view(w), view(m), view(v));
            for (Index e = 0; e < 2 * count; ++e) {
                expected[to_size(e)].step(static_cast<double>(g[to_size(place(e))]), rule, e < count);
            }
        }
        for (Index e = 0; e < 2 * count; ++e) {
            const Scalar& s = expected[to_size(e)];
            BOOST_TEST(std::abs(static_cast<double>(w[to_size(place(e))]) - s.w) <= tolerance);
            BOOST_TEST(std::abs(static_cast<double>(m[to_size(place(e))]) - s.m) <= tolerance * 1e-3);
            BOOST_TEST(std::abs(static_cast<double>(v[to_size(2 + e)]) - s.v) <= tolerance * 1e-6);
        }
        for (const Index e : {Index{0}, guard - 1, guard + count, 2 * guard + count - 1, size - guard, size - 1}) {
            BOOST_TEST((w[to_size(e)] == before[to_size(e)] && m[to_size(e)] == T(9)));
        }
        BOOST_TEST((v[1] == T(9) && v[to_size(2 + 2 * count)] == T(9)));
    }
}

BOOST_AUTO_TEST_CASE_TEMPLATE(b43_a_zero_gradient_moves_nothing_but_by_decay, T, Numbers) {
    std::vector<T> w = {T(2), T(-4), T(0)}, g(3), m(3), v(3);
    const std::vector<AdamwPiece> pieces = {{0, 0, 3, true}};
    adamw_step<T>(Context<Cpu>(1), pieces, {.lr = 0.5, .decay = 0.5}, view(g), view(w), view(m), view(v));
    BOOST_TEST(w == (std::vector<T>{T(1.5), T(-3), T(0)}), boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE_TEMPLATE(sums_of_squares_do_not_depend_on_threads_and_do_not_overflow, T, Numbers) {
    std::vector<T> g = random<T>(5000, 3);
    g[1] = T(1e25);
    std::vector<ElementPiece> pieces = {{0, 1}, {1, 1}, {2, 0}, {2, 1000}, {1002, 3998}};
    std::vector<double> results[3];
    for (int threads = 1; threads <= 3; ++threads) {
        std::vector<double>& sums = results[threads - 1];
        sums.assign(pieces.size(), -1.0);
        gradient_square_sums(Context<Cpu>(threads), pieces, VectorView<const T>(view(g)), view(sums));
        BOOST_TEST(sums == results[0], boost::test_tools::per_element());
    }
    for (std::size_t p = 0; p < pieces.size(); ++p) {
        double sum = 0.0;
        for (Index e = 0; e < pieces[p].count; ++e) {
            const double value = static_cast<double>(g[to_size(pieces[p].offset + e)]);
            sum += value * value;
        }
        BOOST_TEST(std::abs(results[0][p] - sum) <= 1e-12 * sum);
    }
}

BOOST_AUTO_TEST_CASE(a_step_of_number_zero_and_pieces_outside_of_the_arrays_are_refused) {
    std::vector<float> g(4), w(4), m(4), v(4);
    const auto refused = [&](AdamwPiece piece, Index step) {
        BOOST_CHECK_THROW(adamw_step<float>(Context<Cpu>(1), std::vector{piece}, {.lr = 1, .step = step}, view(g),
                                            view(w), view(m), view(v)),
                          Error);
    };
    refused({0, 0, 4, true}, 0);
    for (const AdamwPiece& piece : {AdamwPiece{1, 0, 4}, {0, 1, 4}, {-1, 0, 2}, {0, 0, -1}}) refused(piece, 1);
}

BOOST_AUTO_TEST_SUITE_END()
