#include "kimik3/ops/cpu/rms_norm.hpp"

#include <boost/test/unit_test.hpp>

#include "support/differences.hpp"
#include "support/golden.hpp"
#include "support/matrix.hpp"

namespace kimik3::test {
namespace {

template <class T>
struct Norm {
    Matrix<T> x, w, y, r, dy, dx, dw;

    Norm(Index rows, Index width, double scale = 1.0)
        : x(Matrix<T>::random(rows, width, 1, scale, width + 1)),
          w(Matrix<T>::random(1, width, 2)),
          y(rows, width),
          r(1, rows),
          dy(Matrix<T>::random(rows, width, 3)),
          dx(rows, width),
          dw(1, width) {
        dw.fill(T(0));
    }
    void forward(const Context<Cpu>& ctx, double eps = 1e-5) {
        rms_norm_forward(ctx, x, w.vector(), eps, y.view(), r.vector());
    }
    void backward(const Context<Cpu>& ctx) {
        rms_norm_backward(ctx, dy, x, w.vector(), r.vector(), dx.view(), dw.vector());
    }
};

}  // namespace

BOOST_AUTO_TEST_SUITE(rms_norm)

BOOST_AUTO_TEST_CASE(b51_eps_counts_as_given_in_float) {
    Norm<float> norm(1, 32);
    norm.x.fill(0.0625f);
    norm.w.fill(1.0f);
    norm.forward(Context<Cpu>(1), 1e-6);
    for (float value : norm.y.values()) BOOST_TEST(std::abs(value - 0.99987202f) < 1e-7f);
}

BOOST_AUTO_TEST_CASE(b51_weight_gradient_of_many_rows_of_ones_is_exact) {
    Norm<float> norm(65536, 5);
    norm.x.fill(1.0f);
    norm.dy.fill(1.0f);
    norm.forward(Context<Cpu>(2));
    norm.backward(Context<Cpu>(2));
    KIMIK3_CHECK_CLOSE(norm.dw.values(), std::vector<double>(5, 65536.0 / std::sqrt(1.0 + 1e-5)), 1e-3);
}

BOOST_AUTO_TEST_CASE(gradients_equal_differences_and_weight_gradients_are_added) {
    const Context<Cpu> ctx(2);
    for (const auto& [rows, width] : {std::pair<Index, Index>{1, 1}, {3, 2}, {2, 7}, {5, 33}}) {
        Norm<double> norm(rows, width);
        norm.dw.fill(0.25);
        norm.forward(ctx);
        norm.backward(ctx);
        const auto loss = [&] {
            norm.forward(ctx);
            return probed(norm.y, norm.dy);
        };
        std::vector<double> dx, dw = difference_gradient(norm.w.span(), loss);
        for (Index n = 0; n < rows; ++n) {
            const auto row = difference_gradient({norm.x.view().row(n), to_size(width)}, loss);
            dx.insert(dx.end(), row.begin(), row.end());
        }
        for (double& value : dw) value += 0.25;
        KIMIK3_CHECK_CLOSE(norm.dw.values(), dw, 1e-8);
        KIMIK3_CHECK_CLOSE(norm.dx.values(), dx,
                           width == 1 ? 1e-6 : 1e-8);  // of one number the gradient nearly vanishes
    }
}

BOOST_AUTO_TEST_CASE(a_row_of_zeros_stays_zero_with_finite_gradients) {
    Norm<float> norm(2, 9);
    norm.x.fill(0.0f);
    norm.forward(Context<Cpu>(1));
    norm.backward(Context<Cpu>(1));
    for (float value : norm.y.values()) BOOST_TEST(value == 0.0f);
    for (float value : norm.dx.values()) BOOST_TEST(std::isfinite(value));
}

BOOST_AUTO_TEST_CASE(b68_in_place_equals_out_of_place) {
    const Context<Cpu> ctx(2);
    for (const Index width : {1, 3, 16, 33, 130}) {
        Norm<float> apart(7, width), inplace(7, width);
        apart.forward(ctx);
        apart.backward(ctx);
        inplace.forward(ctx);
        rms_norm_backward(ctx, inplace.dy, inplace.x, inplace.w.vector(), inplace.r.vector(), inplace.dy.view(),
                          inplace.dw.vector());
        rms_norm_forward(ctx, inplace.x, inplace.w.vector(), 1e-5, inplace.x.view(), inplace.r.vector());
        BOOST_TEST(same_bits(inplace.x.values(), apart.y.values()));
        BOOST_TEST(same_bits(inplace.dy.values(), apart.dx.values()));
        BOOST_TEST(same_bits(inplace.dw.values(), apart.dw.values()));
    }
}

BOOST_AUTO_TEST_CASE(results_do_not_depend_on_threads_bit_for_bit) {
    Norm<float> one(101, 259);
    one.forward(Context<Cpu>(1));
    one.backward(Context<Cpu>(1));
    for (int threads : {2, 3}) {
        Norm<float> norm(101, 259);
        norm.forward(Context<Cpu>(threads));
        norm.backward(Context<Cpu>(threads));
        BOOST_TEST(same_bits(norm.y.values(), one.y.values()));
        BOOST_TEST(same_bits(norm.dx.values(), one.dx.values()));
        BOOST_TEST(same_bits(norm.dw.values(), one.dw.values()));
    }
}

BOOST_AUTO_TEST_CASE(no_rows_is_fine_and_wrong_shapes_are_refused) {
    const Context<Cpu> ctx(2);
    Norm<float> none(0, 4), norm(3, 4);
    none.forward(ctx);
    none.backward(ctx);
    for (float value : none.dw.values()) BOOST_TEST(value == 0.0f);
    BOOST_CHECK_THROW(rms_norm_forward(ctx, norm.x, norm.r.vector(), 1e-5, norm.y.view(), norm.r.vector()), Error);
    BOOST_CHECK_THROW(rms_norm_forward(ctx, norm.x, norm.w.vector(), 1e-5, none.y.view(), norm.r.vector()), Error);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace kimik3::test
