#include "kimik3/text/tokenizer_json.hpp"

#include <boost/test/unit_test.hpp>

#include <cstring>
#include <filesystem>

#include "io/files.hpp"
#include "support/german_numbers.hpp"
#include "support/refusal.hpp"
#include "text/tiny_vocabulary.hpp"

using namespace kimik3;
using namespace kimik3::test;
using Json = nlohmann::json;

namespace {

Json tiny_json() { return Json::parse(write_tokenizer_json(tiny_bpe())); }

/// What reading says of the file after a change; "accepted" when it says nothing.
template <class Change>
std::string sentence(Change change) {
    Json file = tiny_json();
    change(file);
    return refusal([&] { Tokenizer(parse_tokenizer_json(file.dump())); });
}

void require_equal(const Tokenizer& a, const Tokenizer& b) {
    for (const std::string& text : {tiny_corpus, every_byte(), "a<|endoftext|>b" + tiny_corpus})
        for (const Specials specials : {Specials::as_text, Specials::recognised})
            BOOST_TEST((a.encode(text, specials) == b.encode(text, specials)));
    BOOST_TEST(a.vocab_size() == b.vocab_size());
    BOOST_TEST((a.begin_id() == b.begin_id()));
    BOOST_TEST((a.end_id() == b.end_id()));
}

}  // namespace

BOOST_AUTO_TEST_SUITE(tokenizer_json)

BOOST_AUTO_TEST_CASE(what_is_written_reads_back_as_the_same_tokenizer_and_the_same_text) {
    for (const Tokenizer& tokenizer : {Tokenizer::bytes(), tiny_bpe()}) {
        const std::string text = write_tokenizer_json(tokenizer);
        const Tokenizer again(parse_tokenizer_json(text));
        require_equal(tokenizer, again);
        BOOST_TEST(write_tokenizer_json(again) == text);
    }
}

BOOST_AUTO_TEST_CASE(every_supported_step_and_flag_survives_writing) {
    TokenizerSpec spec = tiny_bpe().spec();
    spec.ignore_merges = true;
    spec.normalizer = {UnicodeNormalizer{true}, UnicodeNormalizer{false}, PrependNormalizer{"_"},
                       ReplaceNormalizer{"a", true, "bb"}, ReplaceNormalizer{"\\d+", false, ""}};
    spec.pre_tokenizer.clear();
    for (const auto behaviour :
         {SplitBehaviour::isolated, SplitBehaviour::removed, SplitBehaviour::merged_with_previous,
          SplitBehaviour::merged_with_next, SplitBehaviour::contiguous})
        spec.pre_tokenizer.push_back(SplitStep{"[.]x?", behaviour == SplitBehaviour::removed, behaviour, true});
    spec.pre_tokenizer.push_back(DigitsStep{true});
    spec.pre_tokenizer.push_back(ByteLevelStep{true, false, false});
    spec.added_tokens.push_back({"<pad>", 1000, true, true, true, true, true});
    spec.post_processor = R"({"type":"ByteLevel"})";
    const Tokenizer tokenizer(spec);
    const std::string text = write_tokenizer_json(tokenizer);
    const Tokenizer again(parse_tokenizer_json(text));
    require_equal(tokenizer, again);
    BOOST_TEST(write_tokenizer_json(again) == text);
}

BOOST_AUTO_TEST_CASE(merges_are_read_as_texts_and_as_pairs) {
    Json file = tiny_json();
    for (Json& merge : file["model"]["merges"]) merge = merge[0].get<std::string>() + " " + merge[1].get<std::string>();
    require_equal(Tokenizer(parse_tokenizer_json(file.dump())), tiny_bpe());
}

BOOST_AUTO_TEST_CASE(b58_a_token_that_the_vocabulary_gives_twice_is_refused_also_where_one_is_escaped) {
    for (const char* again : {R"("a": 5, )", R"("\u0061": 5, )"}) {
        std::string text = tiny_json().dump();
        text.insert(text.find("\"vocab\":{") + 9, again);
        KIMIK3_CHECK_REFUSED(parse_tokenizer_json(text), "tokenizer.json has the key 'a' twice in one object");
    }
}

BOOST_AUTO_TEST_CASE(the_template_names_the_begin_and_end_tokens) {
    Json file = tiny_json();
    file["added_tokens"].push_back({{"id", 500}, {"content", "<start>"}, {"special", true}});
    file["added_tokens"].push_back({{"id", 501}, {"content", "</s>"}, {"special", true}});
    BOOST_TEST(*Tokenizer(parse_tokenizer_json(file.dump())).end_id() == 501);
    file["post_processor"] =
        Json::parse(R"({"type": "Sequence", "processors": [{"type": "ByteLevel"}, {"type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<start>"}}, {"Sequence": {"id": "A"}},
                    {"SpecialToken": {"id": "<|endoftext|>"}}]}]})");
    const Tokenizer tokenizer(parse_tokenizer_json(file.dump()));
    BOOST_TEST(*tokenizer.begin_id() == 500);
    BOOST_TEST(*tokenizer.end_id() == *tokenizer.id_of(end_of_text));
}

BOOST_AUTO_TEST_CASE(what_is_not_supported_is_refused_by_name) {
    BOOST_TEST(sentence([](Json& f) { f["model"]["type"] = "Unigram"; }) ==
               "tokenizer.json: the model 'Unigram' is not supported, only byte-level BPE is");
    BOOST_TEST(sentence([](Json& f) { f["normalizer"] = {{"type", "NFKC"}}; }) ==
               "tokenizer.json: the normalizer 'NFKC' is not supported for byte-level BPE");
    BOOST_TEST(sentence([](Json& f) { f["pre_tokenizer"] = {{"type", "Metaspace"}}; }) ==
               "tokenizer.json: the pre-tokenizer 'Metaspace' is not supported");
    BOOST_TEST(sentence([](Json& f) { f["decoder"] = {{"type", "Metaspace"}}; }) ==
               "tokenizer.json: the decoder 'Metaspace' is not supported, only ByteLevel is");
    BOOST_TEST(sentence([](Json& f) { f["model"]["dropout"] = 0.1; }) ==
               "tokenizer.json: model.dropout is not supported: encoding must be repeatable");
    BOOST_TEST(sentence([](Json& f) { f["model"]["end_of_word_suffix"] = "</w>"; }) ==
               "tokenizer.json: model.end_of_word_suffix is not supported");
    BOOST_TEST(sentence([](Json& f) { f["pre_tokenizer"] = {{"type", "Digits"}}; }) ==
               "tokenizer.json: the pre-tokenizer has no ByteLevel step; only byte-level BPE is supported");
}

BOOST_AUTO_TEST_CASE(malformed_files_are_refused_with_a_sentence) {
    BOOST_TEST(sentence([](Json&) {}) == "accepted");
    BOOST_TEST(sentence([](Json& f) { f = 3; }) == "tokenizer.json: the file must be an object, is number");
    BOOST_TEST(sentence([](Json& f) { f.erase("model"); }) == "tokenizer.json: the file has no member 'model'");
    BOOST_TEST(sentence([](Json& f) { f["model"]["vocab"] = Json::array(); }) ==
               "tokenizer.json: model.vocab must be an object, is array");
    BOOST_TEST(sentence([](Json& f) { f["model"]["vocab"]["a"] = -1; }) ==
               "tokenizer.json: the id of 'a' must be an integer in [0, 4194304), is -1");
    BOOST_TEST(sentence([](Json& f) { f["model"]["vocab"]["a"] = 18446744073709551615u; }) ==
               "tokenizer.json: the id of 'a' must be an integer in [0, 4194304), is 18446744073709551615");
    BOOST_TEST(sentence([](Json& f) { f["model"]["vocab"]["a"] = 1.5; }) ==
               "tokenizer.json: the id of 'a' must be an integer in [0, 4194304), is 1.5");
    BOOST_TEST(sentence([](Json& f) { f["model"]["vocab"]["\xE4\xB8\xAD"] = 999; }) ==
               "tokenizer.json: the token '\xE4\xB8\xAD' is not written in the byte-level alphabet");
    BOOST_TEST(sentence([](Json& f) { f["model"]["vocab"]["<|endoftext|>"] = 999; }) ==
               "tokenizer.json: '<|endoftext|>' has id 319 among the added tokens and id 999 in the vocabulary");
    BOOST_TEST(sentence([](Json& f) { f["model"]["merges"].push_back("a b c"); }) ==
               "tokenizer.json: a merge is two tokens, as \"a b\" or [\"a\", \"b\"]; this one is \"a b c\"");
    BOOST_TEST(sentence([](Json& f) { f["model"]["merges"].push_back("a zzz"); }) ==
               "tokenizer.json: a merge names 'zzz', which is not in the vocabulary");
    BOOST_TEST(sentence([](Json& f) { f["added_tokens"][0]["special"] = "yes"; }) ==
               "tokenizer.json: added_tokens[].special must be true or false");
    BOOST_TEST(sentence([](Json& f) {
                   f["pre_tokenizer"] = {{"type", "Split"}, {"pattern", {{"Regex", "(a"}}}, {"behavior", "Isolated"}};
                   f["pre_tokenizer"] = {{"type", "Sequence"},
                                         {"pretokenizers", {f["pre_tokenizer"], {{"type", "ByteLevel"}}}}};
               }) == "the regular expression '(a' cannot be compiled: missing closing parenthesis");
    BOOST_CHECK_THROW(parse_tokenizer_json("{"), Error);
    BOOST_CHECK_THROW(parse_tokenizer_json(""), Error);
    BOOST_CHECK_THROW(parse_tokenizer_json(tiny_json().dump() + std::string("\0{}", 3)), Error);
    BOOST_CHECK_THROW(parse_tokenizer_json("{\"a\": \"\xFF\"}"), Error);
    BOOST_CHECK_THROW(read_tokenizer_json("/nonexistent/tokenizer.json"), Error);
}

BOOST_AUTO_TEST_CASE(a_deep_nest_of_sequences_is_refused) {
    std::string nest = R"({"pre_tokenizer":)", end = "}";
    for (int i = 0; i < 100000; ++i) nest += R"({"type":"Sequence","pretokenizers":[)", end += "}]";
    BOOST_CHECK_THROW(parse_tokenizer_json(nest + R"({"type":"ByteLevel"})" + std::string(end.rbegin(), end.rend())),
                      Error);
}

BOOST_AUTO_TEST_CASE(depth_is_refused_wherever_a_value_is_kept_or_shown) {
    const std::string deep = std::string(100000, '[') + std::string(100000, ']');
    for (const char* place : {"\"post_processor\":", "\"vocab\":{\"!\":", "\"merges\":[", "\"dropout\":"}) {
        std::string text = tiny_json().dump();
        BOOST_TEST_REQUIRE(text.find(place) != text.npos, place);
        text.insert(text.find(place) + std::strlen(place), deep);
        const auto of_depth = [](const Error& error) {
            return error.what() == std::string("tokenizer.json nests more than 64 deep");
        };
        BOOST_CHECK_EXCEPTION(parse_tokenizer_json(text), Error, of_depth);
    }
}

BOOST_AUTO_TEST_CASE(a_saved_file_loads) {
    const auto path = std::filesystem::temp_directory_path() / fmt::format("kimik3_tokenizer_{}.json", ::getpid());
    save_tokenizer_json(tiny_bpe(), path.string());
    require_equal(read_tokenizer_json(path.string()), tiny_bpe());
    std::filesystem::remove(path);
}

BOOST_AUTO_TEST_CASE(b78_tokenizer_files_do_not_depend_on_the_locale) {
    TokenizerSpec spec = tiny_bpe().spec();
    spec.added_tokens.push_back({"<far>", 1234567, true});
    const Tokenizer tokenizer(spec);
    const std::string text = write_tokenizer_json(tokenizer);
    const GermanNumbers german;
    BOOST_TEST((write_tokenizer_json(tokenizer) == text));
    const Tokenizer again(parse_tokenizer_json(text));
    require_equal(tokenizer, again);
    BOOST_TEST((again.encode("a<far>", Specials::recognised).back() == 1234567));
}

BOOST_AUTO_TEST_SUITE_END()
