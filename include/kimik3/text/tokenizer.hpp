#pragma once
// Text -> token ids -> text, for byte-level tokenizers: plain bytes, and byte-pair encoding over bytes (GPT-2 and its
// descendants). Without a normaliser, a prefix space, a Removed split, an added token that strips or a byte without a
// token, decode(encode(text)) is the text, whatever bytes it has: what is no UTF-8 is merged apart from what is, and
// the pre-tokenizer sees a border there. A byte without a token is left out, as the PyPI package `tokenizers` does:
// some published vocabularies, SmolLM2's among them, lack control characters and bytes that no UTF-8 has. Encoding is
// linear in the text up to the logarithm of its longest piece.

#include <algorithm>
#include <bit>
#include <cstring>
#include <span>
#include <string>
#include <unordered_map>

#include "kimik3/text/added_tokens.hpp"
#include "kimik3/text/bpe.hpp"
#include "kimik3/text/byte_alphabet.hpp"
#include "kimik3/text/normal_form.hpp"
#include "kimik3/text/pre_tokenizer.hpp"

namespace kimik3 {

/// Whether a special token written out in a text is that token or ordinary text. Text that users typed is as_text.
enum class Specials : std::uint8_t { as_text, recognised };

/// A value: copies share one immutable state, and any number of threads may use it.
class Tokenizer {
public:
    /// Checks the data and builds the tables; throws Error naming what is wrong.
    explicit Tokenizer(TokenizerSpec spec);

    /// Ids 0..255 are the bytes and 256 is <|endoftext|>.
    static Tokenizer bytes();

    std::vector<std::int32_t> encode(std::string_view text, Specials specials) const;

    /// The bytes of the tokens one after the other; they need not be UTF-8.
    std::string decode(std::span<const std::int32_t> ids, bool skip_specials = false) const;

    /// The highest id + 1. Files may leave ids below it without a token.
    Index vocab_size() const { return static_cast<Index>(state_->tokens.size()); }

    /// The id of the added token with this content, or of the token with these bytes.
    std::optional<std::int32_t> id_of(std::string_view token) const;
    /// Whether the id has a token.
    bool has(std::int32_t id) const { return id >= 0 && id < vocab_size() && state_->tokens[to_size(id)].exists; }
    std::string_view token_bytes(std::int32_t id) const { return token(id).bytes; }
    bool is_special(std::int32_t id) const { return token(id).special; }

    /// The bytes without a token, which encode leaves out.
    std::string missing_bytes() const;

    std::optional<std::int32_t> begin_id() const { return state_->spec.begin_id; }
    std::optional<std::int32_t> end_id() const { return state_->spec.end_id; }

    const TokenizerSpec& spec() const { return state_->spec; }

private:
    struct Token {
        std::string bytes;
        bool exists = false, special = false;
    };
    struct Change {
        std::optional<Regex> replaced;  // none: a normal form
        std::string content;
        bool compose = false;
    };
    struct State {
        explicit State(TokenizerSpec s);
        State(const State&) = delete;
        void add_vocabulary();
        void add_merges();
        void add_added_tokens();
        void add_normalizer();
        Token& new_token(std::int32_t id, std::string_view bytes);
        std::string normalised(std::string_view text, Matcher& matcher) const;

        TokenizerSpec spec;
        std::vector<Token> tokens;
        std::vector<bool> whole;  // by id: a piece with the token's bytes is this one token
        std::unordered_map<std::string_view, std::int32_t> vocabulary, added;  // views into tokens
        detail::MergeTable merges;
        std::vector<Change> normalizer;
        std::optional<NormalForm> normal_form;  // built where a step uses it
        PreTokenizer pre_tokenizer;
        std::optional<detail::AddedTokenFinder> raw_finder, normalized_finder;
    };
    class Encoding;

    const Token& token(std::int32_t id) const {
        require(has(id), "token id {} is not one of the tokenizer's (its ids are below {})", id, vocab_size());
        return state_->tokens[to_size(id)];
    }

    std::shared_ptr<const State> state_;
};

/// Takes ids one by one and hands out only complete, well-formed UTF-8; U+FFFD stands for bytes that cannot become any.
class StreamDecoder {
public:
    explicit StreamDecoder(Tokenizer tokenizer, bool skip_specials = false)
        : tokenizer_(std::move(tokenizer)), skip_specials_(skip_specials) {}

    std::string push(std::int32_t id) { return utf8_.push(tokenizer_.decode({&id, 1}, skip_specials_)); }
    std::string flush() { return utf8_.flush(); }

private:
    Tokenizer tokenizer_;
    bool skip_specials_;
    Utf8Stream utf8_;
};

/// One call of encode: its working memory and the ids so far.
class Tokenizer::Encoding {
public:
    Encoding(const State& state, Specials specials) : state_(state), as_text_(specials == Specials::as_text) {}

    std::vector<std::int32_t> run(std::string_view text) && {
        recent_.resize(std::bit_floor((std::min)(text.size() / 64, std::size_t{1} << 13)));
        state_.raw_finder->split(
            text, as_text_, matcher_,
            [&](std::string_view between) {
                detail::for_each_utf8_run(
                    between, [&](std::string_view run) { normalise(run); }, [&](std::string_view run) { merge(run); });
            },
            [&](std::int32_t id) { ids_.push_back(id); });
        return std::move(ids_);
    }

private:
    void normalise(std::string_view text) {
        if (state_.normalizer.empty()) find_normalized(text);
        else find_normalized(state_.normalised(text, matcher_));
    }

    void find_normalized(std::string_view text) {
        state_.normalized_finder->split(
            text, as_text_, matcher_,
            [&](std::string_view between) {
                state_.pre_tokenizer.split(between, matcher_, [&](std::string_view piece) { merge(piece); });
            },
            [&](std::int32_t id) { ids_.push_back(id); });
    }

    /// Most pieces came by not long ago; of the others most are one token, and the short ones repeat.
    void merge(std::string_view piece) {
        if (piece.size() > sizeof Recent::bytes || recent_.empty()) {
            look_up(piece);
            return;
        }
        Recent looked_for;
        looked_for.set(piece);
        const std::uint64_t mixed =
            (looked_for.bytes[0] ^ std::rotl(looked_for.bytes[1], 23) ^ piece.size()) * 0x9E3779B97F4A7C15u;
        auto& [place, older] = recent_[(mixed >> 48) & (recent_.size() - 1)];
        for (const Recent* known : {&place, &older}) {
            if (!known->is(looked_for)) continue;
            if (known->count == 1) ids_.push_back(known->id);
            else repeat({known->begin, known->begin + known->count});
            return;
        }
        older = std::exchange(place, looked_for);
        place.begin = static_cast<Index>(ids_.size());
        look_up(piece);
        place.count = static_cast<std::uint8_t>(static_cast<Index>(ids_.size()) - place.begin);
        if (place.count == 1) place.id = ids_.back();
    }

    void look_up(std::string_view piece) {
        if (const auto found = state_.vocabulary.find(piece);
            found != state_.vocabulary.end() && state_.whole[to_size(found->second)])
            return ids_.push_back(found->second);
        if (const auto known = cache_.find(piece); known != cache_.end()) return repeat(known->second);
        const Index begin = static_cast<Index>(ids_.size());
        state_.merges.encode(piece, scratch_, ids_);
        if (piece.size() <= cached_piece_bytes && cache_.size() < cached_pieces)
            cache_.emplace(piece, Span{begin, static_cast<Index>(ids_.size())});
    }

    void repeat(Span earlier) {
        for (Index at = earlier.begin; at < earlier.end; ++at) ids_.push_back(ids_[to_size(at)]);
    }

    /// A short piece and where in ids_ it was encoded. A table of them, two at each place that the bytes give, stays in
    /// the processor's cache, where the vocabulary does not.
    struct Recent {
        std::uint64_t bytes[2] = {};
        Index begin = 0;
        std::int32_t id = 0;  // where it is one
        std::uint8_t size = 0, count = 0;

        bool is(const Recent& other) const {
            return size == other.size && bytes[0] == other.bytes[0] && bytes[1] == other.bytes[1];
        }

        /// All bytes of the piece, the first and the last ones in parts that may overlap.
        void set(std::string_view piece) {
            const auto part = [&]<class T>(T word, std::size_t at) {
                std::memcpy(&word, piece.data() + at, sizeof word);
                return std::uint64_t{word};
            };
            const std::size_t n = piece.size();
            if (n >= 8) bytes[0] = part(std::uint64_t{}, 0), bytes[1] = part(std::uint64_t{}, n - 8);
            else if (n >= 4) bytes[0] = part(std::uint32_t{}, 0) | part(std::uint32_t{}, n - 4) << 32;
            else
                bytes[0] =
                    part(std::uint8_t{}, 0) | part(std::uint8_t{}, n / 2) << 8 | part(std::uint8_t{}, n - 1) << 16;
            size = static_cast<std::uint8_t>(n);
        }
    };
    struct alignas(64) RecentPair {
        Recent newer, older;
    };

    static constexpr std::size_t cached_piece_bytes = 128, cached_pieces = 1 << 18;

    const State& state_;
    bool as_text_;
    Matcher matcher_;
    std::vector<std::int32_t> ids_;
    std::vector<RecentPair> recent_;
    std::unordered_map<std::string, Span, detail::TextHash, std::equal_to<>>
        cache_;  // piece -> where in ids_ it was encoded
    detail::MergeTable::Scratch scratch_;
};

inline Tokenizer::Tokenizer(TokenizerSpec spec) : state_(std::make_shared<const State>(std::move(spec))) {}

inline Tokenizer Tokenizer::bytes() {
    TokenizerSpec spec;
    for (std::int32_t byte = 0; byte < 256; ++byte)
        spec.vocabulary.push_back({std::string(1, static_cast<char>(static_cast<unsigned char>(byte))), byte});
    spec.added_tokens.push_back({std::string(end_of_text), 256, true});
    spec.pre_tokenizer.push_back(ByteLevelStep{.use_regex = false});
    return Tokenizer(std::move(spec));
}

inline std::vector<std::int32_t> Tokenizer::encode(std::string_view text, Specials specials) const {
    return Encoding(*state_, specials).run(text);
}

inline std::string Tokenizer::decode(std::span<const std::int32_t> ids, bool skip_specials) const {
    std::string out;
    for (const std::int32_t id : ids)
        if (const Token& t = token(id); !(skip_specials && t.special)) out += t.bytes;
    return out;
}

inline std::string Tokenizer::missing_bytes() const {
    std::string missing;
    for (unsigned byte = 0; byte < 256; ++byte)
        if (const char c = static_cast<char>(static_cast<unsigned char>(byte)); !state_->vocabulary.contains({&c, 1}))
            missing.push_back(c);
    return missing;
}

inline std::optional<std::int32_t> Tokenizer::id_of(std::string_view token) const {
    if (const auto found = state_->added.find(token); found != state_->added.end()) return found->second;
    if (const auto found = state_->vocabulary.find(token); found != state_->vocabulary.end()) return found->second;
    return std::nullopt;
}

inline Tokenizer::State::State(TokenizerSpec s) : spec(std::move(s)), pre_tokenizer(spec.pre_tokenizer) {
    std::int32_t highest = -1;
    const auto see = [&](std::int32_t id) {
        require(id >= 0 && id < token_id_limit, "a token id must be in [0, {}), got {}", token_id_limit, id);
        highest = (std::max)(highest, id);
    };
    for (const VocabularyEntry& entry : spec.vocabulary) see(entry.id);
    for (const AddedToken& token : spec.added_tokens) see(token.id);
    tokens.resize(to_size(highest + 1));
    whole.resize(tokens.size());
    add_vocabulary();
    add_merges();
    add_normalizer();
    add_added_tokens();
    const auto check = [&](std::optional<std::int32_t>& id, const char* name) {
        const auto found = added.find(end_of_text);
        if (!id && found != added.end() && tokens[to_size(found->second)].special) id = found->second;
        const bool known = !id || (*id >= 0 && *id <= highest && tokens[to_size(*id)].exists);
        require(known, "the {} token has id {}, which is no token", name, id.value_or(-1));
    };
    check(spec.begin_id, "begin");
    check(spec.end_id, "end");
}

inline Tokenizer::Token& Tokenizer::State::new_token(std::int32_t id, std::string_view bytes) {
    Token& token = tokens[to_size(id)];
    require(!token.exists || token.bytes == bytes, "token id {} is given to two tokens", id);
    if (!token.exists) token.bytes = bytes;
    token.exists = true;
    return token;
}

inline void Tokenizer::State::add_vocabulary() {
    vocabulary.reserve(spec.vocabulary.size());
    for (const VocabularyEntry& entry : spec.vocabulary) {
        require(!entry.bytes.empty(), "token id {} is the empty text", entry.id);
        const bool fresh = vocabulary.try_emplace(new_token(entry.id, entry.bytes).bytes, entry.id).second;
        require(fresh, "the vocabulary gives the token '{}' twice", to_byte_alphabet(entry.bytes));
    }
    bool any = false;
    for (unsigned byte = 0; byte < 256; ++byte) {
        const char text = static_cast<char>(static_cast<unsigned char>(byte));
        const auto found = vocabulary.find(std::string_view(&text, 1));
        any = any || found != vocabulary.end();
        merges.set_byte(static_cast<unsigned char>(byte), found == vocabulary.end() ? -1 : found->second);
    }
    require(any, "a byte-level vocabulary has tokens of single bytes; this one of {} tokens has none",
            spec.vocabulary.size());
}

inline void Tokenizer::State::add_merges() {
    require(spec.merges.size() < detail::MergeTable::most_merges,
            "a tokenizer has fewer than {} merges, this one has {}", detail::MergeTable::most_merges,
            spec.merges.size());
    merges.reserve(spec.merges.size());
    const auto bytes = [&](std::int32_t id) -> const std::string& {
        const bool known = id >= 0 && to_size(id) < tokens.size() && tokens[to_size(id)].exists;
        require(known, "a merge names the token id {}, which is not in the vocabulary", id);
        return tokens[to_size(id)].bytes;
    };
    for (const Merge& pair : spec.merges) {
        const auto found = vocabulary.find(bytes(pair.left) + bytes(pair.right));
        require(found != vocabulary.end(), "the merge of '{}' and '{}' gives a token that is not in the vocabulary",
                to_byte_alphabet(bytes(pair.left)), to_byte_alphabet(bytes(pair.right)));
        merges.add(pair, found->second);
    }
}

inline void Tokenizer::State::add_normalizer() {
    for (const NormalizerStep& step : spec.normalizer) {
        if (const auto* prepend = std::get_if<PrependNormalizer>(&step)) {
            require(is_utf8(prepend->prefix), "what a normaliser prepends must be UTF-8");
            normalizer.push_back({Regex("\\A"), prepend->prefix});
        } else if (const auto* replace = std::get_if<ReplaceNormalizer>(&step)) {
            require(is_utf8(replace->content) && !replace->pattern.empty(),
                    "a normaliser replaces a pattern that is not empty by UTF-8, got '{}'", replace->pattern);
            normalizer.push_back(
                {Regex(replace->literal ? quote_regex(replace->pattern) : replace->pattern), replace->content});
        } else {
            normalizer.push_back({std::nullopt, {}, std::get<UnicodeNormalizer>(step).compose});
            if (!normal_form) normal_form.emplace();
        }
    }
}

inline std::string Tokenizer::State::normalised(std::string_view text, Matcher& matcher) const {
    std::string changed(text);
    for (const Change& step : normalizer) {
        if (!step.replaced) {
            changed = normal_form->apply(changed, step.compose);
            continue;
        }
        std::string next;
        detail::for_each_match(*step.replaced, changed, matcher, [&](Span span, bool is_match) {
            if (is_match) next += step.content;
            else next.append(changed, to_size(span.begin), to_size(span.end - span.begin));
        });
        changed = std::move(next);
    }
    return changed;
}

/// Also marks the tokens that a piece with their bytes comes out as, which special ones only do by merges.
inline void Tokenizer::State::add_added_tokens() {
    for (const AddedToken& token : spec.added_tokens) {
        require(!token.content.empty() && is_utf8(token.content), "added token {} must be UTF-8 and not empty",
                token.id);
        Token& entry = new_token(token.id, token.content);
        entry.special = entry.special || token.special;
        require(added.try_emplace(entry.bytes, token.id).second, "the added token '{}' is given twice", token.content);
    }
    raw_finder.emplace(spec.added_tokens, false);
    Matcher matcher;
    std::vector<AddedToken> normalised_tokens = spec.added_tokens;
    for (AddedToken& token : normalised_tokens) token.content = normalised(token.content, matcher);
    normalized_finder.emplace(normalised_tokens, true);
    detail::MergeTable::Scratch scratch;
    std::vector<std::int32_t> ids;
    for (const VocabularyEntry& entry : spec.vocabulary) {
        ids.clear();
        merges.encode(entry.bytes, scratch, ids);
        const bool merged = ids.size() == 1 && ids[0] == entry.id;
        whole[to_size(entry.id)] = merged || (spec.ignore_merges && !tokens[to_size(entry.id)].special);
    }
}

}  // namespace kimik3
