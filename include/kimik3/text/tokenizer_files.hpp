#pragma once
// The other files that tokenizers come in: tiktoken's rank files (lines "base64-bytes rank"; Kimi's tiktoken.model),
// GPT-2's vocab.json with merges.txt, and a function that recognises any of them by its content.

#include "kimik3/text/tokenizer_json.hpp"

namespace kimik3 {

/// Kimi's split pattern (tokenization_kimi.py of Kimi K2 and K3).
inline constexpr std::string_view kimi_pattern =
    R"([\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*)"
    R"([\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+)"
    R"([\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

/// A rank file's text -> a tokenizer without special tokens. A pair of tokens merges when its bytes are a token, and
/// the lowest rank, which is the token's id, wins.
TokenizerSpec parse_tiktoken(std::string_view text, std::string_view pattern = kimi_pattern);

/// The rank file and the 256 special tokens behind its last id, named by added_tokens_decoder of a
/// tokenizer_config.json beside it, or <|reserved_token_ID|>. Kimi's own wrapper also cuts texts at 400,000 characters
/// and words at 25,000 characters before it encodes; that is not done here.
Tokenizer read_tiktoken(const std::string& path);

/// GPT-2's pair of texts, and tokens that stand in neither or are found in texts as they are; <|endoftext|> is special
/// where the vocabulary has it.
TokenizerSpec parse_gpt2(std::string_view vocab_json, std::string_view merges_txt, std::vector<AddedToken> added = {});

/// A directory, or a file in any of these forms. bos_token and eos_token of a tokenizer_config.json beside it are the
/// begin and end tokens, which must be tokens and become special; GPT-2's pair has its added tokens from
/// added_tokens_decoder there, or else from an added_tokens.json. The vocabulary in a GGUF file is read by
/// load_any_tokenizer (io/gguf_tokenizer.hpp).
Tokenizer load_tokenizer(const std::string& path);

/// Writes tokenizer.json into a folder and, where that file alone would lose the begin or the end token, a
/// tokenizer_config.json that names them; load_tokenizer reads both back. Returns the names of the files.
std::vector<std::string> save_tokenizer(const Tokenizer& tokenizer, const std::filesystem::path& folder);

namespace detail {

inline std::string from_base64(std::string_view text, Index line) {
    std::string out;
    std::uint32_t bits = 0;
    int count = 0;
    std::size_t at = 0;
    for (; at < text.size() && text[at] != '='; ++at) {
        const char c = text[at];
        const int value = c >= 'A' && c <= 'Z'   ? c - 'A'
                          : c >= 'a' && c <= 'z' ? c - 'a' + 26
                          : c >= '0' && c <= '9' ? c - '0' + 52
                          : c == '+'             ? 62
                          : c == '/'             ? 63
                                                 : -1;
        require(value >= 0, "line {} of the rank file is not base64: '{}'", line, text.substr(0, 80));
        bits = ((bits << 6) | static_cast<std::uint32_t>(value)) & 0xffffff;
        if ((count += 6) >= 8) {
            count -= 8;
            out.push_back(static_cast<char>(static_cast<unsigned char>((bits >> count) & 0xff)));
        }
    }
    const bool padded = text.size() % 4 == 0 && text.size() - at <= 2 &&
                        text.substr(at) == std::string_view("==").substr(0, text.size() - at);
    require(padded && !out.empty(), "line {} of the rank file is not base64: '{}'", line, text.substr(0, 80));
    return out;
}

/// Calls take(line, number) for every line without its end; numbers begin at 1.
template <class Take>
void for_each_line(std::string_view text, Take&& take) {
    for (Index number = 1; !text.empty(); ++number) {
        const std::size_t end = text.find('\n');
        std::string_view line = text.substr(0, end);
        text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
        if (line.ends_with('\r')) line.remove_suffix(1);
        take(line, number);
    }
}

inline std::int32_t parse_rank(std::string_view digits, Index line) {
    std::int64_t value = 0;
    bool good = !digits.empty() && digits.size() <= 9;
    for (const char c : digits) {
        good = good && c >= '0' && c <= '9';
        value = value * 10 + (c - '0');
        if (!good) break;
    }
    require(good && value < token_id_limit, "line {} of the rank file has no rank in [0, {}): '{}'", line,
            token_id_limit, digits);
    return static_cast<std::int32_t>(value);
}

/// Every way to cut a token into two tokens is a merge of its rank.
inline void add_rank_merges(TokenizerSpec& spec) {
    std::unordered_map<std::string_view, std::int32_t> ids;
    for (const VocabularyEntry& entry : spec.vocabulary) ids.emplace(entry.bytes, entry.id);
    for (const VocabularyEntry& entry : spec.vocabulary) {
        bool tied = false;
        const std::string_view bytes = entry.bytes;
        for (std::size_t cut = 1; cut < bytes.size(); ++cut) {
            const auto left = ids.find(bytes.substr(0, cut)), right = ids.find(bytes.substr(cut));
            if (left == ids.end() || right == ids.end()) continue;
            spec.merges.push_back({left->second, right->second, tied});
            tied = true;
        }
    }
}

/// A file in a directory, or null.
inline Json read_json_beside(const std::filesystem::path& directory, const char* name) {
    const std::filesystem::path path = directory / name;
    return std::filesystem::exists(path) ? parse_json(read_text_file(path.string()), path.string()) : Json();
}
inline Json read_tokenizer_config(const std::filesystem::path& directory) {
    return read_json_beside(directory, "tokenizer_config.json");
}

/// What stands beside GPT-2's pair of files: {"id": {"content": ...}} in the config, or {content: id}.
inline std::vector<AddedToken> added_tokens_beside(const std::filesystem::path& directory, const Json& config) {
    std::vector<AddedToken> tokens;
    const Json decoder = config.is_object() ? config.value("added_tokens_decoder", Json()) : Json();
    if (decoder.is_object()) {
        for (const auto& [id, value] : decoder.items()) {
            const JsonObject token(value, "added_tokens_decoder." + id);
            const Json number = Json::parse(id, nullptr, false);
            tokens.push_back(read_added_token(token, json_id(number, token.string("content"))));
        }
        return tokens;
    }
    const Json added = read_json_beside(directory, "added_tokens.json");
    for (const auto& [content, id] : added.items())
        tokens.push_back({content, json_id(id, content), false, false, false, false, true});
    return tokens;
}

inline void add_special_tokens(TokenizerSpec& spec, const Json& config) {
    constexpr std::int32_t reserved = 256;
    const std::int32_t first = spec.vocabulary.back().id + 1;
    const Json named = config.is_object() ? config.value("added_tokens_decoder", Json()) : Json();
    for (std::int32_t id = first; id < first + reserved; ++id) {
        AddedToken token{fmt::format("<|reserved_token_{}|>", id), id, true};
        if (const auto found = named.find(std::to_string(id)); named.is_object() && found != named.end()) {
            const JsonObject entry(*found, "added_tokens_decoder." + std::to_string(id));
            token.content = entry.string("content");
            token.special = entry.boolean("special", true);
        }
        spec.added_tokens.push_back(std::move(token));
    }
}

/// bos_token and eos_token are a text, or an object with a member `content`.
inline Tokenizer with_config(TokenizerSpec spec, const Json& config) {
    const auto named = [&](const char* name, std::optional<std::int32_t>& id) {
        Json value = config.is_object() ? config.value(name, Json()) : Json();
        if (value.is_object()) value = value.value("content", Json());
        if (!value.is_string()) return;
        const std::string content = value.get<std::string>();
        const auto added = std::ranges::find(spec.added_tokens, content, &AddedToken::content);
        const auto entry = std::ranges::find(spec.vocabulary, content, &VocabularyEntry::bytes);
        if (added != spec.added_tokens.end()) {
            id = added->id;
        } else {
            require(entry != spec.vocabulary.end(), "tokenizer_config.json: {} is '{}', which is no token", name,
                    content);
            id = entry->id;
            spec.added_tokens.push_back({content, entry->id, true});
        }
    };
    named("bos_token", spec.begin_id);
    named("eos_token", spec.end_id);
    return Tokenizer(std::move(spec));
}

}  // namespace detail

inline TokenizerSpec parse_tiktoken(std::string_view text, std::string_view pattern) {
    TokenizerSpec spec;
    detail::for_each_line(text, [&](std::string_view line, Index number) {
        if (line.empty()) return;
        const std::size_t space = line.find(' ');
        require(space != std::string_view::npos, "line {} of the rank file is not \"base64 rank\": '{}'", number,
                line.substr(0, 80));
        spec.vocabulary.push_back(
            {detail::from_base64(line.substr(0, space), number), detail::parse_rank(line.substr(space + 1), number)});
    });
    require(!spec.vocabulary.empty(), "the rank file holds no token");
    std::sort(spec.vocabulary.begin(), spec.vocabulary.end(), [](const auto& a, const auto& b) { return a.id < b.id; });
    spec.ignore_merges = true;
    spec.pre_tokenizer = {SplitStep{std::string(pattern)}, ByteLevelStep{.use_regex = false}};
    detail::add_rank_merges(spec);
    return spec;
}

inline TokenizerSpec parse_gpt2(std::string_view vocab_json, std::string_view merges_txt,
                                std::vector<AddedToken> added) {
    using detail::Json;
    Json merges = Json::array();
    detail::for_each_line(merges_txt, [&](std::string_view line, Index number) {
        if (!line.empty() && !(number == 1 && line.starts_with("#version"))) merges.push_back(line);
    });
    const Json model =
        Json::object({{"vocab", detail::parse_json(vocab_json, "vocab.json")}, {"merges", std::move(merges)}});
    TokenizerSpec spec;
    spec.added_tokens = std::move(added);
    if (model["vocab"].is_object() && model["vocab"].contains(end_of_text) &&
        std::ranges::find(spec.added_tokens, end_of_text, &AddedToken::content) == spec.added_tokens.end())
        spec.added_tokens.push_back(
            {std::string(end_of_text), detail::json_id(model["vocab"][end_of_text], end_of_text), true});
    spec.pre_tokenizer = {ByteLevelStep{}};
    detail::read_model(detail::JsonObject(model, "model"), spec);
    return spec;
}

inline Tokenizer read_tiktoken(const std::string& path) {
    const std::string text = detail::read_text_file(path);
    TokenizerSpec spec;
    try {
        spec = parse_tiktoken(text);
    } catch (const Error& error) {
        fail("'{}' is no other form of a tokenizer and no rank file: {}", path, error.what());
    }
    const detail::Json config = detail::read_tokenizer_config(std::filesystem::path(path).parent_path());
    detail::add_special_tokens(spec, config);
    for (const AddedToken& token : spec.added_tokens) {
        if (token.content == "[BOS]") spec.begin_id = token.id;
        if (token.content == "[EOS]") spec.end_id = token.id;
    }
    return detail::with_config(std::move(spec), config);
}

inline Tokenizer load_tokenizer(const std::string& path) {
    namespace fs = std::filesystem;
    if (fs::is_directory(path)) {
        for (const char* name : {"tokenizer.json", "tiktoken.model", "vocab.json"})
            if (const fs::path inside = fs::path(path) / name; fs::exists(inside))
                return load_tokenizer(inside.string());
        fail("'{}' holds no tokenizer.json, tiktoken.model or vocab.json", path);
    }
    const std::string text = detail::read_text_file(path);
    require(!text.starts_with("GGUF"), "'{}' is a GGUF file, which load_any_tokenizer of kimik3/io.hpp reads", path);
    const fs::path directory = fs::path(path).parent_path();
    const std::size_t first = text.find_first_not_of(" \t\r\n");
    if (text.starts_with("#version")) return load_tokenizer((directory / "vocab.json").string());
    if (first == std::string::npos || text[first] != '{') return read_tiktoken(path);
    const detail::Json config = detail::read_tokenizer_config(directory);
    const detail::Json file = detail::parse_json(text, path);
    const auto model = file.find("model");
    if (model != file.end() && model->is_object()) return detail::with_config(detail::read_tokenizer(file), config);
    return detail::with_config(parse_gpt2(text, detail::read_text_file((directory / "merges.txt").string()),
                                          detail::added_tokens_beside(directory, config)), config);
}

inline std::vector<std::string> save_tokenizer(const Tokenizer& tokenizer, const std::filesystem::path& folder) {
    save_tokenizer_json(tokenizer, (folder / "tokenizer.json").string());
    const Tokenizer alone = read_tokenizer_json((folder / "tokenizer.json").string());
    if (alone.begin_id() == tokenizer.begin_id() && alone.end_id() == tokenizer.end_id()) return {"tokenizer.json"};
    detail::Json config = detail::Json::object();
    const auto name = [&](const char* key, std::optional<std::int32_t> id) {
        if (id) config[key] = tokenizer.token_bytes(*id);
    };
    name("bos_token", tokenizer.begin_id());
    name("eos_token", tokenizer.end_id());
    write_text_file(folder / "tokenizer_config.json", config.dump(1) + "\n");
    return {"tokenizer.json", "tokenizer_config.json"};
}

}  // namespace kimik3
