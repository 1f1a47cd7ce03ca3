#include "kimik3/ops/cpu/attn_res.hpp"

#include <boost/test/unit_test.hpp>

#include "support/differences.hpp"
#include "support/golden.hpp"
#include "support/matrix.hpp"

namespace kimik3::test {
namespace {

/// Everything that one mix reads and writes.
template <class T>
struct Mix {
    std::vector<Matrix<T>> v, dv;
    Matrix<T> gamma, pi, h, p, r, dh, dgamma, dpi;

    Mix(Index count, Index rows, Index width, std::uint64_t seed = 1)
        : gamma(Matrix<T>::random(1, width, seed)),
          pi(Matrix<T>::random(1, width, seed + 1, 0.5)),
          h(rows, width),
          p(rows, count),
          r(rows, count),
          dh(Matrix<T>::random(rows, width, seed + 2)),
          dgamma(1, width),
          dpi(1, width) {
        for (Index j = 0; j < count; ++j) {
            v.push_back(Matrix<T>::random(rows, width, seed + 10 + static_cast<std::uint64_t>(j), 1.0, width + j));
            dv.emplace_back(rows, width);
            dv.back().fill(T(0));
        }
        dgamma.fill(T(0));
        dpi.fill(T(0));
    }

    Candidates<const T> candidates() {
        Candidates<const T> all;
        for (Matrix<T>& m : v) all.add(m.view());
        return all;
    }
    void forward(const Context<Cpu>& ctx, double eps = 1e-5) {
        attn_res_forward(ctx, candidates(), gamma.vector(), pi.vector(), eps, h.view(), p.view(), r.view());
    }
    void backward(const Context<Cpu>& ctx) {
        Candidates<T> gradients;
        for (Matrix<T>& m : dv) gradients.add(m.view());
        attn_res_backward(ctx, dh, candidates(), gamma.vector(), pi.vector(), p, r, h, gradients, dgamma.vector(),
                          dpi.vector());
    }
    std::vector<T> results() {
        std::vector<T> all = h.values();
        for (Matrix<T>* m : {&p, &r, &dgamma, &dpi}) {
            const std::vector<T> more = m->values();
            all.insert(all.end(), more.begin(), more.end());
        }
        for (Matrix<T>& m : dv) {
            const std::vector<T> more = m.values();
            all.insert(all.end(), more.begin(), more.end());
        }
        return all;
    }
};

}  // namespace

BOOST_AUTO_TEST_SUITE(attn_res)

BOOST_AUTO_TEST_CASE(b25_raw_candidates_are_mixed_by_scores_of_normed_ones) {
    Mix<double> mix(2, 1, 2);
    mix.v[0](0, 0) = 1, mix.v[0](0, 1) = 0, mix.v[1](0, 0) = 0, mix.v[1](0, 1) = 2;
    mix.gamma.fill(1.0);
    mix.pi(0, 0) = std::log(3.0) / std::sqrt(2.0), mix.pi(0, 1) = 0;
    mix.forward(Context<Cpu>(1), 0.0);
    KIMIK3_CHECK_CLOSE(mix.p.values(), (std::vector{0.75, 0.25}), 1e-15);
    KIMIK3_CHECK_CLOSE(mix.h.values(), (std::vector{0.75, 0.5}), 1e-15);
}

BOOST_AUTO_TEST_CASE(with_zero_scorer_the_mix_is_the_arithmetic_mean) {
    for (Index count : {1, 2, 3, 8, 128}) {
        Mix<float> mix(count, 3, 33);
        mix.pi.fill(0.0f);
        mix.forward(Context<Cpu>(2));
        std::vector<double> mean(mix.h.span().size());
        for (Matrix<float>& m : mix.v) {
            const std::vector<float> values = m.values();
            for (std::size_t e = 0; e < mean.size(); ++e)
                mean[e] += static_cast<double>(values[e]) / static_cast<double>(count);
        }
        KIMIK3_CHECK_CLOSE(mix.h.values(), mean, 1e-6);
    }
}

BOOST_AUTO_TEST_CASE(gradients_equal_differences) {
    const Context<Cpu> ctx(2);
    for (const auto [count, rows, width] : {std::array<Index, 3>{1, 1, 1}, {2, 3, 5}, {5, 2, 17}}) {
        Mix<double> mix(count, rows, width);
        mix.forward(ctx);
        mix.backward(ctx);
        Mix<double> moved(count, rows, width);
        const auto loss = [&] {
            moved.forward(ctx);
            return probed(moved.h, mix.dh);
        };
        KIMIK3_CHECK_CLOSE(mix.dgamma.values(), difference_gradient(moved.gamma.span(), loss), 1e-8);
        KIMIK3_CHECK_CLOSE(mix.dpi.values(), difference_gradient(moved.pi.span(), loss), 1e-8);
        for (std::size_t j = 0; j < mix.v.size(); ++j) {
            std::vector<double> expected;
            for (Index n = 0; n < rows; ++n) {
                const auto row = difference_gradient({moved.v[j].view().row(n), to_size(width)}, loss);
                expected.insert(expected.end(), row.begin(), row.end());
            }
            KIMIK3_CHECK_CLOSE(mix.dv[j].values(), expected, 1e-8);
        }
    }
}

BOOST_AUTO_TEST_CASE(gradients_stay_exact_in_float_where_one_candidate_outweighs_the_rest) {
    const auto settle = [](auto& mix) {
        for (auto& scorer : mix.pi.span()) scorer *= 4;
        mix.forward(Context<Cpu>(1));
        mix.backward(Context<Cpu>(1));
    };
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
        Mix<float> mix(3, 1, 48, seed);
        Mix<double> exact(3, 1, 48, seed);
        settle(mix);
        settle(exact);
        KIMIK3_CHECK_CLOSE(mix.dgamma.values(), exact.dgamma.values(), 1e-4);
        KIMIK3_CHECK_CLOSE(mix.dpi.values(), exact.dpi.values(), 1e-4);
    }
}

BOOST_AUTO_TEST_CASE(gradients_are_added) {
    const Context<Cpu> ctx(1);
    Mix<double> once(3, 4, 7), twice(3, 4, 7);
    for (Mix<double>* mix : {&once, &twice}) mix->forward(ctx);
    once.backward(ctx);
    for (int repeat = 0; repeat < 2; ++repeat) twice.backward(ctx);
    const auto check = [](Matrix<double>& a, Matrix<double>& b) {
        std::vector<double> doubled = a.values();
        for (double& value : doubled) value *= 2;
        KIMIK3_CHECK_CLOSE(b.values(), doubled, 1e-15);
    };
    check(once.dgamma, twice.dgamma);
    check(once.dpi, twice.dpi);
    for (std::size_t j = 0; j < 3; ++j) check(once.dv[j], twice.dv[j]);
}

BOOST_AUTO_TEST_CASE(results_do_not_depend_on_threads_bit_for_bit) {
    for (Index width : {1, 3, 33, 130}) {
        std::vector<float> first;
        for (int threads : {1, 2, 3}) {
            const Context<Cpu> ctx(threads);
            Mix<float> mix(4, 101, width);
            mix.forward(ctx);
            mix.backward(ctx);
            if (first.empty()) first = mix.results();
            BOOST_TEST(same_bits(first, mix.results()));
        }
    }
}

BOOST_AUTO_TEST_CASE(the_mix_may_overwrite_a_candidate) {
    const Context<Cpu> ctx(2);
    Mix<float> apart(3, 5, 35), inplace(3, 5, 35);
    apart.forward(ctx);
    attn_res_forward(ctx, inplace.candidates(), inplace.gamma.vector(), inplace.pi.vector(), 1e-5, inplace.v[2].view(),
                     inplace.p.view(), inplace.r.view());
    BOOST_TEST(same_bits(apart.h.values(), inplace.v[2].values()));
}

BOOST_AUTO_TEST_CASE(no_tokens_is_fine_and_wrong_shapes_are_refused) {
    const Context<Cpu> ctx(2);
    Mix<float> none(2, 0, 4);
    none.forward(ctx);
    none.backward(ctx);
    Mix<float> mix(2, 3, 4);
    mix.v.emplace_back(3, 5);
    BOOST_CHECK_THROW(mix.forward(ctx), Error);
    mix.v.clear();
    BOOST_CHECK_THROW(mix.forward(ctx), Error);
    for (int j = 0; j < 129; ++j) mix.v.emplace_back(3, 4);
    BOOST_CHECK_THROW(mix.forward(ctx), Error);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace kimik3::test
