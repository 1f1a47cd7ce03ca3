#pragma once
// Hugging Face's tokenizer.json, read and written, for byte-level BPE. What would change the ids and is not implemented
// here is refused by name. Truncation and padding are not carried out, and the post-processor (which adds tokens around
// a text) is kept in the file but not run: ids are those of `tokenizers` with add_special_tokens=False.

#include <filesystem>

#include "kimik3/core/atomic_file.hpp"
#include "kimik3/text/json_object.hpp"
#include "kimik3/text/tokenizer.hpp"

namespace kimik3 {

/// Throws Error with a sentence naming what is wrong.
TokenizerSpec parse_tokenizer_json(std::string_view text);

/// The file's text; the package `tokenizers` reads it and gives equal ids.
std::string write_tokenizer_json(const Tokenizer& tokenizer);

Tokenizer read_tokenizer_json(const std::string& path);

/// Replaces the file only once the new one is written whole.
void save_tokenizer_json(const Tokenizer& tokenizer, const std::string& path);

namespace detail {

inline std::int32_t json_id(const Json& value, std::string_view of) {
    const bool fits = value.is_number_integer() && value.get<std::int64_t>() >= 0 &&
                      value.get<std::int64_t>() < token_id_limit &&
                      (!value.is_number_unsigned() || value.get<std::uint64_t>() < std::uint64_t{token_id_limit});
    require(fits, "tokenizer.json: the id of '{}' must be an integer in [0, {}), is {}", of, token_id_limit,
            value.dump());
    return value.get<std::int32_t>();
}

/// {"String": text} or {"Regex": pattern}; says whether it is text.
inline std::pair<std::string, bool> json_pattern(const JsonObject& step) {
    const JsonObject pattern = step.object("pattern");
    const bool literal = pattern.find("String") != nullptr;
    return {pattern.string(literal ? "String" : "Regex"), literal};
}

inline constexpr std::pair<const char*, SplitBehaviour> behaviour_names[] = {
    {"Isolated", SplitBehaviour::isolated},
    {"Removed", SplitBehaviour::removed},
    {"MergedWithPrevious", SplitBehaviour::merged_with_previous},
    {"MergedWithNext", SplitBehaviour::merged_with_next},
    {"Contiguous", SplitBehaviour::contiguous},
};

/// Calls step(object) for what a step or a nested Sequence of steps holds.
template <class Step>
void for_each_step(const Json& value, const std::string& where, const char* list, Step&& step, int depth = 0) {
    require(depth < 8, "tokenizer.json: {} nests Sequences more than 8 deep", where);
    const JsonObject object(value, where);
    if (object.string("type") != "Sequence") return step(object);
    for (const Json& inner : object.array(list)) for_each_step(inner, where, list, step, depth + 1);
}

inline void read_normalizer(const JsonObject& file, TokenizerSpec& spec) {
    const Json* value = file.find("normalizer");
    if (value == nullptr) return;
    for_each_step(*value, "normalizer", "normalizers", [&](const JsonObject& step) {
        const std::string type = step.string("type");
        if (type == "Prepend") {
            spec.normalizer.push_back(PrependNormalizer{step.string("prepend")});
        } else if (type == "NFC" || type == "NFD") {
            spec.normalizer.push_back(UnicodeNormalizer{type == "NFC"});
        } else {
            require(type == "Replace", "tokenizer.json: the normalizer '{}' is not supported for byte-level BPE", type);
            auto [pattern, literal] = json_pattern(step);
            spec.normalizer.push_back(ReplaceNormalizer{std::move(pattern), literal, step.string("content")});
        }
    });
}

inline void read_pre_tokenizer(const JsonObject& file, TokenizerSpec& spec) {
    bool byte_level = false;
    for_each_step(file.at("pre_tokenizer"), "pre_tokenizer", "pretokenizers", [&](const JsonObject& step) {
        const std::string type = step.string("type");
        require(!byte_level, "tokenizer.json: ByteLevel must be the last pre-tokenizer, '{}' comes after it", type);
        if (type == "ByteLevel") {
            byte_level = true;
            spec.pre_tokenizer.push_back(ByteLevelStep{step.boolean("add_prefix_space", true),
                                                       step.boolean("use_regex", true),
                                                       step.boolean("trim_offsets", true)});
        } else if (type == "Digits") {
            spec.pre_tokenizer.push_back(DigitsStep{step.boolean("individual_digits", false)});
        } else {
            require(type == "Split", "tokenizer.json: the pre-tokenizer '{}' is not supported", type);
            const std::string name = step.string("behavior");
            const auto* known = std::find_if(std::begin(behaviour_names), std::end(behaviour_names),
                                             [&](const auto& entry) { return name == entry.first; });
            require(known != std::end(behaviour_names), "tokenizer.json: the Split behavior '{}' is not known", name);
            auto [pattern, literal] = json_pattern(step);
            spec.pre_tokenizer.push_back(
                SplitStep{std::move(pattern), literal, known->second, step.boolean("invert", false)});
        }
    });
    require(byte_level, "tokenizer.json: the pre-tokenizer has no ByteLevel step; only byte-level BPE is supported");
}

inline AddedToken read_added_token(const JsonObject& token, std::int32_t id) {
    const bool special = token.boolean("special", false);
    return {token.string("content"),        id, special, token.boolean("single_word", false),
            token.boolean("lstrip", false), token.boolean("rstrip", false), token.boolean("normalized", !special)};
}

inline void read_added_tokens(const JsonObject& file, TokenizerSpec& spec) {
    if (file.find("added_tokens") == nullptr) return;
    for (const Json& value : file.array("added_tokens")) {
        const JsonObject token(value, "added_tokens[]");
        spec.added_tokens.push_back(read_added_token(token, json_id(token.at("id"), token.string("content"))));
    }
}

/// Merges come as "left right" or ["left", "right"].
inline void read_merges(const JsonObject& model, const std::unordered_map<std::string_view, std::int32_t>& ids,
                        TokenizerSpec& spec) {
    for (const Json& merge : model.array("merges")) {
        std::string left, right;
        if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
            left = merge[0].get<std::string>(), right = merge[1].get<std::string>();
        } else {
            const std::string both = merge.is_string() ? merge.get<std::string>() : std::string();
            const std::size_t space = both.find(' ');
            const bool two = space != std::string::npos && both.find(' ', space + 1) == std::string::npos;
            require(two, "tokenizer.json: a merge is two tokens, as \"a b\" or [\"a\", \"b\"]; this one is {}",
                    merge.dump());
            left = both.substr(0, space), right = both.substr(space + 1);
        }
        const auto id_of = [&](const std::string& token) {
            const auto found = ids.find(token);
            require(found != ids.end(), "tokenizer.json: a merge names '{}', which is not in the vocabulary", token);
            return found->second;
        };
        spec.merges.push_back({id_of(left), id_of(right)});
    }
}

inline void read_model(const JsonObject& model, TokenizerSpec& spec) {
    const std::string type = model.find("type") != nullptr ? model.string("type") : "BPE";
    require(type == "BPE", "tokenizer.json: the model '{}' is not supported, only byte-level BPE is", type);
    for (const char* name : {"continuing_subword_prefix", "end_of_word_suffix"})
        require(model.find(name) == nullptr || model.string(name).empty(), "tokenizer.json: model.{} is not supported",
                name);
    const Json* dropout = model.find("dropout");
    require(dropout == nullptr || *dropout == 0,
            "tokenizer.json: model.dropout is not supported: encoding must be repeatable");
    spec.ignore_merges = model.boolean("ignore_merges", false);

    const Json& vocabulary = model.at("vocab");
    require(vocabulary.is_object(), "tokenizer.json: model.vocab must be an object, is {}", vocabulary.type_name());
    std::unordered_map<std::string_view, std::int32_t> added, ids;
    for (const AddedToken& token : spec.added_tokens) added.emplace(token.content, token.id);
    for (const auto& [printable, value] : vocabulary.items()) {
        const std::int32_t id = json_id(value, printable);
        const auto known = added.find(printable);
        require(known == added.end() || known->second == id,
                "tokenizer.json: '{}' has id {} among the added tokens and id {} in the vocabulary", printable,
                known == added.end() ? id : known->second, id);
        std::optional<std::string> bytes = from_byte_alphabet(printable);
        require(bytes || known != added.end(),
                "tokenizer.json: the token '{}' is not written in the byte-level alphabet", printable);
        if (bytes) spec.vocabulary.push_back({std::move(*bytes), id});
    }
    for (auto item = vocabulary.begin(); item != vocabulary.end(); ++item)
        ids.emplace(item.key(), item->get<std::int32_t>());
    if (model.find("unk_token") != nullptr || model.boolean("byte_fallback", false))
        for (unsigned byte = 0; byte < 256; ++byte)
            require(ids.contains(to_byte_alphabet(std::string(1, static_cast<char>(static_cast<unsigned char>(byte))))),
                    "tokenizer.json: model.unk_token and model.byte_fallback are not supported where a byte, here "
                    "0x{:02X}, has no token", byte);
    read_merges(model, ids, spec);
}

/// The begin and end tokens: what a TemplateProcessing puts around a single text, else special tokens with the usual
/// names.
inline void read_begin_and_end(const JsonObject& file, TokenizerSpec& spec) {
    const auto id_of = [&](std::string_view content) -> std::optional<std::int32_t> {
        for (const AddedToken& token : spec.added_tokens)
            if (token.special && token.content == content) return token.id;
        return std::nullopt;
    };
    if (const Json* value = file.find("post_processor")) {
        spec.post_processor = value->dump();
        for_each_step(*value, "post_processor", "processors", [&](const JsonObject& step) {
            if (step.string("type") != "TemplateProcessing") return;
            bool after = false;
            for (const Json& item : step.array("single")) {
                const JsonObject piece(item, "post_processor.single[]");
                if (piece.find("Sequence") != nullptr) after = true;
                else (after ? spec.end_id : spec.begin_id) = id_of(piece.object("SpecialToken").string("id"));
            }
        });
    }
    for (const char* name : {"<|begin_of_text|>", "[BOS]", "<s>"})
        if (!spec.begin_id) spec.begin_id = id_of(name);
    for (const char* name : {"<|end_of_text|>", "[EOS]", "</s>"})
        if (!spec.end_id) spec.end_id = id_of(name);
}

inline TokenizerSpec read_tokenizer(const Json& json) {
    const JsonObject file(json, "the file");
    TokenizerSpec spec;
    read_added_tokens(file, spec);
    read_normalizer(file, spec);
    read_pre_tokenizer(file, spec);
    if (const Json* decoder = file.find("decoder")) {
        const std::string type = JsonObject(*decoder, "decoder").string("type");
        require(type == "ByteLevel", "tokenizer.json: the decoder '{}' is not supported, only ByteLevel is", type);
    }
    read_model(file.object("model"), spec);
    read_begin_and_end(file, spec);
    return spec;
}

}  // namespace detail

inline TokenizerSpec parse_tokenizer_json(std::string_view text) {
    return detail::read_tokenizer(detail::parse_json(text, "tokenizer.json"));
}

inline Tokenizer read_tokenizer_json(const std::string& path) {
    return Tokenizer(parse_tokenizer_json(detail::read_text_file(path)));
}

namespace detail {

inline Json pattern_to_json(const std::string& pattern, bool literal) {
    return Json::object({{literal ? "String" : "Regex", pattern}});
}

inline Json to_json(const PrependNormalizer& step) {
    return Json::object({{"type", "Prepend"}, {"prepend", step.prefix}});
}
inline Json to_json(const ReplaceNormalizer& step) {
    return Json::object(
        {{"type", "Replace"}, {"pattern", pattern_to_json(step.pattern, step.literal)}, {"content", step.content}});
}
inline Json to_json(const UnicodeNormalizer& step) { return Json::object({{"type", step.compose ? "NFC" : "NFD"}}); }
inline Json to_json(const SplitStep& step) {
    const auto* name = std::find_if(std::begin(behaviour_names), std::end(behaviour_names),
                                    [&](const auto& entry) { return step.behaviour == entry.second; });
    return Json::object({{"type", "Split"},
                         {"pattern", pattern_to_json(step.pattern, step.literal)},
                         {"behavior", name->first},
                         {"invert", step.invert}});
}
inline Json to_json(const DigitsStep& step) {
    return Json::object({{"type", "Digits"}, {"individual_digits", step.individual_digits}});
}
inline Json to_json(const ByteLevelStep& step) {
    return Json::object({{"type", "ByteLevel"},
                         {"add_prefix_space", step.add_prefix_space},
                         {"trim_offsets", step.trim_offsets},
                         {"use_regex", step.use_regex}});
}

/// null, the one step, or a Sequence.
template <class Variant>
Json steps_to_json(const std::vector<Variant>& steps, const char* list) {
    Json all = Json::array();
    for (const Variant& step : steps) all.push_back(std::visit([](const auto& s) { return to_json(s); }, step));
    if (all.empty()) return nullptr;
    if (all.size() == 1) return all[0];
    return Json::object({{"type", "Sequence"}, {list, all}});
}

inline Json added_tokens_to_json(const TokenizerSpec& spec) {
    Json all = Json::array();
    for (const AddedToken& token : spec.added_tokens)
        all.push_back(Json::object({{"id", token.id},
                                    {"content", token.content},
                                    {"single_word", token.single_word},
                                    {"lstrip", token.lstrip},
                                    {"rstrip", token.rstrip},
                                    {"normalized", token.normalized},
                                    {"special", token.special}}));
    return all;
}

/// Added tokens stand in the vocabulary too: their ids are then the file's, not the next free ones.
inline Json model_to_json(const TokenizerSpec& spec) {
    Json vocabulary = Json::object(), merges = Json::array();
    std::unordered_map<std::int32_t, std::string> printable;
    const auto enter = [&](const std::string& token, std::int32_t id) {
        const auto entry = vocabulary.emplace(token, id);
        require(*entry.first == id, "a tokenizer.json cannot hold both an added token and an ordinary one written '{}'",
                token);
    };
    for (const VocabularyEntry& entry : spec.vocabulary)
        enter(printable[entry.id] = to_byte_alphabet(entry.bytes), entry.id);
    for (const AddedToken& token : spec.added_tokens) enter(token.content, token.id);
    for (const Merge& merge : spec.merges)
        merges.push_back(Json::array({printable.at(merge.left), printable.at(merge.right)}));
    return Json::object({{"type", "BPE"},
                         {"dropout", nullptr},
                         {"unk_token", nullptr},
                         {"continuing_subword_prefix", nullptr},
                         {"end_of_word_suffix", nullptr},
                         {"fuse_unk", false},
                         {"byte_fallback", false},
                         {"ignore_merges", spec.ignore_merges},
                         {"vocab", std::move(vocabulary)},
                         {"merges", std::move(merges)}});
}

}  // namespace detail

inline std::string write_tokenizer_json(const Tokenizer& tokenizer) {
    using detail::Json;
    const TokenizerSpec& spec = tokenizer.spec();
    const Json file = Json::object(
        {{"version", "1.0"},
         {"truncation", nullptr},
         {"padding", nullptr},
         {"added_tokens", detail::added_tokens_to_json(spec)},
         {"normalizer", detail::steps_to_json(spec.normalizer, "normalizers")},
         {"pre_tokenizer", detail::steps_to_json(spec.pre_tokenizer, "pretokenizers")},
         {"post_processor",
          spec.post_processor.empty() ? Json() : detail::parse_json(spec.post_processor, "the post-processor")},
         {"decoder", detail::to_json(ByteLevelStep{})},
         {"model", detail::model_to_json(spec)}});
    return file.dump(1) + "\n";
}

inline void save_tokenizer_json(const Tokenizer& tokenizer, const std::string& path) {
    write_text_file(path, write_tokenizer_json(tokenizer));
}

}  // namespace kimik3
