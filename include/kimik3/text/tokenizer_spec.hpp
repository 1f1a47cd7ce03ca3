#pragma once
// A byte-level tokenizer as plain data: what a file says, before anything is compiled. Readers fill it, Tokenizer
// checks and runs it, the writer writes it. The order of work on a text: added tokens that are not `normalized` are cut
// out; what lies between them is normalised; the `normalized` ones are cut out; the rest goes through the pre-tokenizer
// steps in turn, and every piece is merged on its own.

#include <optional>
#include <variant>
#include <vector>

#include "kimik3/text/regex.hpp"

namespace kimik3 {

struct VocabularyEntry {
    std::string bytes;
    std::int32_t id = 0;
};

/// Two adjacent tokens that become the one with both their bytes. Earlier merges win; a tied one has the rank of the
/// merge before it, and of equal ranks the leftmost pair wins.
struct Merge {
    std::int32_t left = 0, right = 0;
    bool tied = false;
};

/// A token found in the text as it stands. single_word: only where no word character touches it; lstrip and rstrip: it
/// swallows the white space before and after it.
struct AddedToken {
    std::string content;
    std::int32_t id = 0;
    bool special = false, single_word = false, lstrip = false, rstrip = false, normalized = false;
};

/// What happens to the matches of a Split pattern and to the text between them.
enum class SplitBehaviour : std::uint8_t { isolated, removed, merged_with_previous, merged_with_next, contiguous };

struct SplitStep {
    std::string pattern;
    bool literal = false;  // pattern is text, not a regular expression
    SplitBehaviour behaviour = SplitBehaviour::isolated;
    bool invert = false;  // matches and gaps change places
};

struct DigitsStep {
    bool individual_digits = false;
};

/// Always the last step. Prefixes a space where none is, and splits by GPT-2's pattern, where asked.
struct ByteLevelStep {
    bool add_prefix_space = false, use_regex = true, trim_offsets = true;
};

using PreTokenizerStep = std::variant<SplitStep, DigitsStep, ByteLevelStep>;

struct PrependNormalizer {
    std::string prefix;
};

struct ReplaceNormalizer {
    std::string pattern;
    bool literal = true;
    std::string content;
};

/// Unicode's normal form C, or D.
struct UnicodeNormalizer {
    bool compose = true;
};

using NormalizerStep = std::variant<PrependNormalizer, ReplaceNormalizer, UnicodeNormalizer>;

struct TokenizerSpec {
    std::vector<VocabularyEntry> vocabulary;  // a single byte that is not in it is left out of texts
    std::vector<Merge> merges;
    bool ignore_merges = false;  // a piece that is a token as a whole is that token, whatever the merges say
    std::vector<AddedToken> added_tokens;
    std::vector<NormalizerStep> normalizer;
    std::vector<PreTokenizerStep> pre_tokenizer;
    std::optional<std::int32_t> begin_id, end_id;  // left empty: <|endoftext|> if that is a special token
    std::string post_processor;                    // tokenizer.json's member, kept as JSON text; encode does not run it
};

inline constexpr std::string_view end_of_text = "<|endoftext|>";

/// Token ids are below this: no model has as many, and tables are as long as the highest id.
inline constexpr std::int32_t token_id_limit = 1 << 22;

/// GPT-2's pattern, which ByteLevelStep::use_regex means.
inline constexpr std::string_view gpt2_pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

}  // namespace kimik3
