#pragma once
// Self-made tokenizers for the tests of text/.

#include <fstream>
#include <string>

#include "kimik3/text.hpp"

namespace kimik3::test {

inline const std::string tiny_corpus =
    "the cat sat on the mat and the other cat sat there; that is that, she said.\n"
    "The number 1234567 isn't what they'd thought\xE2\x80\xA6 na\xC3\xAFve caf\xC3\xA9 "
    "\xE4\xB8\xAD\xE6\x96\x87\xE5\xAD\x97 "
    "\xF0\x9F\x98\x80\xF0\x9F\x98\x80\r\n    indented    text\n\n\n";

inline Tokenizer tiny_bpe(Index vocab_size = 320) {
    BpeTrainer trainer({.vocab_size = vocab_size, .min_pair_count = 1});
    trainer.push(tiny_corpus);
    return trainer.train();
}

/// The 256 bytes, the merges given as pairs of texts (their results get the next ids), and no added token.
inline TokenizerSpec spec_with_merges(const std::vector<std::pair<std::string, std::string>>& merges) {
    TokenizerSpec spec = Tokenizer::bytes().spec();
    spec.added_tokens.clear();
    spec.begin_id.reset(), spec.end_id.reset();
    const auto id_of = [&](const std::string& bytes) {
        for (const VocabularyEntry& entry : spec.vocabulary)
            if (entry.bytes == bytes) return entry.id;
        spec.vocabulary.push_back({bytes, static_cast<std::int32_t>(spec.vocabulary.size())});
        return spec.vocabulary.back().id;
    };
    for (const auto& [left, right] : merges) {
        const Merge merge{id_of(left), id_of(right)};
        id_of(left + right);
        spec.merges.push_back(merge);
    }
    return spec;
}

inline std::string every_byte() {
    std::string text;
    for (int byte = 0; byte < 256; ++byte) text.push_back(static_cast<char>(static_cast<unsigned char>(byte)));
    return text;
}

}  // namespace kimik3::test
