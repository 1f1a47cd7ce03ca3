#include "kimik3/text/tokenizer.hpp"

#include <boost/test/unit_test.hpp>

#include "support/refusal.hpp"
#include "text/tiny_vocabulary.hpp"

using namespace kimik3;
using namespace kimik3::test;

namespace {

using Ids = std::vector<std::int32_t>;

void require_identity(const Tokenizer& tokenizer, std::string_view text) {
    for (const Specials specials : {Specials::as_text, Specials::recognised}) {
        const Ids ids = tokenizer.encode(text, specials);
        BOOST_REQUIRE_MESSAGE(tokenizer.decode(ids) == text,
                              "a text of " << text.size() << " bytes comes back changed");
        for (const std::int32_t id : ids) BOOST_REQUIRE(0 <= id && id < tokenizer.vocab_size());
    }
}

std::vector<Tokenizer> every_kind() {
    TokenizerSpec kimi = tiny_bpe().spec();
    kimi.pre_tokenizer = {SplitStep{std::string(kimi_pattern)}, DigitsStep{true}, ByteLevelStep{.use_regex = false}};
    kimi.ignore_merges = true;
    return {Tokenizer::bytes(), tiny_bpe(), Tokenizer(kimi)};
}

}  // namespace

BOOST_AUTO_TEST_SUITE(tokenizer)

BOOST_AUTO_TEST_CASE(b62_decoding_inverts_encoding_on_any_bytes) {
    for (const Tokenizer& tokenizer : every_kind()) {
        for (const char* text : {"", "\xE2\x80", "a\r\nb\r\n", "\xED\xA0\x80\xED\xBF\xBF", " \xFF \xFE ",
                                 "\xF0\x9F\x98", "a <|endoftext|> b"})
            require_identity(tokenizer, text);
        require_identity(tokenizer, std::string("\0a\0\0 \0", 6));
        require_identity(tokenizer, every_byte());
        require_identity(tokenizer, tiny_corpus);
    }
}

BOOST_AUTO_TEST_CASE(b62_decoding_inverts_encoding_on_every_byte_and_every_pair_of_bytes) {
    const std::string bytes = every_byte();
    for (const Tokenizer& tokenizer : every_kind()) {
        for (const char first : bytes) {
            require_identity(tokenizer, {&first, 1});
            for (const char second : bytes) require_identity(tokenizer, std::string{first, second});
        }
    }
}

BOOST_AUTO_TEST_CASE(b62_the_work_on_one_piece_grows_as_its_length) {
    const TokenizerSpec spec = spec_with_merges({{" ", " "}, {"  ", "  "}, {"    ", "    "}, {"a", "a"}});
    detail::MergeTable table;
    for (int byte = 0; byte < 256; ++byte) table.set_byte(static_cast<unsigned char>(byte), byte);
    for (const Merge& merge : spec.merges) {
        const std::string bytes =
            spec.vocabulary[to_size(merge.left)].bytes + spec.vocabulary[to_size(merge.right)].bytes;
        for (const VocabularyEntry& entry : spec.vocabulary)
            if (entry.bytes == bytes) table.add(merge, entry.id);
    }
    for (const char letter : {' ', 'a', 'b'}) {
        detail::MergeTable::Scratch scratch;
        Ids ids;
        const Index half = table.encode(std::string(1 << 15, letter), scratch, ids);
        const Index whole = table.encode(std::string(1 << 16, letter), scratch, ids);
        BOOST_TEST(whole <= 2 * half + 8);
        BOOST_TEST(whole <= 4 * (1 << 16));
    }
}

BOOST_AUTO_TEST_CASE(b62_a_mebibyte_of_spaces_and_long_runs_of_anything_are_encoded) {
    for (const Tokenizer& tokenizer : every_kind()) {
        require_identity(tokenizer, std::string(1 << 20, ' '));
        for (const char* unit : {"a", "A", "7", "-", "\n", "\xFF", " a", "\xE4\xB8\xAD"}) {
            std::string text;
            while (text.size() < 1 << 17) text += unit;
            require_identity(tokenizer, text);
        }
    }
}

BOOST_AUTO_TEST_CASE(b61_a_special_token_in_a_text_is_text_unless_asked) {
    for (const Tokenizer& tokenizer : every_kind()) {
        const std::string text = "a<|endoftext|>b";
        const std::int32_t special = *tokenizer.id_of(end_of_text);
        const Ids plain = tokenizer.encode(text, Specials::as_text),
                  recognised = tokenizer.encode(text, Specials::recognised);
        for (const std::int32_t id : plain) BOOST_TEST(!tokenizer.is_special(id));
        BOOST_TEST(tokenizer.decode(plain) == text);
        BOOST_TEST((recognised == Ids{'a', special, 'b'}));
        BOOST_TEST(tokenizer.decode(recognised) == text);
        BOOST_TEST(tokenizer.decode(recognised, true) == "ab");
    }
}

BOOST_AUTO_TEST_CASE(b61_ids_come_from_the_file_and_not_from_the_position) {
    TokenizerSpec spec = Tokenizer::bytes().spec();
    spec.begin_id.reset(), spec.end_id.reset();
    spec.added_tokens = {{"<b>", 900, true}, {std::string(end_of_text), 300, true}, {"<a>", 700, false}};
    const Tokenizer tokenizer(spec);
    BOOST_TEST(tokenizer.vocab_size() == 901);
    BOOST_TEST((tokenizer.encode("<a><b><|endoftext|>", Specials::recognised) == Ids{700, 900, 300}));
    BOOST_TEST(*tokenizer.begin_id() == 300);
    BOOST_TEST(*tokenizer.end_id() == 300);
    BOOST_CHECK_EXCEPTION(tokenizer.decode(Ids{500}), Error, [](const Error& e) {
        return std::string(e.what()) == "token id 500 is not one of the tokenizer's (its ids are below 901)";
    });
    for (const std::int32_t id : {-1, 901, std::numeric_limits<std::int32_t>::max()})
        BOOST_CHECK_THROW(tokenizer.decode(Ids{id}), Error);
}

BOOST_AUTO_TEST_CASE(without_special_tokens_there_is_no_begin_and_no_end) {
    const Tokenizer tokenizer(spec_with_merges({}));
    BOOST_TEST(!tokenizer.begin_id());
    BOOST_TEST(!tokenizer.end_id());
    BOOST_TEST(!tokenizer.id_of(end_of_text));
}

BOOST_AUTO_TEST_CASE(the_lowest_rank_merges_first_and_of_equal_ranks_the_leftmost) {
    const Tokenizer tokenizer(spec_with_merges({{"b", "c"}, {"a", "b"}, {"a", "a"}, {"ab", "c"}}));
    const auto tokens = [&](std::string_view text) {
        std::string out;
        for (const std::int32_t id : tokenizer.encode(text, Specials::as_text))
            out.append(tokenizer.token_bytes(id)) += '|';
        return out;
    };
    BOOST_TEST(tokens("abc") == "a|bc|");
    BOOST_TEST(tokens("aaa") == "aa|a|");
    BOOST_TEST(tokens("abab") == "ab|ab|");
    BOOST_TEST(tokens("aabc") == "aa|bc|");
}

BOOST_AUTO_TEST_CASE(a_piece_that_is_a_token_is_that_token_only_where_merges_reach_it_or_are_ignored) {
    TokenizerSpec spec = spec_with_merges({{"a", "b"}});
    spec.vocabulary.push_back({"xyz", 300});
    BOOST_TEST((Tokenizer(spec).encode("xyz", Specials::as_text) == Ids{'x', 'y', 'z'}));
    spec.ignore_merges = true;
    BOOST_TEST((Tokenizer(spec).encode("xyz", Specials::as_text) == Ids{300}));
}

BOOST_AUTO_TEST_CASE(streamed_text_is_well_formed_and_equals_the_decoded_text) {
    for (const Tokenizer& tokenizer : every_kind()) {
        for (const std::string& text : {tiny_corpus, every_byte() + tiny_corpus + "\xF0\x9F\x98"}) {
            const Ids ids = tokenizer.encode(text, Specials::as_text);
            StreamDecoder stream(tokenizer);
            std::string all;
            for (const std::int32_t id : ids) {
                const std::string out = stream.push(id);
                BOOST_REQUIRE(is_utf8(out));
                all += out;
            }
            all += stream.flush();
            Utf8Stream whole;
            const std::string expected = whole.push(text);
            BOOST_TEST(all == expected + whole.flush());
        }
    }
}

BOOST_AUTO_TEST_CASE(streaming_skips_special_tokens_where_asked) {
    const Tokenizer tokenizer = Tokenizer::bytes();
    StreamDecoder shown(tokenizer), skipped(tokenizer, true);
    BOOST_TEST(shown.push(256) == end_of_text);
    BOOST_TEST(skipped.push(256).empty());
}

BOOST_AUTO_TEST_CASE(added_tokens_match_leftmost_longest_with_their_flags) {
    TokenizerSpec spec = spec_with_merges({});
    spec.added_tokens = {
        {"foo", 300, false, true}, {"foobar", 301}, {"<m>", 302, true, false, true, true}, {"<m>x", 303, true}};
    const Tokenizer tokenizer(spec);
    const auto ids = [&](std::string_view text) { return tokenizer.encode(text, Specials::recognised); };
    BOOST_TEST((ids("foobar") == Ids{301}));
    BOOST_TEST((ids("foo.") == Ids{300, '.'}));
    BOOST_TEST((ids("food") == Ids{'f', 'o', 'o', 'd'}));
    BOOST_TEST((ids("a \xC2\xA0<m>\t\nb") == Ids{'a', 302, 'b'}));
    BOOST_TEST((ids("<m>x") == Ids{303}));
    BOOST_TEST((tokenizer.encode("foobar<m>", Specials::as_text) == Ids{301, '<', 'm', '>'}));
}

BOOST_AUTO_TEST_CASE(b62_a_byte_without_a_token_is_left_out_and_its_neighbours_meet) {
    TokenizerSpec spec = spec_with_merges({{"a", "b"}});
    std::erase_if(spec.vocabulary, [](const VocabularyEntry& entry) { return entry.bytes == "c"; });
    spec.vocabulary.erase(spec.vocabulary.begin() + 4);
    const Tokenizer tokenizer(spec);
    BOOST_TEST(tokenizer.missing_bytes() == "\x04" "c");
    for (const std::int32_t id : {-1, 4, int{'c'}, 1 << 20}) BOOST_TEST(!tokenizer.has(id), id);
    for (const std::int32_t id : {0, 3, 5, int{'b'}, 256}) BOOST_TEST(tokenizer.has(id), id);
    BOOST_TEST(tokenizer.decode(tokenizer.encode("xacb\x04y c", Specials::as_text)) == "xaby ");
    BOOST_TEST(tokenizer.encode("acb", Specials::as_text) == tokenizer.encode("ab", Specials::as_text));
    BOOST_TEST(tokenizer.encode("c", Specials::as_text).empty());
    BOOST_TEST(tiny_bpe().missing_bytes() == "");
}

BOOST_AUTO_TEST_CASE(wrong_data_is_refused_with_a_sentence) {
    const auto sentence = [](auto change) {
        TokenizerSpec spec = spec_with_merges({{"a", "b"}});
        change(spec);
        return refusal([&] { Tokenizer(std::move(spec)); });
    };
    BOOST_TEST(sentence([](TokenizerSpec&) {}) == "accepted");
    BOOST_TEST(sentence([](TokenizerSpec& s) { s.vocabulary = {{"ab", 0}}, s.merges.clear(); }) ==
               "a byte-level vocabulary has tokens of single bytes; this one of 1 tokens has none");
    BOOST_TEST(sentence([](TokenizerSpec& s) {
                   s.vocabulary.push_back({"x", 999});
               }) == "the vocabulary gives the token 'x' twice");
    BOOST_TEST(sentence([](TokenizerSpec& s) {
                   s.vocabulary.push_back({"xy", 65});
               }) == "token id 65 is given to two tokens");
    BOOST_TEST(sentence([](TokenizerSpec& s) { s.vocabulary.push_back({"xy", 1 << 30}); }) ==
               "a token id must be in [0, 4194304), got 1073741824");
    BOOST_TEST(sentence([](TokenizerSpec& s) { s.merges.push_back({'x', 'y'}); }) ==
               "the merge of 'x' and 'y' gives a token that is not in the vocabulary");
    BOOST_TEST(sentence([](TokenizerSpec& s) { s.merges.push_back({'x', 5000}); }) ==
               "a merge names the token id 5000, which is not in the vocabulary");
    BOOST_TEST(sentence([](TokenizerSpec& s) {
                   s.added_tokens = {{"q", 300, true}, {"q", 301, true}};
               }) == "the added token 'q' is given twice");
    BOOST_TEST(sentence([](TokenizerSpec& s) { s.end_id = 4000; }) == "the end token has id 4000, which is no token");
}

BOOST_AUTO_TEST_SUITE_END()
