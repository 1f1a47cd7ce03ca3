#include "kimik3/ops/cpu/embedding.hpp"

#include <boost/test/unit_test.hpp>

#include "support/golden.hpp"
#include "support/matrix.hpp"

namespace kimik3::test {

BOOST_AUTO_TEST_SUITE(embedding)

BOOST_AUTO_TEST_CASE(rows_are_looked_up_and_gradients_of_equal_ids_add_up) {
    for (Index width : {1, 3, 16, 33, 130}) {
        const std::vector<std::int32_t> ids{4, 0, 4, 2, 4};
        auto table = Matrix<double>::random(5, width, 1), dy = Matrix<double>::random(5, width, 2);
        Matrix<double> y(5, width), dtable(5, width);
        dtable.fill(1.0);
        embedding_forward(Context<Cpu>(2), ids, table, y.view());
        embedding_backward(Context<Cpu>(2), ids, dy, dtable.view());
        for (Index c = 0; c < width; ++c) {
            for (Index n = 0; n < 5; ++n) BOOST_TEST(y(n, c) == table(ids[to_size(n)], c));
            BOOST_TEST(dtable(0, c) == 1 + dy(1, c));
            BOOST_TEST(dtable(1, c) == 1);
            BOOST_TEST(dtable(2, c) == 1 + dy(3, c));
            BOOST_TEST(dtable(4, c) == 1 + dy(0, c) + dy(2, c) + dy(4, c));
        }
    }
}

BOOST_AUTO_TEST_CASE(gradients_do_not_depend_on_threads_bit_for_bit) {
    std::vector<std::int32_t> ids(300);
    Philox numbers(3);
    for (std::int32_t& id : ids) id = static_cast<std::int32_t>(numbers.below(7));
    auto dy = Matrix<float>::random(300, 100, 4);
    std::vector<float> first;
    for (int threads : {1, 2, 3}) {
        Matrix<float> dtable(7, 100);
        dtable.fill(0.0f);
        embedding_backward(Context<Cpu>(threads), ids, dy, dtable.view());
        if (first.empty()) first = dtable.values();
        BOOST_TEST(same_bits(first, dtable.values()));
    }
}

BOOST_AUTO_TEST_CASE(b73_the_gradient_of_one_id_for_all_tokens_is_their_sum) {
    const std::vector<std::int32_t> ids(4096, 3);
    auto dy = Matrix<float>::random(4096, 33, 5);
    std::vector<double> expected(33);
    for (Index n = 0; n < 4096; ++n)
        for (Index c = 0; c < 33; ++c) expected[to_size(c)] += static_cast<double>(dy(n, c));
    for (int threads : {1, 3}) {
        Matrix<float> dtable(5, 33);
        dtable.fill(0.0f);
        embedding_backward(Context<Cpu>(threads), ids, dy, dtable.view());
        KIMIK3_CHECK_CLOSE(dtable.values(3, 4), expected, 1e-5);
    }
}

BOOST_AUTO_TEST_CASE(b66_ids_outside_of_the_table_are_refused_by_id_position_and_vocabulary) {
    auto table = Matrix<float>::random(5, 3, 1);
    Matrix<float> y(3, 3);
    const Context<Cpu> ctx(2);
    for (std::int32_t wrong :
         {-1, 5, std::numeric_limits<std::int32_t>::max(), std::numeric_limits<std::int32_t>::min()}) {
        const std::vector<std::int32_t> ids{0, 4, wrong};
        const std::string sentence = fmt::format("token ids lie in [0, 5), got {} at position 2", wrong);
        const auto says_so = [&](const Error& error) { return error.what() == sentence; };
        BOOST_CHECK_EXCEPTION(embedding_forward(ctx, ids, table, y.view()), Error, says_so);
        BOOST_CHECK_EXCEPTION(embedding_backward(ctx, ids, y, table.view()), Error, says_so);
        BOOST_CHECK_EXCEPTION(check_ids(ids, 5), Error, says_so);
    }
    BOOST_TEST(std::isnan(y(0, 0)));
}

BOOST_AUTO_TEST_CASE(no_tokens_is_fine) {
    auto table = Matrix<float>::random(5, 3, 1);
    Matrix<float> y(0, 3);
    embedding_forward(Context<Cpu>(2), {}, table, y.view());
    embedding_backward(Context<Cpu>(2), {}, y, table.view());
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace kimik3::test
