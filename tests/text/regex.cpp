#include "kimik3/text/regex.hpp"

#include <boost/test/unit_test.hpp>

#include "kimik3/core/rng.hpp"
#include "kimik3/io/gguf_tokenizer.hpp"
#include "text/tiny_vocabulary.hpp"

using namespace kimik3;

namespace {

/// The code points that a pattern for one code point matches.
std::vector<bool> matched(const char* pattern) {
    std::vector<bool> out(0x110000);
    const Regex regex(pattern);
    Matcher matcher;
    for (std::uint32_t code = 0; code < 0x110000; ++code) {
        if (code >= 0xd800 && code <= 0xdfff) continue;
        std::string text;
        detail::append_utf8(text, code);
        Span span;
        out[code] = matcher.find(regex, text, 0, span);
    }
    return out;
}

std::vector<std::string> pieces(std::vector<PreTokenizerStep> steps, std::string_view text) {
    std::vector<std::string> out;
    Matcher matcher;
    PreTokenizer(steps).split(text, matcher, [&](std::string_view piece) { out.emplace_back(piece); });
    return out;
}

bool has_automaton(std::string_view pattern) {
    return detail::AsciiAutomaton::of(detail::RegexDialect(pattern).rewrite(), detail::ascii_set).has_value();
}

/// A character: a random one of ASCII, or of those that split patterns tell apart.
std::string random_character(Philox& numbers) {
    static const std::vector<std::string> told_apart = {
        "'", "s", "S", "t", "re", "VE", "ll", "d", "a", "Z", " ", " ", "  ", "\n", "\r", "\t",
        "\f", "\x1f", "7", "42", ".", "-", "_", "\x7f", "é", "É", "ſ", "K", "中", "々", "ǅ", "\u0301", "ʰ", "٣", "½",
        "\u00a0", "\u2028", "’", "😀"};
    if (numbers.uniform() < 0.3) return {static_cast<char>(numbers.uniform() * 128)};
    return told_apart[to_size(static_cast<Index>(numbers.uniform() * static_cast<double>(told_apart.size())))];
}

}  // namespace

BOOST_AUTO_TEST_SUITE(regex)

BOOST_AUTO_TEST_CASE(white_space_is_the_unicode_property) {
    const std::vector<bool> space = matched("\\s"), inside = matched("[\\s]"), other = matched("\\S");
    std::vector<std::uint32_t> found;
    for (std::uint32_t code = 0; code < space.size(); ++code) {
        if (space[code]) found.push_back(code);
        if (space[code] != inside[code] || (space[code] && other[code])) BOOST_FAIL("code point " << code);
    }
    const std::vector<std::uint32_t> expected = {9,      10,     11,     12,     13,     32,     0x85,   0xA0,   0x1680,
                                                 0x2000, 0x2001, 0x2002, 0x2003, 0x2004, 0x2005, 0x2006, 0x2007, 0x2008,
                                                 0x2009, 0x200A, 0x2028, 0x2029, 0x202F, 0x205F, 0x3000};
    BOOST_TEST(found == expected, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(a_class_with_an_intersection_is_the_set_it_says) {
    BOOST_TEST((matched("[\\p{L}&&[^\\p{Han}]]") == matched("(?!\\p{Han})\\p{L}")));
    BOOST_TEST((matched("[^\\p{L}&&[a-z]]") == matched("[^a-z]")));
    BOOST_TEST((matched("[a-f[x-z]&&[^c]]") == matched("[abdefxyz]")));
    BOOST_TEST((matched("[a&&b]") == std::vector<bool>(0x110000)));
}

BOOST_AUTO_TEST_CASE(a_script_is_the_script_without_its_extensions) {
    BOOST_TEST(matched("\\p{Han}")[0x4E2D]);
    BOOST_TEST(!matched("\\p{Han}")[0x3001]);
    BOOST_TEST(!matched("\\P{Han}")[0x4E2D]);
    BOOST_TEST(!matched("\\p{^Han}")[0x4E2D]);
}

BOOST_AUTO_TEST_CASE(what_cannot_be_rewritten_is_refused_by_name) {
    for (const char* pattern : {"\\X", "\\h", "[\\W]", "\\Ga", "a\\Kb", "[a", "[a&&]", "\\p{L", "a\\", "(",
                                "\\p{NoSuchThing}", "\xFF", "[[:alpha:]"})
        BOOST_CHECK_THROW(Regex{pattern}, Error);
    BOOST_CHECK_EXCEPTION(Regex("\\X"), Error, [](const Error& e) {
        return std::string(e.what()) == "the escape \\X in the regular expression '\\X' is not supported";
    });
}

BOOST_AUTO_TEST_CASE(quoted_text_matches_itself) {
    const std::string text = std::string("a.b*[c]\\d\n\0#$^é中_ -", 23);
    Matcher matcher;
    Span span;
    BOOST_REQUIRE(matcher.find(Regex(quote_regex(text)), "x" + text, 0, span));
    BOOST_TEST(span.begin == 1);
    BOOST_TEST(span.end == static_cast<Index>(text.size()) + 1);
}

BOOST_AUTO_TEST_CASE(a_pattern_that_backtracks_without_end_gives_up_with_an_error) {
    Matcher matcher;
    Span span;
    BOOST_CHECK_THROW(matcher.find(Regex("(?:a|aa|ab?)*[cd]"), std::string(60, 'a'), 0, span), Error);
}

// A group that captures is not read by the automaton: PCRE2 alone is the reference.
BOOST_AUTO_TEST_CASE(the_automaton_finds_what_pcre2_finds_in_any_text) {
    Philox numbers(1);
    std::vector<std::string> texts;
    for (int i = 0; i < 1500; ++i) {
        texts.emplace_back();
        const double strange = i % 2 == 0 ? 1.0 : 0.2;  // half of the texts have little but words
        for (double left = numbers.uniform() * 30; left > 0; --left)
            if (numbers.uniform() < strange) texts.back() += random_character(numbers);
            else texts.back() += numbers.uniform() < 0.2 ? " " : "w";
    }
    for (const std::string_view pattern :
         {gpt2_pattern, kimi_pattern, detail::llama3_pattern, detail::qwen2_pattern, std::string_view("\\p{N}"),
          std::string_view("\\w+|[^\\w\\s]+"), std::string_view("(?:a|ab)(?:c|bcd)?d*"), std::string_view("w{2,3}|s*"),
          std::string_view("[[:alpha:]]{2,}(?= )|(?i:vE|\\x{7}|\\.|7)(?!l)"),
          std::string_view("s?s?s?ss|w*7|wwww|.")}) {
        BOOST_TEST_INFO_SCOPE(pattern);
        BOOST_REQUIRE(has_automaton(pattern));
        const Regex with(pattern), without("(" + std::string(pattern) + ")");
        Matcher matcher;
        for (const std::string& text : texts)
            for (Index from = 0; from <= static_cast<Index>(text.size());
                 from += from < static_cast<Index>(text.size()) ? utf8_unit(text, from).bytes : 1) {
                Span one, other;
                const bool found = matcher.find(with, text, from, one);
                if (found != matcher.find(without, text, from, other) ||
                    (found && (one.begin != other.begin || one.end != other.end)))
                    BOOST_FAIL("from " << from << " in '" << text << "': " << one.end << ", not " << other.end);
            }
    }
}

BOOST_AUTO_TEST_CASE(the_automaton_leaves_to_pcre2_what_it_does_not_read) {
    for (const char* pattern : {"(a)", "(?:a|b)*", "(?:ab){2}", "a+?", "a++", "a*b$", "^a", "(?<=a)b", "(?<!a)b",
                                "(?!ab)c", "\\Aa", "(?i)a", "a{1000}", "(?:a?a?){1}", "(?>a)", "a{,3}"})
        BOOST_TEST(!has_automaton(pattern), pattern);
}

BOOST_AUTO_TEST_CASE(split_behaviours_treat_matches_as_they_say) {
    const auto split = [](SplitBehaviour behaviour, bool invert = false) {
        return pieces({SplitStep{"-", true, behaviour, invert}}, "the-final--countdown");
    };
    using Pieces = std::vector<std::string>;
    BOOST_TEST((split(SplitBehaviour::isolated) == Pieces{"the", "-", "final", "-", "-", "countdown"}));
    BOOST_TEST((split(SplitBehaviour::removed) == Pieces{"the", "final", "countdown"}));
    BOOST_TEST((split(SplitBehaviour::removed, true) == Pieces{"-", "-", "-"}));
    BOOST_TEST((split(SplitBehaviour::merged_with_previous) == Pieces{"the-", "final-", "-", "countdown"}));
    BOOST_TEST((split(SplitBehaviour::merged_with_next) == Pieces{"the", "-final", "-", "-countdown"}));
    BOOST_TEST((split(SplitBehaviour::contiguous) == Pieces{"the", "-", "final", "--", "countdown"}));
}

BOOST_AUTO_TEST_CASE(a_prefix_space_is_put_before_every_piece_that_has_none) {
    BOOST_TEST((pieces({SplitStep{"\n"}, ByteLevelStep{true, false}}, "a\n b") ==
                std::vector<std::string>{" a", " \n", " b"}));
}

BOOST_AUTO_TEST_CASE(long_runs_are_cut_by_every_published_pattern) {
    for (const char* unit : {" ", "a", "A", "\xE4\xB8\xAD", "\xCC\x81", "1", "!"}) {
        std::string text;
        while (text.size() < 300'000) text += unit;
        for (const std::string_view pattern : {kimi_pattern, gpt2_pattern}) {
            std::string joined;
            for (const std::string& piece : pieces({SplitStep{std::string(pattern)}}, text)) joined += piece;
            BOOST_TEST((joined == text));
        }
    }
}

BOOST_AUTO_TEST_SUITE_END()
