#include "kimik3/generate/stop_strings.hpp"

#include <boost/test/unit_test.hpp>

#include "kimik3/core/rng.hpp"

using namespace kimik3;

namespace {

/// The text before the first stop string, from pieces; bit b of cuts: a border before character b + 1.
std::string streamed(const std::vector<std::string>& stops, std::string_view text, unsigned cuts,
                     bool* stopped = nullptr) {
    StopStrings stream(stops);
    std::string out, piece;
    for (std::size_t at = 0; at < text.size(); ++at) {
        piece += text[at];
        if ((cuts >> at & 1u) == 0 && at + 1 < text.size()) continue;
        out += stream.push(piece);
        piece.clear();
    }
    out += stream.finish();
    if (stopped != nullptr) *stopped = stream.stopped();
    return out;
}

/// The same by the law: the first character at which some stop is whole ends the text before the longest of these.
std::string expected(const std::vector<std::string>& stops, std::string_view text) {
    for (std::size_t end = 1; end <= text.size(); ++end) {
        std::size_t longest = 0;
        for (const std::string& stop : stops)
            if (text.substr(0, end).ends_with(stop)) longest = std::max(longest, stop.size());
        if (longest > 0) return std::string(text.substr(0, end - longest));
    }
    return std::string(text);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(stop_strings)

BOOST_AUTO_TEST_CASE(a_stop_string_is_found_across_any_borders) {
    const std::vector<std::string> stops = {"<end>"};
    const std::string text = "a<en<end>b";
    for (unsigned cuts = 0; cuts < 1u << (text.size() - 1); ++cuts) {
        bool stopped = false;
        BOOST_TEST(streamed(stops, text, cuts, &stopped) == "a<en");
        BOOST_TEST(stopped);
    }
}

BOOST_AUTO_TEST_CASE(borders_do_not_matter_to_any_text_and_any_stops) {
    Philox random(1);
    const auto word = [&](std::uint64_t longest) {
        std::string text;
        for (std::uint64_t left = 1 + random.below(longest); left > 0; --left)
            text += static_cast<char>('a' + random.below(2));
        return text;
    };
    for (int round = 0; round < 2000; ++round) {
        std::vector<std::string> stops;
        for (std::uint64_t left = 1 + random.below(3); left > 0; --left) stops.push_back(word(6));
        const std::string text = word(20);
        const auto cuts = static_cast<unsigned>(random.below(1u << 20));
        bool stopped = false;
        const std::string out = streamed(stops, text, cuts, &stopped);
        BOOST_REQUIRE_EQUAL(out, expected(stops, text));
        BOOST_REQUIRE_EQUAL(stopped, out.size() < text.size());
    }
}

BOOST_AUTO_TEST_CASE(beginnings_that_overlap_are_held_as_long_as_they_may_become_a_stop) {
    StopStrings stream({"aab"});
    BOOST_TEST(stream.push("a") == "");
    BOOST_TEST(stream.push("a") == "");
    BOOST_TEST(stream.push("a") == "a");
    BOOST_TEST(!stream.stopped());
    BOOST_TEST(stream.push("b") == "");
    BOOST_TEST(stream.stopped());
}

BOOST_AUTO_TEST_CASE(no_more_is_held_than_may_become_a_stop) {
    StopStrings stream({"xyz", "stop"});
    BOOST_TEST(stream.push("hello x") == "hello ");
    BOOST_TEST(stream.push("y") == "");
    BOOST_TEST(stream.push("!") == "xy!");
    BOOST_TEST(stream.push("s") == "");
    BOOST_TEST(stream.push("xy") == "s");
}

BOOST_AUTO_TEST_CASE(of_several_stops_the_first_that_is_whole_ends_the_text) {
    BOOST_TEST(streamed({"late", "on"}, "soon or late", 0) == "so");
    BOOST_TEST(streamed({"on", "soon"}, "soon", 0) == "");  // both are whole at once
    for (unsigned cuts : {0u, 7u}) BOOST_TEST(streamed({"abcd", "bc"}, "abcd", cuts) == "a");
}

BOOST_AUTO_TEST_CASE(held_text_is_given_out_at_the_end) {
    StopStrings stream({"<end>"});
    BOOST_TEST(stream.push("a <en") == "a ");
    BOOST_TEST(stream.finish() == "<en");
    BOOST_TEST(stream.finish() == "");
}

BOOST_AUTO_TEST_CASE(nothing_comes_after_a_stop) {
    StopStrings stream({"."});
    BOOST_TEST(stream.push("a.b") == "a");
    BOOST_TEST(stream.push("c") == "");
    BOOST_TEST(stream.finish() == "");
    BOOST_TEST(stream.stopped());
}

BOOST_AUTO_TEST_CASE(without_stops_text_passes_at_once) {
    StopStrings stream;
    BOOST_TEST(stream.push("any") == "any");
    BOOST_TEST(stream.push("") == "");
    BOOST_TEST(!stream.stopped());
    BOOST_CHECK_THROW(StopStrings({"a", ""}), Error);
}

BOOST_AUTO_TEST_SUITE_END()
