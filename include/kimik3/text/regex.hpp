#pragma once
// Regular expressions of tokenizer files, run by PCRE2 (UTF, Unicode properties, JIT where the library has it), with an
// automaton in front that decides what depends on ASCII only. The files are written for Oniguruma and Rust's
// fancy-regex; where PCRE2 reads the same characters differently they are rewritten: \s and \w mean the Unicode
// properties, \p{Script} means the script itself and not its extensions, and a class with intersections or classes
// inside ([\p{L}&&[^\p{Han}]]) becomes the list of its ranges. What cannot be rewritten is refused by name.

#ifndef PCRE2_CODE_UNIT_WIDTH
#define PCRE2_CODE_UNIT_WIDTH 8
#endif
#include <pcre2.h>

#include <algorithm>
#include <memory>

#include "kimik3/core/error.hpp"
#include "kimik3/text/ascii_automaton.hpp"

namespace kimik3 {

struct Span {
    Index begin = 0, end = 0;
};

/// A compiled pattern. Immutable; copies share the compiled form, and threads may share it with a Matcher each.
class Regex {
public:
    explicit Regex(std::string_view pattern);

private:
    friend class Matcher;
    std::string pattern_;
    std::shared_ptr<const pcre2_code_8> code_;
    std::shared_ptr<const detail::AsciiAutomaton> automaton_;  // none where it cannot read the pattern
    bool jit_ = false;
};

/// Working memory for searching, one per thread.
class Matcher {
public:
    Matcher();

    /// The first match in well-formed UTF-8 at or after `from`. Look-behind sees the text before `from`.
    bool find(const Regex& regex, std::string_view text, Index from, Span& match);

private:
    std::unique_ptr<pcre2_match_data_8, decltype(&pcre2_match_data_free_8)> data_;
    std::unique_ptr<pcre2_match_context_8, decltype(&pcre2_match_context_free_8)> context_;
};

/// Matches the text itself, whatever characters it has.
inline std::string quote_regex(std::string_view text) {
    std::string out;
    for (const char c : text) {
        const bool plain =
            static_cast<unsigned char>(c) >= 0x80 || (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z');
        if (c == '\0') out += "\\x{0}";
        else out.append(plain ? "" : "\\").push_back(c);
    }
    return out;
}

namespace detail {

inline std::shared_ptr<const pcre2_code_8> compile_pcre2(std::string_view pattern, std::string& why_not) {
    std::unique_ptr<pcre2_compile_context_8, decltype(&pcre2_compile_context_free_8)> context(
        pcre2_compile_context_create_8(nullptr), &pcre2_compile_context_free_8);
    require(context != nullptr, "out of memory while compiling a regular expression");
    pcre2_set_newline_8(context.get(), PCRE2_NEWLINE_LF);
    int error = 0;
    PCRE2_SIZE place = 0;
    pcre2_code_8* code = pcre2_compile_8(reinterpret_cast<PCRE2_SPTR8>(pattern.data()), pattern.size(),
                                         PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error,
                                         &place, context.get());
    if (code == nullptr) {
        PCRE2_UCHAR8 message[256] = {};
        pcre2_get_error_message_8(error, message, sizeof message);
        why_not = reinterpret_cast<const char*>(message);
        return nullptr;
    }
    pcre2_jit_compile_8(code, PCRE2_JIT_COMPLETE);  // without JIT the interpreter runs the pattern
    return {code, [](const pcre2_code_8* c) { pcre2_code_free_8(const_cast<pcre2_code_8*>(c)); }};
}

/// Calls take(code point), in order, for those below `limit` that a pattern for one code point matches.
template <class Take>
void for_each_code_point_of(const std::string& single, std::uint32_t limit, Take&& take) {
    std::string why_not, text;
    const auto code = compile_pcre2(single, why_not);
    require(code != nullptr, "the class '{}' of a regular expression cannot be compiled: {}", single, why_not);
    for (std::uint32_t c = 0; c < limit; ++c)
        if (c < 0xd800 || c > 0xdfff) append_utf8(text, c);
    std::unique_ptr<pcre2_match_data_8, decltype(&pcre2_match_data_free_8)> data(pcre2_match_data_create_8(1, nullptr),
                                                                             &pcre2_match_data_free_8);
    require(data != nullptr, "out of memory while compiling a regular expression");
    const PCRE2_SIZE* place = pcre2_get_ovector_pointer_8(data.get());
    for (PCRE2_SIZE at = 0; pcre2_match_8(code.get(), reinterpret_cast<PCRE2_SPTR8>(text.data()), text.size(), at,
                                          PCRE2_NO_UTF_CHECK, data.get(), nullptr) >= 0;
         at = place[1])
        take(code_point_at(text, static_cast<Index>(place[0])));
}

inline AsciiSet ascii_set(const std::string& single) {
    AsciiSet set;
    for_each_code_point_of(single, 128, [&](std::uint32_t c) { set.set(c); });
    return set;
}

/// The published dialect -> PCRE2's.
class RegexDialect {
public:
    explicit RegexDialect(std::string_view pattern) : in_(pattern) {}

    std::string rewrite() {
        std::string out;
        while (!at_end()) {
            if (peek() == '\\') out += escape(false);
            else if (peek() == '[') out += outer_class();
            else out.push_back(next());
        }
        return out;
    }

private:
    bool at_end() const { return at_ == in_.size(); }
    char peek() const { return in_[at_]; }
    bool sees(std::string_view text) const { return in_.substr(at_, text.size()) == text; }
    char next() {
        require(!at_end(), "the regular expression '{}' ends in the middle of a class or an escape", in_);
        return in_[at_++];
    }

    std::string escape(bool in_class) {
        next();
        const char letter = next();
        if (letter == 's') return "\\p{White_Space}";
        if (letter == 'S') return "\\P{White_Space}";
        if (letter == 'w' && in_class) return word;
        if ((letter == 'w' || letter == 'W') && !in_class) return std::string(letter == 'w' ? "[" : "[^") + word + "]";
        if ((letter == 'p' || letter == 'P') && !at_end() && peek() == '{') return property(letter);
        require(
            std::string_view("WhHRXKGNOyYgkbBQE").find(letter) == std::string_view::npos || (letter == 'b' && in_class),
            "the escape \\{} in the regular expression '{}' is not supported", letter, in_);
        return {'\\', letter};
    }

    std::string property(char letter) {
        const std::size_t close = in_.find('}', at_);
        require(close != std::string_view::npos, "the regular expression '{}' ends in the middle of \\{}{{", in_,
                letter);
        std::string name(in_.substr(at_ + 1, close - at_ - 1));
        at_ = close + 1;
        if (!name.empty() && name[0] == '^') name.erase(0, 1), letter = letter == 'p' ? 'P' : 'p';
        std::string why_not;
        if (name.size() > 1 && compile_pcre2("\\p{sc:" + name + "}", why_not)) name = "sc:" + name;
        return std::string("\\") + letter + "{" + name + "}";
    }

    /// A class at the outer level: as it is where PCRE2 can read it, as a list of ranges otherwise.
    std::string outer_class() {
        bool plain = true;
        const std::string single = char_class(plain, 0);
        return plain ? single : ranges_of(single);
    }

    /// One class as an expression that matches one code point; plain turns false when it is no PCRE2 class.
    std::string char_class(bool& plain, int depth) {
        require(depth < 8, "the regular expression '{}' nests classes more than 8 deep", in_);
        next();
        const bool negated = !at_end() && peek() == '^';
        if (negated) next();
        std::string items, alternatives, operands;
        const auto close_operand = [&] {
            std::string operand = items.empty() ? std::string() : "[" + items + "]";
            if (!operand.empty() && !alternatives.empty()) operand += "|";
            operand += alternatives;
            require(!operand.empty(), "the regular expression '{}' has an empty class", in_);
            return "(?:" + operand + ")";
        };
        while (!sees("]")) {
            if (sees("&&")) {
                at_ += 2;
                operands += "(?=" + close_operand() + ")";
                items.clear(), alternatives.clear();
                plain = false;
            } else if (sees("[:")) {
                const std::size_t close = in_.find(":]", at_);
                require(close != std::string_view::npos, "the regular expression '{}' does not close a [: class", in_);
                items += in_.substr(at_, close + 2 - at_);
                at_ = close + 2;
            } else if (sees("[")) {
                plain = false;
                alternatives += (alternatives.empty() ? "" : "|") + char_class(plain, depth + 1);
            } else if (sees("\\")) {
                items += escape(true);
            } else {
                items.push_back(next());
            }
        }
        next();
        if (plain) {
            require(!items.empty(), "the regular expression '{}' has an empty class", in_);
            return (negated ? "[^" : "[") + items + "]";
        }
        const std::string all = operands + close_operand();
        return negated ? "(?:(?!" + all + ")(?s:.))" : "(?:" + all + ")";
    }

    static std::string ranges_of(const std::string& single);

    static constexpr const char* word = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\p{Join_Control}";
    std::string_view in_;
    std::size_t at_ = 0;
};

}  // namespace detail

inline Regex::Regex(std::string_view pattern) : pattern_(pattern) {
    require(is_utf8(pattern), "a regular expression must be UTF-8");
    std::string why_not;
    const std::string rewritten = detail::RegexDialect(pattern_).rewrite();
    code_ = detail::compile_pcre2(rewritten, why_not);
    require(code_ != nullptr, "the regular expression '{}' cannot be compiled: {}", pattern, why_not);
    PCRE2_SIZE machine_code = 0;
    jit_ = pcre2_pattern_info_8(code_.get(), PCRE2_INFO_JITSIZE, &machine_code) == 0 && machine_code > 0;
    if (auto automaton = detail::AsciiAutomaton::of(rewritten, detail::ascii_set))
        automaton_ = std::make_shared<const detail::AsciiAutomaton>(std::move(*automaton));
}

inline Matcher::Matcher()
    : data_(pcre2_match_data_create_8(1, nullptr), &pcre2_match_data_free_8),
      context_(pcre2_match_context_create_8(nullptr), &pcre2_match_context_free_8) {
    require(data_ != nullptr && context_ != nullptr, "out of memory while matching a regular expression");
    pcre2_set_heap_limit_8(context_.get(), 512 * 1024);  // KiB
}

inline bool Matcher::find(const Regex& regex, std::string_view text, Index from, Span& match) {
    if (regex.automaton_ != nullptr) {
        match.end = regex.automaton_->match(text, from);
        match.begin = from;
        if (match.end >= 0 || from == static_cast<Index>(text.size())) return match.end >= 0;
    }
    // The work that one search may cost grows with the text; only patterns that backtrack without end meet the limit.
    constexpr Index most = std::uint32_t(-1);
    const Index limit = (std::min)(most, 10'000'000 + 64 * static_cast<Index>(text.size()));
    pcre2_set_match_limit_8(context_.get(), static_cast<std::uint32_t>(limit));
    const auto search = [&](auto match_function, std::uint32_t options) {
        return match_function(regex.code_.get(), reinterpret_cast<PCRE2_SPTR8>(text.data()), text.size(),
                              to_size(from), options | PCRE2_NO_UTF_CHECK, data_.get(), context_.get());
    };
    int result = PCRE2_ERROR_JIT_BADOPTION;
    if (regex.jit_) result = search(pcre2_jit_match_8, 0);
    if (result == PCRE2_ERROR_JIT_BADOPTION || result == PCRE2_ERROR_JIT_STACKLIMIT)
        result = search(pcre2_match_8, PCRE2_NO_JIT);
    if (result == PCRE2_ERROR_NOMATCH) return false;
    require(result >= 0, "the regular expression '{}' gave up on a text of {} bytes (PCRE2 error {})", regex.pattern_,
            text.size(), result);
    const PCRE2_SIZE* place = pcre2_get_ovector_pointer_8(data_.get());
    match = {static_cast<Index>(place[0]), static_cast<Index>(place[1])};
    return true;
}

inline std::string detail::RegexDialect::ranges_of(const std::string& single) {
    std::string out;
    std::uint32_t first = 1, last = 0;  // the open range; none while first > last
    const auto close_range = [&] {
        if (first <= last) out += fmt::format("\\x{{{:x}}}-\\x{{{:x}}}", first, last);
    };
    for_each_code_point_of(single, 0x110000, [&](std::uint32_t c) {
        if (first <= last && c == last + 1) {
            last = c;
        } else {
            close_range();
            first = last = c;
        }
    });
    close_range();
    return out.empty() ? "(?!)" : "[" + out + "]";
}

}  // namespace kimik3
