#include "kimik3/ops/cpu/muon.hpp"

#include <Eigen/Dense>
#include <boost/test/unit_test.hpp>
#include <tuple>
#include <vector>

#include "kimik3/core/rng.hpp"

using namespace kimik3;

namespace {

using Numbers = std::tuple<float, double>;
using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

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

/// x after so many steps, with a guard behind the scratch memory.
template <class T>
Matrix iterate(std::vector<T> x, Index rows, Index cols, Index steps, int threads = 1) {
    const Index scratch = newton_schulz_scratch(rows, cols);
    std::vector<T> memory(to_size(scratch) + 1, std::numeric_limits<T>::quiet_NaN());
    memory.back() = T(7);
    const VectorView<T> scratch_view(memory.data(), scratch);
    newton_schulz(Context<Cpu>(threads), MatrixView<T>(x.data(), rows, cols), steps, scratch_view);
    BOOST_TEST(memory.back() == T(7));
    return Eigen::Map<Eigen::Matrix<T, -1, -1, Eigen::RowMajor>>(x.data(), rows, cols).template cast<double>();
}

/// The definition, on the transpose when rows exceed columns.
Matrix by_definition(const std::vector<double>& values, Index rows, Index cols, Index steps) {
    Matrix x = Eigen::Map<const Matrix>(values.data(), rows, cols);
    if (rows > cols) x = x.transpose().eval();
    x /= x.norm() + 1e-7;
    for (Index step = 0; step < steps; ++step) {
        const Matrix a = x * x.transpose();
        x = (3.4445 * x + (-4.7750 * a + 2.0315 * a * a) * x).eval();
    }
    if (rows > cols) x = x.transpose().eval();
    return x;
}

struct Step {
    std::vector<double> w, m;
};

/// One step of a block list on fresh momentum and weights of zero without decay: w is minus the update.
Step updates(const std::vector<MuonBlock>& blocks, std::vector<double> g, int threads = 1) {
    Step s{std::vector<double>(g.size()), std::vector<double>(g.size())};
    muon_step<double>(Context<Cpu>(threads), blocks, {.lr = 1.0}, view(g), view(s.w), view(s.m));
    return s;
}

double norm(const double* values, Index count) {
    double sum = 0.0;
    for (Index e = 0; e < count; ++e) sum += values[e] * values[e];
    return std::sqrt(sum);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(muon)

BOOST_AUTO_TEST_CASE_TEMPLATE(newton_schulz_is_its_definition_at_every_shape, T, Numbers) {
    const double tolerance = std::is_same_v<T, double> ? 1e-12 : 2e-5;
    for (const auto& [rows, cols] : std::vector<std::pair<Index, Index>>{
             {1, 1}, {1, 7}, {5, 1}, {3, 3}, {7, 33}, {33, 7}, {32, 32}, {16, 130}, {130, 16}, {64, 257}}) {
        for (const Index steps : {1, 2, 5}) {
            const std::vector<T> x = random<T>(rows * cols, 1);
            const Matrix expected = by_definition({x.begin(), x.end()}, rows, cols, steps);
            const double apart = (iterate(x, rows, cols, steps, 2) - expected).cwiseAbs().maxCoeff();
            BOOST_TEST(apart <= tolerance * expected.cwiseAbs().maxCoeff());
        }
    }
}

BOOST_AUTO_TEST_CASE_TEMPLATE(singular_values_come_close_to_one, T, Numbers) {
    for (const auto& [rows, cols] : std::vector<std::pair<Index, Index>>{{32, 128}, {128, 32}, {64, 256}}) {
        for (const double scale : {1e-6, 1.0, 1e6}) {
            const Matrix x = iterate(random<T>(rows * cols, 2, scale), rows, cols, 5);
            const Eigen::VectorXd values = Eigen::JacobiSVD<Eigen::MatrixXd>(x).singularValues();
            BOOST_TEST(values.minCoeff() > 0.65);
            BOOST_TEST(values.maxCoeff() < 1.25);
        }
    }
}

BOOST_AUTO_TEST_CASE_TEMPLATE(newton_schulz_does_not_depend_on_threads, T, Numbers) {
    for (const auto& [rows, cols] : std::vector<std::pair<Index, Index>>{{16, 50}, {50, 16}, {130, 200}, {301, 129}}) {
        const std::vector<T> x = random<T>(rows * cols, 3);
        const Matrix one = iterate(x, rows, cols, 5, 1);
        for (const int threads : {2, 3}) BOOST_TEST((one.array() == iterate(x, rows, cols, 5, threads).array()).all());
    }
}

BOOST_AUTO_TEST_CASE(newton_schulz_refuses_strides_and_wrong_scratch) {
    std::vector<double> x(24), scratch(to_size(newton_schulz_scratch(4, 5)));
    BOOST_CHECK_THROW(newton_schulz(Context<Cpu>(1), MatrixView<double>(x.data(), 4, 5, 6), 5, view(scratch)), Error);
    scratch.pop_back();
    BOOST_CHECK_THROW(newton_schulz(Context<Cpu>(1), MatrixView<double>(x.data(), 4, 5), 5, view(scratch)), Error);
}

BOOST_AUTO_TEST_CASE(blocks_outside_of_the_arrays_are_refused) {
    for (const MuonBlock& block : {MuonBlock{0, 3, 4}, {1, 2, 5}, {-1, 2, 2}, {0, -2, 5}})
        BOOST_CHECK_THROW(updates({block}, random<double>(10, 1)), Error);
}

BOOST_AUTO_TEST_CASE_TEMPLATE(b43_zero_gradients_give_zero_updates, T, Numbers) {
    std::vector<T> g(64 * 32), m(64 * 32), w = random<T>(64 * 32, 4);
    const std::vector<T> before = w;
    const std::vector<MuonBlock> plain = {{0, 64, 32, false}}, decaying = {{0, 64, 32, true}};
    muon_step<T>(Context<Cpu>(1), plain, {.lr = 0.5, .decay = 0.5}, view(g), view(w), view(m));
    BOOST_TEST((w == before));
    muon_step<T>(Context<Cpu>(1), decaying, {.lr = 0.5, .decay = 0.5}, view(g), view(w), view(m));
    for (std::size_t e = 0; e < w.size(); ++e) BOOST_TEST(w[e] == T(0.75) * before[e]);
}

BOOST_AUTO_TEST_CASE(b43_a_head_of_zeros_stays_zero_beside_another) {
    std::vector<double> g = random<double>(2 * 16 * 40, 5);
    std::fill(g.begin(), g.begin() + 16 * 40, 0.0);
    const Step both = updates({{0, 16, 40}, {16 * 40, 16, 40}}, g);
    const Step alone = updates({{0, 16, 40}}, {g.begin() + 16 * 40, g.end()});
    BOOST_TEST(norm(both.w.data(), 16 * 40) == 0.0);
    BOOST_TEST(std::equal(alone.w.begin(), alone.w.end(), both.w.begin() + 16 * 40));
}

BOOST_AUTO_TEST_CASE(b45_the_update_of_a_transposed_gradient_is_the_transposed_update) {
    const std::vector<double> g = random<double>(128 * 32, 6);
    std::vector<double> t(g.size());
    for (std::size_t r = 0; r < 128; ++r)
        for (std::size_t c = 0; c < 32; ++c) t[c * 128 + r] = g[r * 32 + c];
    const Matrix tall = iterate(g, 128, 32, 5), flat = iterate(t, 32, 128, 5);
    BOOST_TEST((tall - flat.transpose()).cwiseAbs().maxCoeff() < 1e-12);
}

BOOST_AUTO_TEST_CASE(b45_the_factor_is_a_fifth_of_the_root_of_the_longer_side) {
    const std::vector<double> g = random<double>(128 * 32, 7);
    const Matrix direction = by_definition(g, 128, 32, 5);  // n is a multiple of g on fresh momentum
    const Step step = updates({{0, 128, 32}}, g);
    for (Index e = 0; e < 128 * 32; ++e) {
        BOOST_TEST(std::abs(step.w[to_size(e)] + 0.2 * std::sqrt(128.0) * direction.data()[e]) < 1e-9);
    }
}

BOOST_AUTO_TEST_CASE(b45_heads_are_their_own_matrices) {
    const Index size = 64 * 512;
    std::vector<double> g = random<double>(2 * size, 8);
    for (Index e = size; e < 2 * size; ++e) g[to_size(e)] *= 1000.0;
    const Step both = updates({{0, 64, 512}, {size, 64, 512}}, g, 2);
    BOOST_TEST(std::abs(norm(both.w.data(), size) / norm(both.w.data() + size, size) - 1.0) < 0.05);
    for (const Index head : {0, 1}) {
        const Step alone = updates({{0, 64, 512}}, {g.begin() + head * size, g.begin() + (head + 1) * size});
        BOOST_TEST(std::equal(alone.w.begin(), alone.w.end(), both.w.begin() + head * size));
    }
    // Singular values in [0.65, 1.25] and the factor of a 64 x 512 matrix: the root of the mean square is near 0.2.
    const double root_mean_square = norm(both.w.data(), size) / std::sqrt(static_cast<double>(size));
    BOOST_TEST(root_mean_square > 0.2 * 0.65);
    BOOST_TEST(root_mean_square < 0.2 * 1.25);
}

BOOST_AUTO_TEST_CASE(momentum_is_nesterovs_and_decay_is_decoupled) {
    const Index size = 6 * 9;
    std::vector<double> w = random<double>(size, 9), m(to_size(size)), expected_w = w, expected_m = m;
    const std::vector<MuonBlock> blocks = {{0, 6, 9, true}};
    for (int step = 0; step < 4; ++step) {
        std::vector<double> g = random<double>(size, 30 + static_cast<std::uint64_t>(step)), n(to_size(size));
        muon_step<double>(Context<Cpu>(1), blocks, {.lr = 0.1, .decay = 0.1, .scale = 0.3}, view(g), view(w), view(m));
        for (std::size_t e = 0; e < n.size(); ++e) {
            expected_m[e] = 0.95 * expected_m[e] + 0.3 * g[e];
            n[e] = 0.3 * g[e] + 0.95 * expected_m[e];
        }
        const Matrix x = by_definition(n, 6, 9, 5);
        for (std::size_t e = 0; e < n.size(); ++e) {
            expected_w[e] = expected_w[e] * (1.0 - 0.1 * 0.1) - 0.1 * 0.2 * std::sqrt(9.0) * x.data()[e];
        }
    }
    for (std::size_t e = 0; e < w.size(); ++e) {
        BOOST_TEST(std::abs(w[e] - expected_w[e]) < 1e-12);
        BOOST_TEST(std::abs(m[e] - expected_m[e]) < 1e-14);
    }
}

BOOST_AUTO_TEST_CASE_TEMPLATE(blocks_of_all_sizes_do_not_depend_on_threads_and_touch_nothing_else, T, Numbers) {
    // The first is large enough for all threads to share it; gaps of 3 elements lie between.
    std::vector<MuonBlock> blocks = {{0, 260, 270}, {0, 32, 64}, {0, 64, 32}, {0, 32, 64}, {0, 1, 9}};
    Index size = 3;
    for (MuonBlock& block : blocks) {
        block.offset = size;
        size += block.rows * block.cols + 3;
    }
    std::vector<T> results[3], g = random<T>(size, 10);
    const std::vector<T> before = random<T>(size, 11);
    for (int threads = 1; threads <= 3; ++threads) {
        std::vector<T> w = before, m(to_size(size));
        muon_step<T>(Context<Cpu>(threads), blocks, {.lr = 0.1, .decay = 0.1}, view(g), view(w), view(m));
        for (const MuonBlock& block : blocks) {
            for (Index e = block.offset - 3; e < block.offset; ++e) {
                BOOST_TEST((w[to_size(e)] == before[to_size(e)] && m[to_size(e)] == T(0)));
            }
        }
        results[threads - 1] = std::move(w);
    }
    BOOST_TEST((results[0] == results[1] && results[0] == results[2]));
}

BOOST_AUTO_TEST_SUITE_END()
