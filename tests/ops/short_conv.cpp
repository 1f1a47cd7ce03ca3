#include <boost/test/unit_test.hpp>
#include <cmath>

#include "kimik3/ops/cpu/short_conv.hpp"
#include "support/differences.hpp"
#include "support/golden.hpp"
#include "support/matrix.hpp"

namespace kimik3::test {
namespace {

template <class T>
struct ConvCase {
    ConvCase(std::vector<Index> offsets, Index channels, Index taps, bool with_window = true, Index slack = 0)
        : seq(offsets, {}, std::vector<Index>(offsets.size() - 1, with_window ? 1 : 0)),
          window((taps - 1) * channels),
          u(Matrix<T>::random(seq.tokens() + slack, channels, 1)),
          w(Matrix<T>::random(channels, taps, 2)),
          initial(Matrix<T>::random(with_window ? seq.count() : 0, window, 3)),
          dy(Matrix<T>::random(u.rows(), channels, 4)),
          dfinal(Matrix<T>::random(initial.rows(), window, 5)),
          y(u.rows(), channels),
          final(initial.rows(), window),
          du(u.rows(), channels),
          dw(channels, taps),
          dinitial(initial.rows(), window) {
        dw.fill(T(0));
        for (Index n = seq.tokens(); n < u.rows(); ++n)
            for (Index c = 0; c < channels; ++c) u(n, c) = dy(n, c) = std::numeric_limits<T>::quiet_NaN();
    }
    void forward(const Context<Cpu>& ctx) { short_conv_forward(ctx, seq, u, w, initial, y.view(), final.view()); }
    void run(const Context<Cpu>& ctx) {
        forward(ctx);
        short_conv_backward(ctx, seq, dy, u, w, initial, dfinal, du.view(), dw.view(), dinitial.view());
    }

    /// Input of channel c at time t of sequence s, from the window where t is before the sequence.
    double input(Index s, Index t, Index c) {
        if (t >= 0) return static_cast<double>(u(seq.begin(s) + t, c));
        return initial.rows() == 0 ? 0.0 : static_cast<double>(initial(s, (t + w.cols() - 1) * u.cols() + c));
    }

    Sequences seq;
    Index window;
    Matrix<T> u, w, initial, dy, dfinal, y, final, du, dw, dinitial;
};

}  // namespace

BOOST_AUTO_TEST_SUITE(short_conv)

BOOST_AUTO_TEST_CASE(it_is_the_causal_sum_as_written_for_any_width_and_length) {
    for (Index channels : {1, 3, 7, 33, 130}) {
        for (Index taps : {1, 2, 4}) {
            for (bool with_window : {true, false}) {
                ConvCase<double> c({0, 0, 1, 3, 6, 25}, channels, taps, with_window);
                c.forward(Context<Cpu>(2));
                std::vector<double> expected, expected_window;
                for (Index s = 0; s < c.seq.count(); ++s) {
                    for (Index t = 0; t < c.seq.length(s); ++t) {
                        for (Index ch = 0; ch < channels; ++ch) {
                            double sum = 0;
                            for (Index j = 0; j < taps; ++j) sum += c.w(ch, j) * c.input(s, t - (taps - 1) + j, ch);
                            expected.push_back(sum / (1 + std::exp(-sum)));
                        }
                    }
                    for (Index j = 0; with_window && j + 1 < taps; ++j)
                        for (Index ch = 0; ch < channels; ++ch)
                            expected_window.push_back(c.input(s, c.seq.length(s) - (taps - 1) + j, ch));
                }
                KIMIK3_CHECK_CLOSE(c.y.values(), expected, 1e-13);
                BOOST_TEST(c.final.values() == expected_window, boost::test_tools::per_element());
            }
        }
    }
}

BOOST_AUTO_TEST_CASE(every_gradient_agrees_with_differences) {
    const Context<Cpu> ctx(2);
    for (Index taps : {1, 2, 4}) {
        ConvCase<double> c({0, 1, 3, 3, 9}, 3, taps);
        c.run(ctx);
        const auto loss = [&] {
            c.forward(ctx);
            return probed(c.y, c.dy) + probed(c.final, c.dfinal);
        };
        KIMIK3_CHECK_CLOSE(c.du.values(), difference_gradient(c.u.span(), loss), 1e-9);
        KIMIK3_CHECK_CLOSE(c.dw.values(), difference_gradient(c.w.span(), loss), 1e-9);
        KIMIK3_CHECK_CLOSE(c.dinitial.values(), difference_gradient(c.initial.span(), loss), 1e-9);
    }
}

BOOST_AUTO_TEST_CASE(the_input_gradient_may_take_the_place_of_the_output_gradient) {
    ConvCase<float> apart({0, 5, 40}, 70, 4), in_place = apart;
    apart.run(Context<Cpu>(2));
    short_conv_backward(Context<Cpu>(2), in_place.seq, in_place.dy, in_place.u, in_place.w, in_place.initial,
                        in_place.dfinal, in_place.dy.view(), in_place.dw.view(), in_place.dinitial.view());
    BOOST_TEST(same_bits(in_place.dy.values(), apart.du.values()));
    BOOST_TEST(same_bits(in_place.dw.values(), apart.dw.values()));
}

BOOST_AUTO_TEST_CASE(threads_change_no_bit) {
    ConvCase<float> one({0, 5, 40}, 330, 4), three = one;
    one.run(Context<Cpu>(1));
    three.run(Context<Cpu>(3));
    BOOST_TEST(same_bits(one.y.values(), three.y.values()));
    BOOST_TEST(same_bits(one.du.values(), three.du.values()));
    BOOST_TEST(same_bits(one.dw.values(), three.dw.values()));
}

BOOST_AUTO_TEST_CASE(b14_slack_rows_become_zero) {
    ConvCase<float> c({0, 7, 7, 32}, 6, 4, false, 8);
    c.run(Context<Cpu>(2));
    for (Matrix<float>* m : {&c.y, &c.du}) {
        for (float value : m->values(0, 32)) BOOST_TEST(std::isfinite(value));
        for (float value : m->values(32, 40)) BOOST_TEST(value == 0.0f);
    }
    for (float value : c.dw.values()) BOOST_TEST(std::isfinite(value));
}

BOOST_AUTO_TEST_CASE(b21_any_split_of_a_sequence_is_the_whole_sequence) {
    ConvCase<float> whole({0, 9}, 5, 4, false);
    whole.forward(Context<Cpu>(1));
    for (Index first : {1, 2, 3, 5, 9}) {
        Matrix<float> window(1, whole.window);
        std::vector<float> all;
        for (Index past = 0; past < 9;) {
            const Index count = past == 0 ? first : 1;
            Matrix<float> u = Matrix<float>::of(count, 5, whole.u.values(past, past + count)), y(count, 5);
            short_conv_forward(Context<Cpu>(1), Sequences({0, count}, {}, {past}), u, whole.w, window, y.view(),
                               window.view());
            for (float value : y.values()) all.push_back(value);
            past += count;
        }
        BOOST_TEST(same_bits(all, whole.y.values()));
    }
}

BOOST_AUTO_TEST_CASE(b14_an_empty_sequence_leaves_its_window_as_it_is) {
    Matrix<float> u(0, 5), w = Matrix<float>::random(5, 4, 1), window = Matrix<float>::random(1, 15, 2), y(0, 5);
    const std::vector<float> before = window.values();
    short_conv_forward(Context<Cpu>(1), Sequences({0, 0}), u, w, window, y.view(), window.view());
    BOOST_TEST(same_bits(window.values(), before));
}

BOOST_AUTO_TEST_CASE(wrong_shapes_and_slots_are_refused) {
    Matrix<float> u = Matrix<float>::random(4, 5, 1), w = Matrix<float>::random(5, 4, 2), y(4, 5), window(1, 15),
                  narrow(1, 14), no_taps(5, 0);
    const Context<Cpu> ctx(1);
    BOOST_CHECK_THROW(short_conv_forward(ctx, Sequences({0, 4}), u, w, narrow, y.view(), {}), Error);
    BOOST_CHECK_THROW(short_conv_forward(ctx, Sequences({0, 4}, {1}), u, w, window, y.view(), {}), Error);
    BOOST_CHECK_THROW(short_conv_forward(ctx, Sequences({0, 5}), u, w, {}, y.view(), {}), Error);
    BOOST_CHECK_THROW(short_conv_forward(ctx, Sequences({0, 4}), u, no_taps, {}, y.view(), {}), Error);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace kimik3::test
