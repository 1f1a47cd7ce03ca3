#include "kimik3/tensor/sequences.hpp"

#include <boost/test/unit_test.hpp>

#include "support/refusal.hpp"

using namespace kimik3;
using kimik3::test::contains;
using kimik3::test::refusal;

BOOST_AUTO_TEST_SUITE(sequences)

BOOST_AUTO_TEST_CASE(what_is_no_row_of_sequences_is_refused_in_a_sentence) {
    BOOST_TEST(contains(refusal([] { Sequences(std::vector<Index>{}); }), "begin with 0"));
    BOOST_TEST(contains(refusal([] { Sequences({1, 2}); }), "begin with 0"));
    BOOST_TEST(contains(refusal([] { Sequences({0, 5, 3}); }), "never fall, got 3 after 5"));
    BOOST_TEST(contains(refusal([] { Sequences({0, 1}, {0, 1}); }), "1 sequences need as many slots, got 2"));
    BOOST_TEST(contains(refusal([] { Sequences({0, 1}, {0}, {0, 0}); }), "as many past lengths, got 2"));
    BOOST_TEST(contains(refusal([] { Sequences::uniform(-2, 3); }), "got -2 of 3"));
    BOOST_TEST(contains(refusal([] { Sequences::uniform(2, -3); }), "got 2 of -3"));
    BOOST_TEST(Sequences::uniform(3, 0).tokens() == 0);
}

BOOST_AUTO_TEST_SUITE_END()
