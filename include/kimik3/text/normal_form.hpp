#pragma once
// Unicode normal forms C and D (UAX 15): decompose canonically, order marks by combining class, and for form C compose
// each mark with the starter before it unless something of the same or a higher class stands between them.

#include <algorithm>
#include <unordered_map>
#include <vector>

#include "kimik3/text/canonical_decompositions.hpp"
#include "kimik3/text/combining_classes.hpp"
#include "kimik3/text/utf8.hpp"

namespace kimik3 {

/// Immutable once built; threads may share it.
class NormalForm {
public:
    NormalForm() {
        for (const auto& row : detail::singletons) decompositions_.emplace(row.code, std::pair(row.other, 0u));
        for (const auto& row : detail::decomposed_pairs)
            decompositions_.emplace(row.code, std::pair(row.first, row.second));
        for (const auto& row : detail::composed_pairs) {
            decompositions_.emplace(row.code, std::pair(row.first, row.second));
            compositions_.emplace((std::uint64_t{row.first} << 32) | row.second, row.code);
        }
        for (const auto& row : detail::combining_classes)
            for (std::uint32_t code = row.from; code <= row.to; ++code) classes_.emplace(code, row.value);
    }

    /// text is well-formed UTF-8.
    std::string apply(std::string_view text, bool compose) const {
        // Below U+0300 (first byte CC) every character is in form C, and the ASCII ones are in form D.
        const auto settled = [&](char c) { return static_cast<unsigned char>(c) < (compose ? 0xcc : 0x80); };
        if (std::all_of(text.begin(), text.end(), settled)) return std::string(text);
        std::vector<Mark> codes;
        for (Index at = 0; at < static_cast<Index>(text.size()); at += utf8_unit(text, at).bytes)
            decompose(detail::code_point_at(text, at), codes);
        const auto is_starter = [](const Mark& mark) { return mark.combining_class == 0; };
        for (auto run = codes.begin(); run != codes.end();) {
            const auto end = std::find_if(run, codes.end(), is_starter);
            std::stable_sort(run, end,
                             [](const Mark& a, const Mark& b) { return a.combining_class < b.combining_class; });
            run = std::find_if_not(end, codes.end(), is_starter);
        }
        if (compose) compose_all(codes);
        std::string out;
        for (const Mark& mark : codes) detail::append_utf8(out, mark.code);
        return out;
    }

private:
    struct Mark {
        std::uint32_t code, combining_class;
    };

    // Hangul syllables (The Unicode Standard, section 3.12).
    static constexpr std::uint32_t syllable = 0xac00, leading = 0x1100, vowel = 0x1161, trailing = 0x11a7;
    static constexpr std::uint32_t leadings = 19, vowels = 21, trailings = 28,
                                   syllables = leadings * vowels * trailings;

    void decompose(std::uint32_t code, std::vector<Mark>& out) const {
        if (code - syllable < syllables) {
            const std::uint32_t s = code - syllable;
            out.push_back({leading + s / (vowels * trailings), 0});
            out.push_back({vowel + s % (vowels * trailings) / trailings, 0});
            if (s % trailings != 0) out.push_back({trailing + s % trailings, 0});
            return;
        }
        const auto found = decompositions_.find(code);
        if (found == decompositions_.end()) {
            const auto known = classes_.find(code);
            out.push_back({code, known == classes_.end() ? 0 : known->second});
            return;
        }
        decompose(found->second.first, out);
        if (found->second.second != 0) decompose(found->second.second, out);
    }

    /// The character that two compose to, or 0.
    std::uint32_t composed(std::uint32_t first, std::uint32_t second) const {
        if (first - leading < leadings && second - vowel < vowels)
            return syllable + ((first - leading) * vowels + second - vowel) * trailings;
        if (first - syllable < syllables && (first - syllable) % trailings == 0 && second > trailing &&
            second - trailing < trailings)
            return first + second - trailing;
        const auto found = compositions_.find((std::uint64_t{first} << 32) | second);
        return found == compositions_.end() ? 0 : found->second;
    }

    void compose_all(std::vector<Mark>& codes) const {
        std::size_t kept = 0, starter = 0;
        bool has_starter = false;
        for (const Mark mark : codes) {
            // What stands between the starter and this mark, if anything, is codes[kept - 1].
            const bool adjacent = has_starter && kept == starter + 1;
            const bool blocked = !has_starter || (!adjacent && codes[kept - 1].combining_class >= mark.combining_class);
            const std::uint32_t whole = blocked ? 0 : composed(codes[starter].code, mark.code);
            if (whole != 0) {
                codes[starter].code = whole;
                continue;
            }
            if (mark.combining_class == 0) starter = kept, has_starter = true;
            codes[kept++] = mark;
        }
        codes.resize(kept);
    }

    std::unordered_map<std::uint32_t, std::pair<std::uint32_t, std::uint32_t>> decompositions_;  // 0: no second
    std::unordered_map<std::uint64_t, std::uint32_t> compositions_;
    std::unordered_map<std::uint32_t, std::uint32_t> classes_;
};

}  // namespace kimik3
