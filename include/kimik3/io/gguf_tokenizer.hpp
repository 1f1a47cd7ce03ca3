#pragma once
// The vocabulary inside a GGUF file, read and written: the keys tokenizer.ggml.* of the model "gpt2", which is
// byte-level BPE. Tokens are in the byte-level alphabet (type normal) or as they are (control: special; user_defined:
// added); merges are "left right". The file has no split patterns: tokenizer.ggml.pre names one of those that llama.cpp
// holds (src/llama-vocab.cpp there), of which the table below has the common ones. As everywhere in this library no
// token is put around a text: add_bos_token is written as false and not carried out.

#include <algorithm>
#include <fstream>
#include <span>

#include "kimik3/io/gguf.hpp"
#include "kimik3/text/tokenizer_files.hpp"

namespace kimik3 {

/// The tokenizer of a GGUF file. What is unknown or contradicts itself is an Error that names the key or the token.
TokenizerSpec parse_gguf_tokenizer(const GgufFile& file);

/// A tokenizer in any form: a GGUF file, or what load_tokenizer takes.
Tokenizer load_any_tokenizer(const std::string& path);

/// What a GGUF file has of a tokenizer, and what llama.cpp will do otherwise than the tokenizer.
struct GgufVocabulary {
    GgufMetadata keys;
    std::vector<std::string> warnings;
};

/// The keys of a tokenizer for a model of vocab_size tokens; ids without a token become [PADid]. pre: empty for the
/// name in the table whose pattern is the tokenizer's, else a name to write whatever the pattern is. Throws Error where
/// no name is given and none fits.
GgufVocabulary format_gguf_tokenizer(const Tokenizer& tokenizer, Index vocab_size, std::string_view pre = {});

namespace detail {

/// llama.cpp's llama_token_type.
enum class GgufTokenType : std::int32_t { normal = 1, unknown, control, user_defined, unused, byte };

/// Names that stand for one way to cut a text, of which the first is written. ignore_merges: as in TokenizerSpec.
struct GgufPre {
    std::vector<std::string_view> names;
    std::vector<PreTokenizerStep> steps;
    bool ignore_merges = false;
};

inline constexpr std::string_view llama3_pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+)"
    R"(|\s+(?!\S)|\s+)";
inline constexpr std::string_view qwen2_pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+)"
    R"(|\s+(?!\S)|\s+)";

inline std::vector<GgufPre> gguf_pre_names() {
    const auto split = [](std::string_view pattern) -> std::vector<PreTokenizerStep> {
        return {SplitStep{std::string(pattern)}, ByteLevelStep{.use_regex = false}};
    };
    return {
        {{"gpt-2", "phi-2", "mpt", "olmo", "jais", "roberta-bpe", "jina-v2-code", "modern-bert", "gigachat"},
         {ByteLevelStep{}}},
        {{"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"},
         {DigitsStep{.individual_digits = true}, ByteLevelStep{}}},
        {{"llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "lfm2"}, split(llama3_pattern), true},
        {{"dbrx", "smaug-bpe", "chatglm-bpe"}, split(llama3_pattern)},
        {{"qwen2", "stablelm2", "deepseek-r1-qwen", "megrez", "hunyuan"}, split(qwen2_pattern)},
        {{"kimi-k2"}, split(kimi_pattern), true},
        {{"default"},
         {SplitStep{R"([\p{P}\$\+<=>\^~\|]+)"}, SplitStep{std::string(gpt2_pattern)}, SplitStep{R"(\p{N}+)"},
          SplitStep{"[0-9][0-9][0-9]"}, ByteLevelStep{.use_regex = false}}},
    };
}

/// The steps as texts in which equal ways to cut a text are equal.
inline std::vector<std::string> canonical_steps(const std::vector<PreTokenizerStep>& steps) {
    std::vector<std::string> all;
    const auto add = [&](std::string_view pattern, SplitBehaviour behaviour, bool invert) {
        all.push_back(fmt::format("{} {} {}", static_cast<int>(behaviour), invert, pattern));
    };
    for (const PreTokenizerStep& step : steps) {
        if (const auto* split = std::get_if<SplitStep>(&step)) {
            add(split->literal ? quote_regex(split->pattern) : split->pattern, split->behaviour, split->invert);
        } else if (const auto* digits = std::get_if<DigitsStep>(&step)) {
            add("\\p{N}", digits->individual_digits ? SplitBehaviour::isolated : SplitBehaviour::contiguous, false);
        } else if (const auto* bytes = std::get_if<ByteLevelStep>(&step)) {
            if (bytes->add_prefix_space) all.emplace_back("a prefix space");
            if (bytes->use_regex) add(gpt2_pattern, SplitBehaviour::isolated, false);
        }
    }
    return all;
}

inline const GgufPre* find_pre(const std::vector<GgufPre>& known, std::string_view name) {
    for (const GgufPre& pre : known)
        if (std::ranges::find(pre.names, name) != pre.names.end()) return &pre;
    return nullptr;
}

/// The name to write for a tokenizer, and what its use changes.
inline std::string choose_pre(const TokenizerSpec& spec, std::string_view wanted, std::vector<std::string>& warnings) {
    const std::vector<GgufPre> known = gguf_pre_names();
    const auto steps = canonical_steps(spec.pre_tokenizer);
    const auto cuts_so = [&](const GgufPre& pre) {
        return spec.merges.empty() || canonical_steps(pre.steps) == steps;  // without merges every byte is a token
    };
    const GgufPre* chosen = find_pre(known, wanted);
    if (wanted.empty()) {
        for (const GgufPre& pre : known)
            if (cuts_so(pre) && (chosen == nullptr || chosen->ignore_merges != spec.ignore_merges)) chosen = &pre;
        std::string names;
        for (const GgufPre& pre : known) names.append(names.empty() ? "" : ", ").append(pre.names[0]);
        require(chosen != nullptr, "llama.cpp cuts texts in one of the ways that tokenizer.ggml.pre names, and none of "
                "{} is the tokenizer's ({}); a name given all the same is written with a warning", names,
                fmt::join(steps, "; "));
    }
    const std::string name(wanted.empty() ? chosen->names[0] : wanted);
    if (chosen == nullptr || !cuts_so(*chosen))
        warnings.push_back(fmt::format("tokenizer.ggml.pre is '{}', which is not known to cut texts as this tokenizer "
                                       "does: llama.cpp may make other tokens of them", name));
    else if (chosen->ignore_merges != spec.ignore_merges && !spec.merges.empty())
        warnings.push_back(fmt::format("with tokenizer.ggml.pre '{}' llama.cpp {} a piece that is a token by itself; "
                                       "this tokenizer does the other", name,
                                       chosen->ignore_merges ? "takes" : "merges"));
    return name;
}

/// Fills vocabulary and added tokens; returns the ids by the text of the token in the file.
inline std::unordered_map<std::string_view, std::int32_t> read_gguf_tokens(const GgufFile& file,
                                                                           std::span<const std::string> tokens,
                                                                           TokenizerSpec& spec) {
    constexpr std::string_view key = "tokenizer.ggml.token_type";
    const auto types = file.get<std::vector<std::int32_t>>(key);
    require(!types || types->size() == tokens.size(), "'{}': key '{}' has {} entries for {} tokens", file.path(), key,
            types ? types->size() : 0, tokens.size());
    require(tokens.size() <= to_size(token_id_limit), "'{}' has {} tokens; there are at most {}", file.path(),
            tokens.size(), token_id_limit);
    std::unordered_map<std::string_view, std::int32_t> ids;
    for (std::size_t t = 0; t < tokens.size(); ++t) {
        const auto id = static_cast<std::int32_t>(t);
        const auto type = types ? static_cast<GgufTokenType>((*types)[t]) : GgufTokenType::normal;
        if (type == GgufTokenType::unused) continue;
        const bool normal = type == GgufTokenType::normal;
        const bool special = type == GgufTokenType::control || type == GgufTokenType::unknown;
        require(normal || special || type == GgufTokenType::user_defined,
                "'{}': token {} '{}' has the type {}; byte-level BPE has normal (1), unknown (2), control (3), "
                "user_defined (4) and unused (5) tokens", file.path(), t, shown_name(tokens[t]),
                static_cast<int>(type));
        std::optional<std::string> bytes = from_byte_alphabet(tokens[t]);
        require(!normal || bytes, "'{}': the normal token {} '{}' is not written in the byte-level alphabet",
                file.path(), t, shown_name(tokens[t]));
        if (!normal) spec.added_tokens.push_back({tokens[t], id, special});
        if (normal || bytes == tokens[t]) spec.vocabulary.push_back({std::move(*bytes), id});
        if (bytes) ids.emplace(tokens[t], id);
    }
    return ids;
}

}  // namespace detail

inline TokenizerSpec parse_gguf_tokenizer(const GgufFile& file) {
    const auto model = file.get<std::string>("tokenizer.ggml.model");
    require(model.has_value(), "'{}' holds no vocabulary: it has no key 'tokenizer.ggml.model'", file.path());
    require(*model == "gpt2", "'{}': the tokenizer model '{}' is not supported, only byte-level BPE ('gpt2') is",
            file.path(), detail::shown_name(*model));
    const auto name = file.get<std::string>("tokenizer.ggml.pre").value_or("default");
    const std::vector<detail::GgufPre> known = detail::gguf_pre_names();
    const detail::GgufPre* pre = detail::find_pre(known, name);
    std::string names;
    for (const detail::GgufPre& entry : known) names += fmt::format("{} ", fmt::join(entry.names, " "));
    require(pre != nullptr, "'{}': the pre-tokenizer '{}' (tokenizer.ggml.pre) is not known; known are {}",
            file.path(), detail::shown_name(name), names);

    TokenizerSpec spec;
    spec.pre_tokenizer = pre->steps;
    spec.ignore_merges = pre->ignore_merges;
    const auto tokens = file.at<std::vector<std::string>>("tokenizer.ggml.tokens");
    const auto ids = detail::read_gguf_tokens(file, tokens, spec);
    constexpr std::string_view merges_key = "tokenizer.ggml.merges";
    if (file.find_key(merges_key) == nullptr && name == "kimi-k2") {
        detail::add_rank_merges(spec);
    } else {
        for (const std::string& merge : file.at<std::vector<std::string>>(merges_key)) {
            const std::size_t space = merge.find(' ');
            require(space != std::string::npos, "'{}': a merge is two tokens with a space between, not '{}'",
                    file.path(), detail::shown_name(merge));
            const auto id_of = [&](std::string_view token) {
                const auto found = ids.find(token);
                require(found != ids.end(), "'{}': the merge '{}' names '{}', which is no token", file.path(),
                        detail::shown_name(merge), detail::shown_name(token));
                return found->second;
            };
            const std::string_view text = merge;
            spec.merges.push_back({id_of(text.substr(0, space)), id_of(text.substr(space + 1))});
        }
    }
    const auto token_id = [&](const char* key) -> std::optional<std::int32_t> {
        const auto id = file.get<Index>(key);
        if (!id) return std::nullopt;
        require(*id >= 0 && *id < static_cast<Index>(tokens.size()), "'{}': key '{}' is {}, there are {} tokens",
                file.path(), key, *id, tokens.size());
        return static_cast<std::int32_t>(*id);
    };
    spec.begin_id = token_id("tokenizer.ggml.bos_token_id");
    spec.end_id = token_id("tokenizer.ggml.eos_token_id");
    return spec;
}

inline Tokenizer load_any_tokenizer(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    char magic[gguf_magic.size()]{};
    if (file.read(magic, sizeof magic) && std::string_view(magic, sizeof magic) == gguf_magic)
        return Tokenizer(parse_gguf_tokenizer(GgufFile(path)));
    return load_tokenizer(path);
}

inline GgufVocabulary format_gguf_tokenizer(const Tokenizer& tokenizer, Index vocab_size, std::string_view pre) {
    using detail::GgufTokenType;
    const TokenizerSpec& spec = tokenizer.spec();
    require(tokenizer.vocab_size() <= vocab_size, "the tokenizer has {} tokens, the model's vocabulary only {}",
            tokenizer.vocab_size(), vocab_size);
    GgufVocabulary vocabulary;
    const std::string name = detail::choose_pre(spec, pre, vocabulary.warnings);
    const auto warn = [&](bool condition, const char* sentence) {
        if (condition) vocabulary.warnings.emplace_back(sentence);
    };
    warn(!spec.normalizer.empty(),
         "the tokenizer changes texts before it cuts them (a normaliser); llama.cpp does not");
    warn(std::ranges::any_of(spec.added_tokens, [](const auto& t) { return t.lstrip || t.rstrip || t.single_word; }),
         "added tokens take white space with them or stand only between words; in llama.cpp they do not");
    warn(!tokenizer.end_id(), "the tokenizer has no end token; llama.cpp then takes token 11 for one");

    std::vector<std::string> tokens;
    for (Index id = 0; id < vocab_size; ++id) tokens.push_back(fmt::format("[PAD{}]", id));
    std::vector<std::int32_t> types(tokens.size(), static_cast<std::int32_t>(GgufTokenType::unused));
    const auto put = [&](std::int32_t id, std::string text, GgufTokenType type) {
        tokens[to_size(id)] = std::move(text);
        types[to_size(id)] = static_cast<std::int32_t>(type);
    };
    for (const VocabularyEntry& entry : spec.vocabulary)
        put(entry.id, to_byte_alphabet(entry.bytes), GgufTokenType::normal);
    for (const AddedToken& token : spec.added_tokens)
        put(token.id, token.content, token.special ? GgufTokenType::control : GgufTokenType::user_defined);
    std::unordered_map<std::string_view, std::size_t> places;
    for (std::size_t t = 0; t < tokens.size(); ++t) {
        const auto [place, fresh] = places.emplace(tokens[t], t);
        require(fresh, "a GGUF file has no room for two tokens written '{}' (ids {} and {})", tokens[t], place->second,
                t);
    }
    std::vector<std::string> merges;
    for (const Merge& merge : spec.merges)
        merges.push_back(tokens[to_size(merge.left)] + " " + tokens[to_size(merge.right)]);

    GgufMetadata& keys = vocabulary.keys;
    keys.emplace_back("tokenizer.ggml.model", std::string("gpt2"));
    keys.emplace_back("tokenizer.ggml.pre", name);
    keys.emplace_back("tokenizer.ggml.tokens", std::move(tokens));
    keys.emplace_back("tokenizer.ggml.token_type", std::move(types));
    keys.emplace_back("tokenizer.ggml.merges", std::move(merges));
    const auto end = tokenizer.end_id(), begin = tokenizer.begin_id() ? tokenizer.begin_id() : end;
    if (begin) keys.emplace_back("tokenizer.ggml.bos_token_id", static_cast<std::uint32_t>(*begin));
    if (end) keys.emplace_back("tokenizer.ggml.eos_token_id", static_cast<std::uint32_t>(*end));
    keys.emplace_back("tokenizer.ggml.add_bos_token", false);
    keys.emplace_back("tokenizer.ggml.add_eos_token", false);
    return vocabulary;
}

}  // namespace kimik3
