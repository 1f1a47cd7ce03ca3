#include "kimik3/text/bpe_trainer.hpp"

#include <boost/test/unit_test.hpp>

#include <map>

#include "kimik3/core/rng.hpp"
#include "text/tiny_vocabulary.hpp"

using namespace kimik3;
using namespace kimik3::test;

namespace {

/// The merges of a tokenizer as "left+right" texts.
std::vector<std::string> merges_of(const Tokenizer& tokenizer) {
    std::vector<std::string> out;
    for (const Merge& merge : tokenizer.spec().merges)
        out.push_back(std::string(tokenizer.token_bytes(merge.left)) + "+" +
                      std::string(tokenizer.token_bytes(merge.right)));
    return out;
}

Tokenizer trained(std::initializer_list<std::pair<const char*, Index>> texts, BpeTrainerOptions options) {
    BpeTrainer trainer(std::move(options));
    for (const auto& [text, weight] : texts) trainer.push(text, weight);
    return trainer.train();
}

/// The same definition without queue or bookkeeping: all pairs are counted anew for every merge.
std::vector<std::string> merges_by_recounting(const std::string& text, Index merges) {
    std::map<std::string, Index> pieces;
    Matcher matcher;
    PreTokenizer({ByteLevelStep{}}).split(text, matcher, [&](std::string_view piece) { ++pieces[std::string(piece)]; });
    std::vector<std::pair<std::vector<std::int32_t>, Index>> words;
    for (const auto& [piece, count] : pieces) {
        words.push_back({{}, count});
        for (const char c : piece) words.back().first.push_back(static_cast<unsigned char>(c));
    }
    std::vector<std::string> tokens, out;
    for (const char c : every_byte()) tokens.emplace_back(1, c);
    while (static_cast<Index>(out.size()) < merges) {
        std::map<std::pair<std::int32_t, std::int32_t>, Index> counts;
        for (const auto& [ids, count] : words)
            for (std::size_t i = 0; i + 1 < ids.size(); ++i) counts[{ids[i], ids[i + 1]}] += count;
        auto best = counts.end();
        for (auto pair = counts.begin(); pair != counts.end(); ++pair)
            if (best == counts.end() || pair->second > best->second) best = pair;
        if (best == counts.end() || best->second < 2) break;
        const auto [left, right] = best->first;
        const std::string bytes = tokens[to_size(left)] + tokens[to_size(right)];
        out.push_back(tokens[to_size(left)] + "+" + tokens[to_size(right)]);
        auto id = static_cast<std::int32_t>(std::find(tokens.begin(), tokens.end(), bytes) - tokens.begin());
        if (to_size(id) == tokens.size()) tokens.push_back(bytes);
        for (auto& [ids, count] : words)
            for (std::size_t i = 0; i + 1 < ids.size(); ++i)
                if (ids[i] == left && ids[i + 1] == right) {
                    ids[i] = id;
                    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(i) + 1);
                }
    }
    return out;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(bpe_trainer)

BOOST_AUTO_TEST_CASE(the_most_frequent_pair_is_merged_first) {
    const Tokenizer tokenizer = trained({{"ab ab ab cd cd", 1}}, {.vocab_size = 259});
    BOOST_TEST((merges_of(tokenizer) == std::vector<std::string>{"a+b", " +c"}));
    BOOST_TEST(*tokenizer.id_of("ab") == 256);
    BOOST_TEST(*tokenizer.id_of(end_of_text) == 258);
    BOOST_TEST(*tokenizer.end_id() == 258);
    BOOST_TEST(tokenizer.is_special(258));
}

BOOST_AUTO_TEST_CASE(b62_ties_go_to_the_smaller_left_id_and_then_to_the_smaller_right_id) {
    for (const char* text : {"cd\ncb\nab\nad", "ad\nab\ncb\ncd"}) {
        BpeTrainer trainer({.vocab_size = 400, .min_pair_count = 1});
        detail::for_each_line(text, [&](std::string_view line, Index) { trainer.push(line); });
        BOOST_TEST((merges_of(trainer.train()) == std::vector<std::string>{"a+b", "a+d", "c+b", "c+d"}));
    }
}

BOOST_AUTO_TEST_CASE(b62_pair_counts_do_not_wrap_at_31_or_32_bits) {
    const Tokenizer tokenizer =
        trained({{"xy", 3'000'000'000}, {"ab", 2'999'999'999}, {"pq", 5'000'000'000}, {"uv", 2}}, {.vocab_size = 400});
    BOOST_TEST((merges_of(tokenizer) == std::vector<std::string>{"p+q", "x+y", "a+b", "u+v"}));
}

BOOST_AUTO_TEST_CASE(counts_beyond_2_to_the_62_are_refused) {
    BpeTrainer trainer;
    trainer.push("ab", Index{1} << 61);
    BOOST_CHECK_THROW(trainer.push("a"), Error);
    BOOST_CHECK_THROW(trainer.push("a", 0), Error);
    BOOST_CHECK_THROW(trainer.push("a", -3), Error);
}

BOOST_AUTO_TEST_CASE(incremental_counts_equal_counting_anew) {
    std::string text = tiny_corpus + "aaaa aaaaa aaaaaaa abcabcabc bcabca mississippi mississippi";
    Philox random(7);
    for (int i = 0; i < 4000; ++i) text.push_back("aabc \n"[random.below(6)]);
    const Tokenizer tokenizer = trained({{text.c_str(), 1}}, {.vocab_size = 257 + 200});
    BOOST_TEST(merges_of(tokenizer) == merges_by_recounting(text, static_cast<Index>(tokenizer.spec().merges.size())),
               boost::test_tools::per_element());
    BOOST_TEST(tokenizer.spec().merges.size() > 150);
}

BOOST_AUTO_TEST_CASE(a_vocabulary_stays_smaller_when_no_pair_is_left) {
    BOOST_TEST(trained({}, {}).vocab_size() == 257);
    BOOST_TEST(trained({{"abc", 1}}, {}).vocab_size() == 257);
    BOOST_TEST(trained({{"abc", 1}}, {.min_pair_count = 1}).vocab_size() == 259);
}

BOOST_AUTO_TEST_CASE(a_trained_tokenizer_merges_its_own_text_into_its_tokens) {
    const Tokenizer tokenizer = tiny_bpe();
    const auto ids = tokenizer.encode(" cat the that", Specials::as_text);
    BOOST_TEST(ids.size() == 3);
    BOOST_TEST(tokenizer.decode(ids) == " cat the that");
}

BOOST_AUTO_TEST_CASE(any_bytes_can_be_trained_on) {
    BpeTrainer trainer({.vocab_size = 300, .min_pair_count = 1});
    trainer.push(every_byte());
    trainer.push(std::string(5000, '\xFF') + "\xE2\x80" + std::string(3, '\0'));
    const Tokenizer tokenizer = trainer.train();
    BOOST_TEST(tokenizer.decode(tokenizer.encode(every_byte(), Specials::as_text)) == every_byte());
}

BOOST_AUTO_TEST_CASE(the_end_of_text_token_is_never_made_by_merges) {
    BpeTrainer trainer({.vocab_size = 400, .min_pair_count = 1, .pre_tokenizer = {ByteLevelStep{.use_regex = false}}});
    trainer.push(end_of_text, 10);
    const Tokenizer tokenizer = trainer.train();
    for (const std::int32_t id : tokenizer.encode(end_of_text, Specials::as_text))
        BOOST_TEST(!tokenizer.is_special(id));
}

BOOST_AUTO_TEST_CASE(progress_ends_at_the_whole) {
    std::vector<Index> done;
    trained({{tiny_corpus.c_str(), 1}}, {.vocab_size = 267, .min_pair_count = 1, .progress = [&](Index d, Index of) {
                                             BOOST_TEST(of == 10);
                                             done.push_back(d);
                                         }});
    BOOST_TEST(done.size() >= 10);
    BOOST_TEST(done.back() == 10);
}

BOOST_AUTO_TEST_CASE(impossible_sizes_are_refused) {
    BOOST_CHECK_THROW(BpeTrainer({.vocab_size = 256}), Error);
    BOOST_CHECK_THROW(BpeTrainer({.vocab_size = Index{1} << 40}), Error);
    BOOST_CHECK_THROW(BpeTrainer({.min_pair_count = 0}), Error);
}

BOOST_AUTO_TEST_SUITE_END()
