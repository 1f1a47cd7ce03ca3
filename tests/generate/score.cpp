#include "kimik3/generate/score.hpp"

#include <boost/test/unit_test.hpp>

#include "support/models.hpp"

using namespace kimik3;
using namespace kimik3::test;

namespace {

using Model = KimiK3<presets::golden>;
using Ids = std::vector<std::int32_t>;
constexpr Index vocab = presets::golden.vocab_size, longest = presets::golden.max_seq_len;

Ids some_ids(Index count, std::uint64_t stream) {
    Philox random(11, stream);
    Ids ids(to_size(count));
    for (auto& id : ids) id = static_cast<std::int32_t>(random.below(vocab));
    return ids;
}

/// The log-likelihood of a token after others, from the logits of one pass.
double direct(Model& model, std::span<const std::int32_t> before, std::int32_t token) {
    const Ids ignored(before.size(), ignored_target);
    model.evaluate(before, ignored);
    const auto logits = model.logits();
    const float* last = logits.row(logits.rows - 1);
    double sum = 0;
    for (Index v = 0; v < vocab; ++v) sum += std::exp(double{last[v]});
    return double{last[token]} - std::log(sum);
}

struct Case {
    Model model{Context<Cpu>(2), 4};
};

}  // namespace

BOOST_FIXTURE_TEST_SUITE(score, Case)

BOOST_AUTO_TEST_CASE(every_token_counts_once_with_the_context_of_its_window) {
    const Index window = 12;
    for (const Index count : {0, 1, 2, 12, 13, 14, 41}) {
        for (const Index stride : {1, 5, 12}) {
            for (const bool begun : {false, true}) {
                const Ids ids = some_ids(count, 1);
                Ids all = ids;
                if (begun) all.insert(all.begin(), 3);
                TextScoreOptions options{.window = window, .stride = stride, .batch = 3};
                if (begun) options.begin_id = 3;
                Index next = begun ? 0 : 1;
                double sum = 0;
                const Shard text("some ids", ids, vocab);
                const TextScore found = score_text(model, text, options, [&](Index position, double log_likelihood) {
                    BOOST_REQUIRE_EQUAL(position, next++);
                    const Index target = position + (begun ? 1 : 0),
                                first = std::max(Index{0}, ceil_div(target - window, stride)) * stride;
                    const auto before = std::span(all).subspan(to_size(first), to_size(target - first));
                    BOOST_TEST(log_likelihood == direct(model, before, all[to_size(target)]),
                               boost::test_tools::tolerance(1e-4));
                    sum -= log_likelihood;
                });
                BOOST_CHECK_EQUAL(next, std::max(count, begun ? Index{0} : Index{1}));
                BOOST_CHECK_EQUAL(found.tokens, std::max(Index{0}, count - (begun ? 0 : 1)));
                BOOST_CHECK_EQUAL(found.nats, sum);
            }
        }
    }
}

BOOST_AUTO_TEST_CASE(one_window_is_the_evaluation_of_the_text) {
    const Ids ids = some_ids(longest + 1, 2);
    const TextScore found = score_text(model, Shard("ids", ids, vocab), {.window = longest, .stride = longest});
    const Loss loss = model.evaluate(Tokens(ids).first(to_size(longest)), Tokens(ids).last(to_size(longest)));
    BOOST_CHECK_EQUAL(found.tokens, loss.counted);
    BOOST_TEST(found.loss() == loss.loss, boost::test_tools::tolerance(1e-12));
    BOOST_TEST(found.perplexity() == std::exp(loss.loss), boost::test_tools::tolerance(1e-12));
    BOOST_TEST(found.bits_per_byte(2 * longest) == loss.loss / std::log(2.0) / 2, boost::test_tools::tolerance(1e-12));
}

BOOST_AUTO_TEST_CASE(b54_windows_left_over_by_a_batch_count_too) {
    const Shard text("ids", some_ids(300, 3), vocab);
    const auto with = [&](Index batch) {
        return score_text(model, text, {.window = 40, .stride = 20, .batch = batch});
    };
    const TextScore alone = with(1);
    for (const Index batch : {2, 5, 100}) {
        BOOST_CHECK_EQUAL(with(batch).tokens, alone.tokens);
        BOOST_TEST(with(batch).nats == alone.nats, boost::test_tools::tolerance(1e-6));
    }
}

BOOST_AUTO_TEST_CASE(b54_every_ending_has_the_likelihood_of_its_tokens_in_any_batch) {
    std::vector<Ending> endings;
    std::vector<double> expected;
    for (const auto& [context, ending] : {std::pair{1, 1}, {1, 9}, {20, 3}, {100, 28}, {100, 29}, {5, 1}, {2, 2}}) {
        const Ids ids = some_ids(context + ending, static_cast<std::uint64_t>(endings.size()));
        endings.push_back({{ids.begin(), ids.begin() + context}, {ids.begin() + context, ids.end()}});
        expected.push_back(0);
        for (std::size_t t = to_size(context); t < ids.size(); ++t)
            expected.back() += direct(model, std::span(ids).first(t), ids[t]);
    }
    for (const Index batch : {1, 3, 7, 50}) KIMIK3_CHECK_CLOSE(score_endings(model, endings, batch), expected, 1e-5);
    BOOST_TEST(score_endings(model, {}).empty());
}

BOOST_AUTO_TEST_CASE(what_cannot_be_scored_is_refused) {
    const Shard text("ids", some_ids(50, 4), vocab);
    for (const TextScoreOptions& wrong :
         {TextScoreOptions{.window = 0}, {.window = longest + 1}, {.window = 8, .stride = 0},
          {.window = 8, .stride = 9}, {.window = 8, .stride = 8, .batch = 0},
          {.window = 8, .stride = 8, .begin_id = static_cast<std::int32_t>(vocab)}})
        BOOST_CHECK_THROW(score_text(model, text, wrong), Error);
    const auto refused = [&](const Ending& ending, Index batch = 1) {
        BOOST_CHECK_THROW(score_endings(model, std::span(&ending, 1), batch), Error);
    };
    refused({{}, {1}});
    refused({{1}, {}});
    refused({{1}, {static_cast<std::int32_t>(vocab)}});
    refused({some_ids(longest, 1), {1, 2}});
    refused({{1}, {1}}, 0);
}

BOOST_AUTO_TEST_SUITE_END()
