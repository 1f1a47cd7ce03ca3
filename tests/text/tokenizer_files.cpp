#include "kimik3/text/tokenizer_files.hpp"

#include <boost/test/unit_test.hpp>

#include "support/refusal.hpp"
#include "text/tiny_vocabulary.hpp"

using namespace kimik3;
using namespace kimik3::test;
namespace fs = std::filesystem;

namespace {

/// A folder that goes with the test.
struct Folder {
    fs::path path = fs::temp_directory_path() / fmt::format("kimik3_text_{}", ::getpid());
    Folder() { fs::create_directory(path); }
    ~Folder() { fs::remove_all(path); }
    std::string write(const char* name, const std::string& text) const {
        std::ofstream(path / name, std::ios::binary) << text;
        return (path / name).string();
    }
};

std::string to_base64(std::string_view bytes) {
    const std::string_view letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    std::string out;
    for (std::size_t i = 0; i < bytes.size(); i += 3) {
        std::uint32_t bits = 0;
        for (std::size_t j = 0; j < 3; ++j)
            bits = (bits << 8) | (i + j < bytes.size() ? static_cast<unsigned char>(bytes[i + j]) : 0u);
        for (std::size_t j = 0; j < 4; ++j)
            out.push_back(i + j > bytes.size() ? '=' : letters[(bits >> (18 - 6 * j)) & 63]);
    }
    return out;
}

std::string rank_file(const TokenizerSpec& spec) {
    std::string out;
    for (const VocabularyEntry& entry : spec.vocabulary)
        out += fmt::format("{} {}\n", to_base64(entry.bytes), entry.id);
    return out;
}

/// tiny_bpe() as GPT-2's pair of files, each with the mark in front; end_of_text is what vocab.json calls the end.
void write_gpt2(const Folder& folder, const std::string& mark = "", const std::string& end_of_text = "<|endoftext|>") {
    nlohmann::json model = nlohmann::json::parse(write_tokenizer_json(tiny_bpe()))["model"];
    const nlohmann::json end = model["vocab"]["<|endoftext|>"];
    model["vocab"].erase("<|endoftext|>");
    model["vocab"][end_of_text] = end;
    std::string merges = "#version: 0.2\n";
    for (const auto& merge : model["merges"])
        merges += merge[0].get<std::string>() + " " + merge[1].get<std::string>() + "\n";
    folder.write("vocab.json", mark + model["vocab"].dump());
    folder.write("merges.txt", mark + merges);
}

std::string load_sentence(const Folder& folder) {
    try {
        load_tokenizer(folder.path.string());
    } catch (const Error& error) {
        return error.what();
    }
    return "accepted";
}

}  // namespace

BOOST_AUTO_TEST_SUITE(tokenizer_files)

BOOST_AUTO_TEST_CASE(a_rank_file_merges_by_the_rank_of_the_joined_bytes) {
    const TokenizerSpec spec = parse_tiktoken(rank_file(spec_with_merges({{"b", "c"}, {"a", "b"}, {"ab", "c"}})));
    const Tokenizer tokenizer(spec);
    BOOST_TEST((tokenizer.encode("abcx", Specials::as_text) == std::vector<std::int32_t>{258, 'x'}));
    BOOST_TEST((tokenizer.encode("abc", Specials::as_text) == std::vector<std::int32_t>{258}));
    BOOST_TEST(tokenizer.decode(tokenizer.encode(every_byte() + tiny_corpus, Specials::as_text)) ==
               every_byte() + tiny_corpus);
}

BOOST_AUTO_TEST_CASE(kimis_pattern_keeps_han_apart_and_takes_digits_by_three) {
    std::vector<std::string> pieces;
    Matcher matcher;
    PreTokenizer({SplitStep{std::string(kimi_pattern)}})
        .split("Hello中文words 12345\n\n  It's ÉTÉ", matcher,
               [&](std::string_view piece) { pieces.emplace_back(piece); });
    const std::vector<std::string> expected = {"Hello", "中文", "words", " ",     "123",
                                               "45",    "\n\n", " ",     " It's", " ÉTÉ"};
    BOOST_TEST(pieces == expected, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(the_special_tokens_of_a_rank_file_come_from_the_config_beside_it) {
    const Folder folder;
    const std::string path = folder.write("tiktoken.model", rank_file(tiny_bpe().spec()));
    const std::int32_t first = static_cast<std::int32_t>(tiny_bpe().spec().vocabulary.size());
    const Tokenizer bare = load_tokenizer(path);
    BOOST_TEST(bare.vocab_size() == first + 256);
    BOOST_TEST(*bare.id_of(fmt::format("<|reserved_token_{}|>", first + 7)) == first + 7);
    BOOST_TEST(!bare.end_id());

    folder.write("tokenizer_config.json",
                 fmt::format(R"({{"added_tokens_decoder": {{"{}": {{"content": "[BOS]", "special": true}},
        "{}": {{"content": "<|end_of_msg|>", "special": true}}}}, "bos_token": "[BOS]",
        "eos_token": {{"content": "<|end_of_msg|>"}}}})",
                             first, first + 2));
    const Tokenizer named = load_tokenizer(folder.path.string());
    BOOST_TEST(*named.begin_id() == first);
    BOOST_TEST(*named.end_id() == first + 2);
    BOOST_TEST((named.encode("<|end_of_msg|>", Specials::recognised) == std::vector<std::int32_t>{first + 2}));
    const Tokenizer again(parse_tokenizer_json(write_tokenizer_json(named)));
    for (const Specials specials : {Specials::as_text, Specials::recognised})
        BOOST_TEST((again.encode(tiny_corpus + "[BOS]", specials) == named.encode(tiny_corpus + "[BOS]", specials)));
}

BOOST_AUTO_TEST_CASE(gpt2s_pair_of_files_is_read) {
    const Tokenizer tokenizer = tiny_bpe();
    const Folder folder;
    write_gpt2(folder);
    for (const fs::path& path : {folder.path, folder.path / "vocab.json", folder.path / "merges.txt"}) {
        const Tokenizer read = load_tokenizer(path.string());
        const std::string text = tiny_corpus + "<|endoftext|>";
        for (const Specials specials : {Specials::as_text, Specials::recognised})
            BOOST_TEST((read.encode(text, specials) == tokenizer.encode(text, specials)));
        BOOST_TEST(*read.end_id() == *tokenizer.end_id());
    }
}

BOOST_AUTO_TEST_CASE(b61_the_end_token_that_a_config_names_is_special_though_only_the_vocabulary_has_it) {
    const Folder folder;
    write_gpt2(folder, "", "</s>");
    const std::int32_t end = tiny_bpe().end_id().value();
    BOOST_TEST(!load_tokenizer(folder.path.string()).end_id());
    folder.write("tokenizer_config.json", R"({"eos_token": "</s>"})");
    const Tokenizer pair = load_tokenizer(folder.path.string());
    folder.write("tokenizer.json", [&] {
        nlohmann::json file = nlohmann::json::parse(write_tokenizer_json(tiny_bpe()));
        file["model"]["vocab"]["</s>"] = 400;
        return file.dump();
    }());
    const Tokenizer json = load_tokenizer(folder.path.string());
    for (const auto& [tokenizer, id] : {std::pair(pair, end), std::pair(json, 400)}) {
        BOOST_TEST(tokenizer.end_id().value() == id);
        BOOST_TEST(tokenizer.is_special(id));
        BOOST_TEST((tokenizer.encode("</s>", Specials::recognised) == std::vector{id}));
        BOOST_TEST(tokenizer.encode("</s>", Specials::as_text).size() == 4);
    }
}

BOOST_AUTO_TEST_CASE(b61_a_config_that_names_no_token_is_refused) {
    const Folder folder;
    folder.write("tokenizer.json", write_tokenizer_json(tiny_bpe()));
    folder.write("tokenizer_config.json", R"({"bos_token": null, "eos_token": "<|im_end|>"})");
    BOOST_TEST(load_sentence(folder) == "tokenizer_config.json: eos_token is '<|im_end|>', which is no token");
}

BOOST_AUTO_TEST_CASE(b61_added_tokens_beside_gpt2s_pair_of_files_have_the_ids_given_there) {
    const Folder folder;
    write_gpt2(folder);
    folder.write("added_tokens.json", R"({"<|tool|>": 330})");
    const Tokenizer older = load_tokenizer(folder.path.string());
    BOOST_TEST((older.encode("a<|tool|>", Specials::as_text) == std::vector<std::int32_t>{'a', 330}));
    BOOST_TEST(older.end_id().value() == tiny_bpe().end_id().value());
    folder.write("tokenizer_config.json", R"({"eos_token": "<|im_end|>", "added_tokens_decoder": {
        "340": {"content": "<|im_end|>", "special": true}, "341": {"content": "<|tool|>"}}})");
    const Tokenizer newer = load_tokenizer(folder.path.string());
    BOOST_TEST(newer.end_id().value() == 340);
    BOOST_TEST((newer.encode("<|im_end|><|tool|>", Specials::recognised) == std::vector<std::int32_t>{340, 341}));
    BOOST_TEST(newer.encode("<|im_end|><|tool|>", Specials::as_text).back() == 341);
    folder.write("tokenizer_config.json", R"({"added_tokens_decoder": {"x": {"content": "<|im_end|>"}}})");
    BOOST_TEST(load_sentence(folder).starts_with("tokenizer.json: the id of '<|im_end|>' must be an integer"));
}

BOOST_AUTO_TEST_CASE(a_byte_order_mark_in_front_of_a_file_is_no_part_of_it) {
    const std::string mark = "\xEF\xBB\xBF";
    const auto tokens = [](const fs::path& path) { return load_tokenizer(path.string()).spec().merges.size(); };
    const Folder folder;
    write_gpt2(folder, mark);
    for (const char* name : {"vocab.json", "merges.txt"})
        BOOST_TEST(tokens(folder.path / name) == tiny_bpe().spec().merges.size());
    const std::string ranks = folder.write("tiktoken.model", mark + rank_file(tiny_bpe().spec()));
    BOOST_TEST(load_tokenizer(ranks).vocab_size() == 319 + 256);
    folder.write("tokenizer_config.json", mark + R"({"eos_token": "<|endoftext|>"})");
    folder.write("tokenizer.json", mark + write_tokenizer_json(tiny_bpe()));
    BOOST_TEST(tokens(folder.path / "tokenizer.json") == tiny_bpe().spec().merges.size());
}

BOOST_AUTO_TEST_CASE(a_folder_with_a_tokenizer_json_is_loaded) {
    const Folder folder;
    BOOST_CHECK_THROW(load_tokenizer(folder.path.string()), Error);
    folder.write("tokenizer.json", write_tokenizer_json(tiny_bpe()));
    BOOST_TEST(load_tokenizer(folder.path.string()).vocab_size() == 320);
}

BOOST_AUTO_TEST_CASE(malformed_rank_files_are_refused_with_the_line) {
    const auto sentence = [](std::string_view text) { return refusal([&] { parse_tiktoken(text); }); };
    BOOST_TEST(sentence("YQ== 0\nYg== 1\n") == "accepted");
    BOOST_TEST(sentence("") == "the rank file holds no token");
    BOOST_TEST(sentence("YQ== 0\nYg==\n") == "line 2 of the rank file is not \"base64 rank\": 'Yg=='");
    BOOST_TEST(sentence("Y*== 0") == "line 1 of the rank file is not base64: 'Y*=='");
    BOOST_TEST(sentence("YQ= 0") == "line 1 of the rank file is not base64: 'YQ='");
    BOOST_TEST(sentence("YQ== -1") == "line 1 of the rank file has no rank in [0, 4194304): '-1'");
    BOOST_TEST(sentence("YQ== 99999999999999999999") ==
               "line 1 of the rank file has no rank in [0, 4194304): '99999999999999999999'");
}

BOOST_AUTO_TEST_SUITE_END()
