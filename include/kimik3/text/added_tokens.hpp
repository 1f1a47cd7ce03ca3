#pragma once
// Finds added tokens in a text: leftmost first, of several at one place the longest, as the PyPI package `tokenizers`
// does.

#include <array>

#include "kimik3/text/tokenizer_spec.hpp"

namespace kimik3::detail {

/// Immutable once built; threads may share it.
class AddedTokenFinder {
public:
    /// Keeps the tokens whose `normalized` flag is the given one. Empty ones, which normalising may leave, never match.
    AddedTokenFinder(const std::vector<AddedToken>& tokens, bool normalized) : word_(word_class), space_(space_class) {
        for (const AddedToken& token : tokens)
            if (token.normalized == normalized && !token.content.empty()) tokens_.push_back(token);
        std::sort(tokens_.begin(), tokens_.end(), [](const auto& a, const auto& b) { return a.content < b.content; });
        for (const AddedToken& token : tokens_) first_byte_[static_cast<unsigned char>(token.content[0])] = true;
    }

    /// Calls between(text) for the stretches without an added token and found(id) for each token, in order. With
    /// specials_as_text the places of special tokens are passed over.
    template <class Between, class Found>
    void split(std::string_view text, bool specials_as_text, Matcher& matcher, Between&& between, Found&& found) const {
        const Index size = static_cast<Index>(text.size());
        Index done = 0;
        const auto stretch = [&](Index end) {
            if (done < end) between(text.substr(to_size(done), to_size(end - done)));
        };
        for (Index at = tokens_.empty() ? size : 0; at < size;) {
            while (at < size && !first_byte_[static_cast<unsigned char>(text[to_size(at)])]) ++at;
            const AddedToken* token = at < size ? longest_at(text, at) : nullptr;
            if (token == nullptr) {
                ++at;
                continue;
            }
            Index begin = at, end = at + static_cast<Index>(token->content.size());
            at = end;
            if (token->special && specials_as_text) continue;
            if (token->single_word &&
                (is_before(word_, text, begin, matcher) > 0 || is_at(word_, text, end, matcher) > 0))
                continue;
            if (token->lstrip)
                for (Index bytes = 1; bytes > 0 && begin > done; begin -= bytes)
                    bytes = is_before(space_, text, begin, matcher);
            if (token->rstrip)
                for (Index bytes = 1; bytes > 0; end += bytes) bytes = is_at(space_, text, end, matcher);
            stretch((std::max)(begin, done));
            found(token->id);
            done = end;
        }
        stretch(size);
    }

private:
    /// The longest token that begins at this place: the sorted tokens are narrowed to those that go on with the text.
    const AddedToken* longest_at(std::string_view text, Index at) const {
        const AddedToken* best = nullptr;
        auto first = tokens_.begin(), last = tokens_.end();
        for (std::size_t depth = 0; first != last; ++depth) {
            if (first->content.size() == depth) best = &*first++;
            if (to_size(at) + depth == text.size()) break;
            const char c = text[to_size(at) + depth];
            const auto below = [&](const AddedToken& t, char value) { return byte_at(t, depth) < byte_of(value); };
            const auto above = [&](char value, const AddedToken& t) { return byte_of(value) < byte_at(t, depth); };
            first = std::lower_bound(first, last, c, below);
            last = std::upper_bound(first, last, c, above);
        }
        return best;
    }
    static unsigned char byte_of(char c) { return static_cast<unsigned char>(c); }
    static unsigned char byte_at(const AddedToken& token, std::size_t depth) { return byte_of(token.content[depth]); }

    /// The bytes of the character of this class that begins, or ends, at a place; 0 where there is none.
    static Index is_at(const Regex& single, std::string_view text, Index at, Matcher& matcher) {
        if (at >= static_cast<Index>(text.size())) return 0;
        const Utf8Unit unit = utf8_unit(text, at);
        Span span;
        const bool yes = unit.kind == Utf8Unit::code_point &&
                         matcher.find(single, text.substr(to_size(at), to_size(unit.bytes)), 0, span);
        return yes ? unit.bytes : 0;
    }
    static Index is_before(const Regex& single, std::string_view text, Index at, Matcher& matcher) {
        for (Index bytes = 1; bytes <= 4 && bytes <= at; ++bytes)
            if (const Utf8Unit unit = utf8_unit(text.substr(0, to_size(at)), at - bytes);
                unit.kind == Utf8Unit::code_point && unit.bytes == bytes)
                return is_at(single, text, at - bytes, matcher);
        return 0;
    }

    static constexpr const char* word_class = "\\w";
    static constexpr const char* space_class = "\\s";
    Regex word_, space_;
    std::vector<AddedToken> tokens_;
    std::array<bool, 256> first_byte_{};
};

}  // namespace kimik3::detail
