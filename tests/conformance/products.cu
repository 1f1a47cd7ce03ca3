// Matrix products in bf16, and what a model in bf16 needs beside its operations.
#include <boost/test/unit_test.hpp>

#include "conformance/device.hpp"
#include "kimik3/ops/cpu/matmul.hpp"
#include "kimik3/ops/cuda/convert.cuh"
#include "kimik3/ops/cuda/matmul.cuh"

using namespace kimik3;
using namespace kimik3::test;

BOOST_AUTO_TEST_SUITE(conformance_products)

BOOST_AUTO_TEST_CASE(bf16_at_odd_and_even_sizes) {
    for (const Index m : {1, 7, 64, 200})
        for (const Index n : {1, 5, 64, 136})
            for (const Index k : {0, 1, 33, 64, 520})
                for (const Index gap : {0, 3, 8})
                    for (const Add add : {Add::no, Add::yes}) {
                        Half a = Half::random(m, k, 1, 1, gap), bt = Half::random(n, k, 2, 1, gap);
                        Half at = Half::random(k, m, 3, 1, gap), b = Half::random(k, n, 4, 1, gap);
                        Half c = add == Add::yes ? Half::random(m, n, 5, 1, gap) : Half(m, n, gap);
                        matmul_nt(cpu(), a.c(), bt.c(), c.c(), add), matmul_nt(cuda(), a.g(), bt.g(), c.g(), add);
                        check_same("nt", c);
                        matmul_nn(cpu(), a.c(), b.c(), c.c(), Add::no), matmul_nn(cuda(), a.g(), b.g(), c.g(), Add::no);
                        check_same("nn", c);
                        Both dw = Both::random(m, n, 6, 1, gap);
                        matmul_tn(cpu(), at.c(), b.c(), dw.c(), add), matmul_tn(cuda(), at.g(), b.g(), dw.g(), add);
                        check_same("tn", dw);
                    }
}

BOOST_AUTO_TEST_CASE(bf16_with_many_rows) {
    const Index m = 2100;
    for (const auto& [n, k, gap] : {std::tuple<Index, Index, Index>{640, 320, 0}, {160, 72, 8}, {168, 70, 0},
                                    {5, 64, 3}, {4352, 64, 0}})
        for (const Add add : {Add::no, Add::yes}) {
            Half a = Half::random(m, k, 1, 1, gap), bt = Half::random(n, k, 2, 1, gap),
                 b = Half::random(k, n, 3, 1, gap);
            Half c = add == Add::yes ? Half::random(m, n, 5, 1, gap) : Half(m, n, gap);
            matmul_nt(cpu(), a.c(), bt.c(), c.c(), add), matmul_nt(cuda(), a.g(), bt.g(), c.g(), add);
            check_same("nt", c);
            matmul_nn(cpu(), a.c(), b.c(), c.c(), Add::no), matmul_nn(cuda(), a.g(), b.g(), c.g(), Add::no);
            check_same("nn", c);
        }
}

template <class Numbers>
void check_onto(Index m, Index n, Index k, Index gap, Index base_gap) {
    Numbers a = Numbers::random(m, k, 1, 1, gap), b = Numbers::random(n, k, 2, 1, gap),
            base = Numbers::random(m, n, 3, 1, base_gap), c(m, n, gap);
    matmul_nt_onto(cpu(), a.c(), b.c(), base.c(), c.c()), matmul_nt_onto(cuda(), a.g(), b.g(), base.g(), c.g());
    check_same("onto", c);
}
BOOST_AUTO_TEST_CASE(a_product_onto_a_base) {
    for (const Index m : {1, 70, 2100})
        for (const auto& [n, k, gap, base_gap] :
             {std::tuple<Index, Index, Index, Index>{640, 320, 0, 0}, {160, 72, 8, 8}, {160, 72, 0, 8}, {5, 3, 1, 2},
              {64, 0, 0, 0}})
            check_onto<Half>(m, n, k, gap, base_gap), check_onto<Both>(m, n, k, gap, base_gap);
}

BOOST_AUTO_TEST_CASE(weight_gradients_of_many_rows_come_out_the_same_twice) {
    Half a = Half::random(4096, 96, 1, 1, 0), b = Half::random(4096, 160, 2, 1, 0);
    Both first = Both::zeros(96, 160), second = Both::zeros(96, 160);
    matmul_tn(cpu(), a.c(), b.c(), first.c(), Add::yes), matmul_tn(cuda(), a.g(), b.g(), first.g(), Add::yes);
    matmul_tn(cuda(), a.g(), b.g(), second.g(), Add::yes);
    check_same("tn", first);
    BOOST_CHECK(first.found() == second.found());
}

template <class Numbers>
void check_products_of_one_x(Index rows) {
    const Index widths[] = {24, 40, 0, 5, 16};
    Numbers x = Numbers::random(rows, 48, 1), weights = Numbers::random(85, 48, 2, 1, 0);
    Numbers apart = Numbers::random(7, 48, 3);
    Numbers y(rows, 85, 3), other(rows, 7);
    using G = std::remove_reference_t<decltype(weights.g()(0, 0))>;
    std::vector<RowProduct<double>> host;
    std::vector<RowProduct<G>> device;
    Index at = 0;
    for (const Index width : widths) {
        host.push_back({weights.c().middle_rows(at, width), y.c().middle_cols(at, width)});
        device.push_back({weights.g().middle_rows(at, width), y.g().middle_cols(at, width)});
        at += width;
    }
    host.push_back({apart.c(), other.c()}), device.push_back({apart.g(), other.g()});
    matmul_nt_all(cpu(), MatrixView<const double>(x.c()), std::span<const RowProduct<double>>(host));
    matmul_nt_all(cuda(), MatrixView<const G>(x.g()), std::span<const RowProduct<G>>(device));
    check_same("side by side", y), check_same("apart", other);
}
BOOST_AUTO_TEST_CASE(several_products_of_one_x) {
    for (const Index rows : {1, 3, 70}) check_products_of_one_x<Both>(rows), check_products_of_one_x<Half>(rows);
}

BOOST_AUTO_TEST_CASE(rounding) {
    for (const Index size : {1, 7, 64, 10003})
        for (const Index begin : {0, 1, 4}) {
            Both from = vector_of(size + begin, 1);
            Half to(1, size + begin, 0);
            const auto part = [&](auto all) { return decltype(all)(all.data + begin, size); };
            convert(cuda(), VectorView<const float>(part(from.gv())), part(to.gv()));
            const auto wide = from.found();
            const auto found = to.found();
            for (Index i = begin; i < size + begin; ++i)
                BOOST_REQUIRE_EQUAL(found[to_size(i)].bits, bf16(wide[to_size(i)]).bits);
        }
}

BOOST_AUTO_TEST_SUITE_END()
