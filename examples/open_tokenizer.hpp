#pragma once
// The tokenizer of a checkpoint, or the one that the user names beside it.

#include "kimik3/io/checkpoint_files.hpp"
#include "kimik3/io/gguf_tokenizer.hpp"
#include "kimik3/text.hpp"
#include "model_programs.hpp"

namespace kimik3 {

/// None where the checkpoint has none and the user names none.
inline std::optional<Tokenizer> find_tokenizer(const CheckpointArguments& a, Index vocabulary) {
    const std::filesystem::path beside = find_checkpoint(a.checkpoint) / "tokenizer.json";
    if (a.tokenizer.empty() && !std::filesystem::exists(beside)) return {};
    Tokenizer tokenizer = a.tokenizer == "bytes"
                              ? Tokenizer::bytes()
                              : load_any_tokenizer((a.tokenizer.empty() ? beside : a.tokenizer).string());
    require(tokenizer.vocab_size() <= vocabulary, "the tokenizer has {} tokens, the model's vocabulary only {}",
            tokenizer.vocab_size(), vocabulary);
    return tokenizer;
}

inline Tokenizer open_tokenizer(const CheckpointArguments& a, Index vocabulary) {
    std::optional<Tokenizer> found = find_tokenizer(a, vocabulary);
    require(found.has_value(), "'{}' has no tokenizer.json: name one with --tokenizer (a file, or bytes)",
            find_checkpoint(a.checkpoint).string());
    return *std::move(found);
}

/// What a text begins with where nothing stands before it, if the tokenizer has such a token.
inline std::optional<std::int32_t> begin_of_text(const Tokenizer& tokenizer) {
    return tokenizer.begin_id() ? tokenizer.begin_id() : tokenizer.end_id();
}

inline Specials specials_of(const CheckpointArguments& a) {
    return a.specials ? Specials::recognised : Specials::as_text;
}

}  // namespace kimik3
