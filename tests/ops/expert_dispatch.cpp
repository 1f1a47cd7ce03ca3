#include "kimik3/ops/cpu/expert_dispatch.hpp"

#include <boost/test/unit_test.hpp>

#include "support/matrix.hpp"

namespace kimik3::test {
namespace {

/// k different experts a token, chosen by a seed; the last expert stays idle.
Matrix<std::int32_t> some_choice(Index tokens, Index chosen, Index experts, std::uint64_t seed) {
    Matrix<std::int32_t> choice(tokens, chosen);
    Philox numbers(seed);
    for (Index n = 0; n < tokens; ++n) {
        const auto first = static_cast<Index>(numbers.below(static_cast<std::uint64_t>(experts)));
        for (Index j = 0; j < chosen; ++j) choice(n, j) = static_cast<std::int32_t>((first + 3 * j) % (experts - 1));
    }
    return choice;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(dispatch)

BOOST_AUTO_TEST_CASE(every_pair_has_one_row_of_its_expert_in_rising_order_and_rows_fill_whole_tiles) {
    for (Index tokens : {0, 1, 5, 7, 8, 9, 64, 130}) {
        const Index experts = 9, chosen = 2;
        Matrix<std::int32_t> choice = some_choice(tokens, chosen, experts, 3);
        Matrix<Index> offset(1, experts + 1), source(1, ExpertDispatch::max_rows(tokens, chosen, experts)),
            position(tokens, chosen);
        const ExpertDispatch d{offset.vector(), source.vector(), position};
        expert_dispatch(Context<Cpu>(1), choice, d);
        Index pairs = 0;
        BOOST_TEST(d.offset[0] == 0);
        BOOST_TEST(d.offset[experts] <= d.source.size);
        BOOST_TEST(d.rows(experts - 1) == 0);
        for (Index e = 0; e < experts; ++e) {
            BOOST_TEST(d.rows(e) % (tokens < 8 ? 1 : 8) == 0);
            Index last = -1, padding = 0;
            for (Index r = d.offset[e]; r < d.offset[e + 1]; ++r) {
                const Index pair = d.source[r];
                padding += pair < 0;
                if (pair < 0) continue;
                BOOST_TEST(padding == 0);
                BOOST_TEST(pair > last);
                last = pair;
                BOOST_TEST(choice(pair / chosen, pair % chosen) == e);
                BOOST_TEST(d.position(pair / chosen, pair % chosen) == r);
                ++pairs;
            }
            BOOST_TEST(padding < 8);
        }
        BOOST_TEST(pairs == tokens * chosen);
    }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace kimik3::test
