#include <boost/test/unit_test.hpp>
#include <cmath>
#include <functional>

#include "kimik3/ops/cpu/kda_chunk.hpp"
#include "kimik3/ops/cpu/kda_recurrent.hpp"
#include "support/golden.hpp"
#include "support/matrix.hpp"

namespace kimik3::test {
namespace {

/// The base input of the reported cases: one head, K = 4, V = 2, q = k = (.5, .5, .5, .5), so the scale is .5.
template <class T>
struct Base {
    Base(Index tokens, const std::function<void(Index, T*)>& value, const std::function<T(Index, Index)>& decay,
         T beta_value = T(0.5))
        : qk(tokens, 4),
          v(tokens, 2),
          g(tokens, 4),
          beta(tokens, 1),
          o(tokens, 2) {
        qk.fill(T(0.5));
        beta.fill(beta_value);
        for (Index t = 0; t < tokens; ++t) {
            value(t, v.view().row(t));
            for (Index a = 0; a < 4; ++a) g(t, a) = decay(t, a);
        }
    }
    KdaInput<T> input() { return {qk, qk, v, g, beta}; }

    /// Outputs; the gradients, of the sum of outputs, are checked to be finite and to agree with the recurrence.
    std::vector<T> run(Index chunk) {
        const Context<Cpu> ctx(1);
        const Sequences seq = Sequences::uniform(1, v.rows());
        Matrix<T> states(kda_chunks(seq, chunk), 8), ones(v.rows(), 2);
        kda_chunk_forward(ctx, seq, 1, chunk, input(), o.view(), {}, states.view());
        ones.fill(T(1));
        std::vector<std::vector<T>> gradients;
        for (bool chunked : {true, false}) {
            Matrix<T> dq(v.rows(), 4), dk(v.rows(), 4), dg(v.rows(), 4), dv(v.rows(), 2), dbeta(v.rows(), 1);
            const KdaGradient<T> gradient{dq, dk, dv, dg, dbeta};
            if (chunked)
                kda_chunk_backward(ctx, seq, 1, chunk, input(), states, ones, {}, gradient);
            else
                kda_recurrent_backward(ctx, seq, 1, input(), ones, {}, gradient);
            gradients.emplace_back();
            for (Matrix<T>* m : {&dq, &dk, &dv, &dg, &dbeta})
                for (T element : m->values()) gradients.back().push_back(element);
        }
        const double tolerance = sizeof(T) == 8 ? 1e-10 : 2e-4;
        KIMIK3_CHECK_CLOSE(gradients[0], gradients[1], tolerance);
        return o.values();
    }

    Matrix<T> qk, v, g, beta, o;
};

}  // namespace

BOOST_AUTO_TEST_SUITE(kda_chunk)

BOOST_AUTO_TEST_CASE(b02_one_huge_decay_at_a_chunk_start) {
    const auto value = [](Index t, auto* v) { v[0] = static_cast<std::remove_pointer_t<decltype(v)>>(t), v[1] = 1; };
    const auto check = [&](auto zero, auto decay, const std::vector<std::pair<Index, double>>& expected) {
        using T = decltype(zero);
        for (Index chunk : {16, 32, 64}) {
            const std::vector<T> o = Base<T>(32, value, decay).run(chunk);
            for (const auto& [element, number] : expected)
                BOOST_TEST(std::abs(static_cast<double>(o[to_size(element)]) - number) < 1e-5);
        }
    };
    const auto all = [](Index t, Index) { return t == 16 ? -100.0f : -0.1f; };
    const auto half = [](Index t, Index a) { return t == 16 && a % 2 == 0 ? -100.0f : -0.1f; };
    const std::vector<std::pair<Index, double>> expected_all{{30, 6.4710907}, {31, .4565518},  {32, 4},
                                                             {33, .25},       {34, 6.0596748}, {35, .3631047}};
    const std::vector<std::pair<Index, double>> expected_half{
        {32, 5.4638212}, {33, .3532763}, {34, 6.7219350}, {35, .4098288}};
    check(0.0f, all, expected_all);
    check(
        0.0, [&](Index t, Index) { return t == 16 ? -100.0 : -0.1; }, expected_all);
    check(0.0f, half, expected_half);
    check(
        0.0, [&](Index t, Index a) { return t == 16 && a % 2 == 0 ? -100.0 : -0.1; }, expected_half);
}

BOOST_AUTO_TEST_CASE(however_huge_or_infinite_one_decay_is_the_decays_beside_it_stay_exact) {
    const auto check = [](auto zero) {
        using T = decltype(zero);
        const auto run = [](double huge) {
            const auto value = [](Index t, T* v) { v[0] = static_cast<T>(t), v[1] = 1; };
            const auto decay = [huge](Index t, Index a) { return static_cast<T>(t % 9 == 5 && a < 3 ? huge : -0.1); };
            return Base<T>(64, value, decay).run(64);
        };
        const std::vector<T> expected = run(-800);
        for (double huge : {-1e4, -1e30, -std::numeric_limits<double>::infinity()})
            BOOST_TEST(same_bits(run(huge), expected));
    };
    check(0.0f), check(0.0);
}

BOOST_AUTO_TEST_CASE(b03_constant_decay_down_to_minus_fifty) {
    const std::vector<std::pair<double, double>> expected{{-.5, .3588166496}, {-1, .3063499184}, {-2.5, .2606997701},
                                                          {-3, .2563822606},  {-5, .2508450905}, {-50, .25}};
    for (const auto& [g, number] : expected) {
        for (Index chunk : {16, 32, 64}) {
            const auto value = [](Index, auto* v) { v[0] = 1, v[1] = -1; };
            const double wide = Base<double>(64, value, [&](Index, Index) { return g; }).run(chunk)[126];
            const double narrow = static_cast<double>(
                Base<float>(64, value, [&](Index, Index) { return static_cast<float>(g); }).run(chunk)[126]);
            BOOST_TEST(std::abs(wide / number - 1) < 1e-8);
            BOOST_TEST(std::abs(narrow / number - 1) < 1e-5);
        }
    }
}

BOOST_AUTO_TEST_CASE(b04_each_write_replaces_the_last_when_keys_repeat) {
    for (float beta : {1.0f, 0.5f}) {
        for (Index chunk : {16, 32, 64}) {
            const auto value = [](Index t, float* v) {
                v[0] = std::sin(static_cast<float>(t + 1)), v[1] = std::cos(static_cast<float>(2 * t + 1));
            };
            Base<float> base(
                128, value, [](Index, Index) { return 0.0f; }, beta);
            const std::vector<float> o = base.run(chunk);
            float kept[2] = {0, 0};
            for (Index t = 0; t < 128; ++t) {
                for (Index c = 0; c < 2; ++c) {
                    kept[c] += beta * (base.v(t, c) - kept[c]);
                    BOOST_TEST(std::abs(o[to_size(2 * t + c)] - 0.5f * kept[c]) < 1e-5f);
                }
            }
        }
    }
}

BOOST_AUTO_TEST_CASE(b16_beta_between_one_and_two_stays_finite) {
    const auto value = [](Index, double* v) { v[0] = 1, v[1] = -1; };
    for (double o : Base<double>(
                        1024, value, [](Index, Index) { return 0.0; }, 1.9)
                        .run(64))
        BOOST_TEST(std::abs(o) < 10);
}

BOOST_AUTO_TEST_CASE(a_chunk_is_of_whole_tiles) {
    Base<float> base(
        3, [](Index, float* v) { v[0] = v[1] = 1; }, [](Index, Index) { return 0.0f; });
    BOOST_CHECK_THROW(base.run(24), Error);
    BOOST_CHECK_THROW(base.run(0), Error);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace kimik3::test
