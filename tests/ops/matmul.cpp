#include "kimik3/ops/cpu/matmul.hpp"

#include <boost/test/unit_test.hpp>
#include <functional>

#include "support/golden.hpp"
#include "support/matrix.hpp"

namespace kimik3::test {
namespace {

constexpr Index sizes[] = {0, 1, 3, 7, 8, 33, 130};

/// What a product must be: c0 + sum over inner of left(m, i) right(i, n), in double.
std::vector<double> plain_product(Index rows, Index inner, Index cols, const std::function<double(Index, Index)>& left,
                                  const std::function<double(Index, Index)>& right, double start) {
    std::vector<double> c;
    for (Index m = 0; m < rows; ++m) {
        for (Index n = 0; n < cols; ++n) {
            double sum = start;
            for (Index i = 0; i < inner; ++i) sum += left(m, i) * right(i, n);
            c.push_back(sum);
        }
    }
    return c;
}

template <class T>
void check_all_forms(const Context<Cpu>& ctx, Index rows, Index inner, Index cols, double tolerance) {
    const std::string name = fmt::format("{} x {} x {}", rows, inner, cols);
    const auto of = [](Matrix<T>& m, bool transposed) {
        return [&m, transposed](Index r, Index c) { return static_cast<double>(transposed ? m(c, r) : m(r, c)); };
    };
    for (Add add : {Add::no, Add::yes}) {
        const double start = add == Add::yes ? 0.5 : 0.0;
        const auto result = [&] {
            Matrix<T> c(rows, cols, cols + 3);
            if (add == Add::yes) c.fill(T(0.5));
            return c;
        };
        Matrix<T> a = Matrix<T>::random(rows, inner, 1, 1.0, inner + 1),
                  a_t = Matrix<T>::random(inner, rows, 2, 1.0, rows + 1);
        Matrix<T> b = Matrix<T>::random(inner, cols, 3, 1.0, cols + 5),
                  b_t = Matrix<T>::random(cols, inner, 4, 1.0, inner + 2);
        Matrix<T> nt = result(), nn = result(), tn = result();
        matmul_nt(ctx, a, b_t, nt.view(), add);
        matmul_nn(ctx, a, b, nn.view(), add);
        matmul_tn(ctx, a_t, b, tn.view(), add);
        KIMIK3_CHECK_CLOSE_NAMED(name, nt.values(),
                                 plain_product(rows, inner, cols, of(a, false), of(b_t, true), start), tolerance);
        KIMIK3_CHECK_CLOSE_NAMED(name, nn.values(), plain_product(rows, inner, cols, of(a, false), of(b, false), start),
                                 tolerance);
        KIMIK3_CHECK_CLOSE_NAMED(name, tn.values(),
                                 plain_product(rows, inner, cols, of(a_t, true), of(b, false), start), tolerance);
    }
}

}  // namespace

BOOST_AUTO_TEST_SUITE(matmul)

BOOST_AUTO_TEST_CASE(every_form_equals_plain_sums_at_any_size_and_stride) {
    const Context<Cpu> ctx(2);
    for (Index rows : sizes) {
        for (Index inner : sizes) {
            for (Index cols : sizes) {
                check_all_forms<double>(ctx, rows, inner, cols, 1e-13);
                check_all_forms<float>(ctx, rows, inner, cols, 1e-5);
            }
        }
    }
}

BOOST_AUTO_TEST_CASE(several_products_of_one_matrix_are_each_alone_bit_for_bit) {
    for (int threads : {1, 2, 3}) {
        const Context<Cpu> ctx(threads);
        for (Index rows : {0, 1, 7, 8, 20}) {
            for (Index inner : {0, 5, 70}) {
                Matrix<float> a = Matrix<float>::random(rows, inner, 1);
                std::vector<Matrix<float>> weights, together, alone;
                std::vector<RowProduct<float>> products;
                for (Index cols : {1, 0, 3, 130, 64, 4, 259}) {
                    weights.push_back(Matrix<float>::random(cols, inner, 2 + static_cast<std::uint64_t>(cols)));
                    together.emplace_back(rows, cols);
                    alone.emplace_back(rows, cols);
                }
                for (std::size_t p = 0; p < weights.size(); ++p) {
                    products.push_back({weights[p].view(), together[p].view()});
                    matmul_nt(ctx, a, weights[p], alone[p].view(), Add::no);
                }
                matmul_nt_all(ctx, a, std::span<const RowProduct<float>>(products));
                for (std::size_t p = 0; p < weights.size(); ++p)
                    BOOST_TEST(same_bits(together[p].values(), alone[p].values()));
            }
        }
    }
}

BOOST_AUTO_TEST_CASE(a_product_onto_a_base_is_the_product_added_to_its_copy_bit_for_bit) {
    const Context<Cpu> ctx(2);
    for (Index rows : sizes) {
        for (Index inner : sizes) {
            Matrix<float> a = Matrix<float>::random(rows, inner, 1), b = Matrix<float>::random(33, inner, 2),
                          base = Matrix<float>::random(rows, 33, 3, 1.0, 35), sum = base, onto(rows, 33);
            matmul_nt(ctx, a, b, sum.view(), Add::yes);
            matmul_nt_onto(ctx, a, b, base, onto.view());
            BOOST_TEST(same_bits(onto.values(), sum.values()));
        }
    }
    Matrix<float> a(2, 5), b(3, 5), base(2, 4), c(2, 3);
    BOOST_CHECK_THROW(matmul_nt_onto(ctx, a, b, base, c.view()), Error);
}

BOOST_AUTO_TEST_CASE(several_products_refuse_a_wrong_shape) {
    const Context<Cpu> ctx(1);
    Matrix<float> a(2, 5), weight(3, 4), out(2, 3);
    const RowProduct<float> product{weight.view(), out.view()};
    BOOST_CHECK_THROW(matmul_nt_all(ctx, a, std::span<const RowProduct<float>>(&product, 1)), Error);
}

BOOST_AUTO_TEST_CASE(results_do_not_depend_on_threads_bit_for_bit) {
    for (Index rows : {1, 5, 8, 61}) {
        Matrix<float> a = Matrix<float>::random(rows, 67, 1), b = Matrix<float>::random(259, 67, 2),
                      w = Matrix<float>::random(67, 45, 3);
        std::vector<std::vector<float>> first;
        for (int threads : {1, 2, 3}) {
            const Context<Cpu> ctx(threads);
            Matrix<float> nt(rows, 259), nn(rows, 45), tn(67, 259);
            matmul_nt(ctx, a, b, nt.view(), Add::no);
            matmul_nn(ctx, a, w, nn.view(), Add::no);
            matmul_tn(ctx, a, nt, tn.view(), Add::no);
            const std::vector<std::vector<float>> all{nt.values(), nn.values(), tn.values()};
            if (first.empty()) first = all;
            for (std::size_t e = 0; e < all.size(); ++e) BOOST_TEST(same_bits(all[e], first[e]));
        }
    }
}

BOOST_AUTO_TEST_CASE(a_row_does_not_depend_on_the_rows_beside_it_bit_for_bit) {
    const Context<Cpu> ctx(2);
    Matrix<float> a = Matrix<float>::random(192, 300, 1), b = Matrix<float>::random(90, 300, 2),
                  w = Matrix<float>::random(300, 90, 3);
    const auto rows_of = [&](Index begin, Index count, bool transposed) {
        Matrix<float> c(count, 90);
        const auto part = a.view().middle_rows(begin, count);
        if (transposed) matmul_nt(ctx, part, b, c.view(), Add::no);
        else matmul_nn(ctx, part, w, c.view(), Add::no);
        return c.values();
    };
    for (bool transposed : {true, false}) {
        const std::vector<float> all = rows_of(0, 192, transposed);
        for (Index begin : {0, 8, 64, 184}) {
            for (Index count : {8, 24, 128}) {
                if (begin + count > 192) continue;
                BOOST_TEST(same_bits(rows_of(begin, count, transposed),
                                     {all.begin() + begin * 90, all.begin() + (begin + count) * 90}));
            }
        }
    }
    const std::vector<float> seven = rows_of(0, 7, true);
    for (Index row = 0; row < 7; ++row) {
        BOOST_TEST(same_bits(rows_of(row, 1, true), {seven.begin() + row * 90, seven.begin() + (row + 1) * 90}));
    }
}

BOOST_AUTO_TEST_CASE(wrong_shapes_are_refused) {
    const Context<Cpu> ctx(1);
    Matrix<float> a(3, 4), b(5, 4), c(3, 5), wrong(4, 5);
    BOOST_CHECK_THROW(matmul_nt(ctx, a, b, wrong.view(), Add::no), Error);
    BOOST_CHECK_THROW(matmul_nt(ctx, a, c, c.view(), Add::no), Error);
    BOOST_CHECK_THROW(matmul_nn(ctx, a, b, c.view(), Add::no), Error);
    BOOST_CHECK_THROW(matmul_tn(ctx, a, b, c.view(), Add::no), Error);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace kimik3::test
