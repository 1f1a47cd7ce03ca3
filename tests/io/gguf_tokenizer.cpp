#include <boost/test/unit_test.hpp>

#include "io/files.hpp"
#include "kimik3/io/gguf_tokenizer.hpp"
#include "kimik3/io/gguf_writer.hpp"
#include "text/tiny_vocabulary.hpp"

using namespace kimik3;
using namespace kimik3::test;

namespace {

const std::string texts[] = {tiny_corpus, "", " a<|endoftext|> 1234567 x", every_byte(), "<|endoftext|><|endoftext|>"};

void require_equal_ids(const Tokenizer& a, const Tokenizer& b) {
    for (const std::string& text : texts)
        for (const Specials specials : {Specials::as_text, Specials::recognised})
            BOOST_TEST((a.encode(text, specials) == b.encode(text, specials)), text);
}

Tokenizer written_and_read(const GgufMetadata& keys) {
    const TemporaryFolder folder;
    write_gguf(folder / "vocabulary.gguf", keys, {});
    return load_any_tokenizer(folder / "vocabulary.gguf");
}

std::string pre_of(const GgufVocabulary& vocabulary) {
    for (const auto& [key, value] : vocabulary.keys)
        if (key == "tokenizer.ggml.pre") return std::get<std::string>(value);
    return {};
}

Tokenizer with_steps(std::vector<PreTokenizerStep> steps, bool ignore_merges = false) {
    TokenizerSpec spec = tiny_bpe().spec();
    spec.pre_tokenizer = std::move(steps);
    spec.ignore_merges = ignore_merges;
    return Tokenizer(spec);
}

GgufMetadata changed(std::string_view name, std::optional<GgufValue> value) {
    GgufMetadata keys = format_gguf_tokenizer(tiny_bpe(), 320).keys;
    std::erase_if(keys, [&](const auto& entry) { return entry.first == name; });
    if (value) keys.emplace_back(name, *value);
    return keys;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(gguf_tokenizer)

BOOST_AUTO_TEST_CASE(a_tokenizer_of_any_kind_comes_back_with_its_ids) {
    const ByteLevelStep bytes{.use_regex = false};
    const std::pair<Tokenizer, std::string> cases[] = {
        {Tokenizer::bytes(), "gpt-2"},
        {tiny_bpe(), "gpt-2"},
        {with_steps({SplitStep{std::string(gpt2_pattern)}, bytes}), "gpt-2"},
        {with_steps({DigitsStep{true}, ByteLevelStep{}}), "smollm"},
        {with_steps({SplitStep{R"(\p{N})"}, ByteLevelStep{}}), "smollm"},
        {with_steps({SplitStep{std::string(detail::llama3_pattern)}, bytes}, true), "llama-bpe"},
        {with_steps({SplitStep{std::string(detail::llama3_pattern)}, bytes}), "dbrx"},
        {with_steps({SplitStep{std::string(detail::qwen2_pattern)}, bytes}), "qwen2"},
        {with_steps({SplitStep{std::string(kimi_pattern)}, bytes}, true), "kimi-k2"},
    };
    for (const auto& [tokenizer, pre] : cases) {
        const GgufVocabulary vocabulary = format_gguf_tokenizer(tokenizer, 400);
        BOOST_TEST(vocabulary.warnings.empty());
        BOOST_TEST(pre_of(vocabulary) == pre);
        const Tokenizer read = written_and_read(vocabulary.keys);
        BOOST_TEST(read.vocab_size() == tokenizer.vocab_size());  // the padding is no token
        BOOST_TEST(*read.end_id() == *tokenizer.end_id());
        require_equal_ids(read, tokenizer);
    }
}

BOOST_AUTO_TEST_CASE(b61_special_and_added_tokens_keep_ids_and_kinds) {
    TokenizerSpec spec = tiny_bpe().spec();
    spec.added_tokens.push_back({"<|im_end|>", 330, true});
    spec.added_tokens.push_back({"two words", 335, false});
    spec.end_id = 330;
    const Tokenizer tokenizer(spec), read = written_and_read(format_gguf_tokenizer(tokenizer, 336).keys);
    BOOST_TEST(*read.end_id() == 330);
    BOOST_TEST(read.is_special(330));
    BOOST_TEST(!read.is_special(335));
    const std::string text = "the<|im_end|>two words<|im_end";
    for (const Specials specials : {Specials::as_text, Specials::recognised})
        BOOST_TEST((read.encode(text, specials) == tokenizer.encode(text, specials)));
    BOOST_TEST(read.decode(read.encode(text, Specials::as_text)) == text);
}

BOOST_AUTO_TEST_CASE(what_llama_cpp_cannot_do_is_refused_or_said) {
    const Tokenizer words = with_steps({SplitStep{R"(\w+)"}, ByteLevelStep{.use_regex = false}});
    KIMIK3_CHECK_REFUSED(format_gguf_tokenizer(words, 320), "none of gpt-2, smollm, llama-bpe, dbrx, qwen2, kimi-k2");
    const GgufVocabulary forced = format_gguf_tokenizer(words, 320, "smollm");
    BOOST_TEST(pre_of(forced) == "smollm");
    BOOST_REQUIRE(forced.warnings.size() == 1u);
    BOOST_TEST(contains(forced.warnings[0], "may make other tokens"));
    KIMIK3_CHECK_REFUSED(format_gguf_tokenizer(words, 319), "the tokenizer has 320 tokens, the model's");

    TokenizerSpec spec = tiny_bpe().spec();
    spec.normalizer.push_back(UnicodeNormalizer{});
    spec.added_tokens[0].rstrip = true;
    spec.ignore_merges = true;
    BOOST_TEST(format_gguf_tokenizer(Tokenizer(spec), 320).warnings.size() == 3u);
    spec = tiny_bpe().spec();
    spec.added_tokens = {{"\xC4\xA0" "the", 400, true}};  // as " the" is written
    spec.begin_id.reset(), spec.end_id.reset();
    KIMIK3_CHECK_REFUSED(format_gguf_tokenizer(Tokenizer(spec), 401),
                         "no room for two tokens written '\xC4\xA0" "the'");
}

BOOST_AUTO_TEST_CASE(a_vocabulary_that_contradicts_itself_is_refused_by_key_and_token) {
    using Texts = std::vector<std::string>;
    const auto refused = [](std::string_view key, std::optional<GgufValue> value) {
        return refusal([&] { written_and_read(changed(key, std::move(value))); });
    };
    const auto check = [](const std::string& said, std::string_view part) {
        BOOST_TEST(contains(said, part), "'" << part << "' is not in: " << said);
    };
    check(refused("tokenizer.ggml.model", std::nullopt), "holds no vocabulary");
    check(refused("tokenizer.ggml.model", std::string("llama")), "the tokenizer model 'llama' is not supported");
    check(refused("tokenizer.ggml.pre", std::string("viking")), "the pre-tokenizer 'viking'");
    check(refused("tokenizer.ggml.pre", std::uint32_t{1}), "key 'tokenizer.ggml.pre' is a uint32");
    check(refused("tokenizer.ggml.tokens", std::nullopt), "has no key 'tokenizer.ggml.tokens'");
    check(refused("tokenizer.ggml.tokens", Texts{"a"}), "key 'tokenizer.ggml.token_type' has 320 entries for 1 tokens");
    check(refused("tokenizer.ggml.token_type", std::vector<std::int32_t>(320, 6)), "token 0 '\xC4\x80' has the type 6");
    check(refused("tokenizer.ggml.merges", std::nullopt), "has no key 'tokenizer.ggml.merges'");
    check(refused("tokenizer.ggml.merges", Texts{"ab"}), "a merge is two tokens with a space between, not 'ab'");
    check(refused("tokenizer.ggml.merges", Texts{"a qqq"}), "the merge 'a qqq' names 'qqq', which is no token");
    check(refused("tokenizer.ggml.merges", Texts{"q q"}), "the merge of 'q' and 'q' gives a token that is not in");
    check(refused("tokenizer.ggml.eos_token_id", std::uint32_t{320}), "key 'tokenizer.ggml.eos_token_id' is 320");
    check(refused("tokenizer.ggml.tokens", Texts(320, "a b")), "the normal token 0 'a b' is not written in the byte");
}

BOOST_AUTO_TEST_CASE(no_name_of_a_pattern_means_llama_cpps_default) {
    const Tokenizer read = written_and_read(changed("tokenizer.ggml.pre", std::nullopt));
    std::vector<std::string> pieces;
    Matcher matcher;
    PreTokenizer(read.spec().pre_tokenizer).split("it's 12345 <b>", matcher, [&](std::string_view piece) {
        pieces.emplace_back(piece);
    });
    const std::vector<std::string> expected = {"it", "'", "s", " ", "123", "45", " ", "<", "b", ">"};
    BOOST_TEST(pieces == expected, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(kimis_file_without_merges_merges_by_rank) {
    TokenizerSpec spec = parse_tiktoken(R"(YQ== 0
Yg== 1
Yw== 2
YWI= 3
YWJj 4)");
    const Tokenizer ranks(spec);
    GgufMetadata keys = format_gguf_tokenizer(ranks, 5).keys;
    std::erase_if(keys, [](const auto& entry) { return entry.first == "tokenizer.ggml.merges"; });
    const Tokenizer read = written_and_read(keys);
    for (const char* text : {"abc", "ababc", "cab", "abab"})
        BOOST_TEST((read.encode(text, Specials::as_text) == ranks.encode(text, Specials::as_text)));
}

BOOST_AUTO_TEST_CASE(any_other_file_is_read_as_ever) {
    const TemporaryFolder folder;
    save_tokenizer_json(tiny_bpe(), folder / "tokenizer.json");
    require_equal_ids(load_any_tokenizer(folder / "tokenizer.json"), tiny_bpe());
    require_equal_ids(load_any_tokenizer(folder / ""), tiny_bpe());
    KIMIK3_CHECK_REFUSED(load_any_tokenizer(folder / "missing"), "missing");
    put(folder / "cut.gguf", "GGUF");
    KIMIK3_CHECK_REFUSED(load_any_tokenizer(folder / "cut.gguf"), "is cut: the header");
    KIMIK3_CHECK_REFUSED(load_tokenizer(folder / "cut.gguf"), "is a GGUF file");
}

BOOST_AUTO_TEST_SUITE_END()
