#pragma once
// What the command lines of the programs share: rules of options, and how a program runs and ends. The rules complain in
// a sentence; CLI11's own rules of numbers show the limits of double, 309 digits long, and let NaN pass.

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <limits>
#include <string>

#include "terminal.hpp"

namespace kimik3 {

/// Whether digits alone say what CLI11 would not read: it takes 010 for eight, and what is too large for the largest.
inline bool misread(const std::string& text) {
    std::uint64_t number = 0;
    if (text.empty() || text.find_first_not_of("0123456789") != text.npos) return false;
    return (text.size() > 1 && text.front() == '0') ||
           std::from_chars(text.data(), text.data() + text.size(), number).ec != std::errc();
}

/// kind is what --help shows.
template <class Holds>
CLI::Validator number_rule(const std::string& kind, const std::string& rule, Holds holds) {
    const auto complaint = [rule, holds](std::string& text) -> std::string {
        if (misread(text)) return fmt::format("{}, below 2^64 and without zeros before it, got '{}'", rule, text);
        double number = std::numeric_limits<double>::quiet_NaN();
        const bool fits = CLI::detail::lexical_cast(text, number) && holds(number);
        return fits ? "" : fmt::format("{}, got '{}'", rule, text);
    };
    return CLI::Validator(complaint, kind, kind);
}

inline CLI::Validator above_zero() {
    return number_rule("POSITIVE", "a number above 0 is wanted", [](double x) { return x > 0; });
}
inline CLI::Validator zero_or_above() {
    return number_rule("NONNEGATIVE", "0 or a number above it is wanted", [](double x) { return x >= 0; });
}
inline CLI::Validator number_from(double least, double most) {
    return number_rule(fmt::format("FROM {} TO {}", least, most),
                       fmt::format("a number from {} to {} is wanted", least, most),
                       [=](double x) { return least <= x && x <= most; });
}

/// Refuses an option that another setting leaves without effect, where it was given; why is the reason.
inline void refuse_without_effect(const CLI::App& app, const std::string& option, bool without_effect,
                                  const std::string& why) {
    if (without_effect && app.count(option) > 0) throw CLI::ValidationError(option, "without effect here: " + why);
}

/// Parses the command line and calls body, which returns whether it came to its end; gives the exit code.
template <class Body>
int run_program(CLI::App& app, int argc, char** argv, Body&& body) {
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& problem) {
        return app.exit(problem) == 0 ? 0 : 2;
    }
    survive_file_limit();
    try {
        return body() ? 0 : 130;
    } catch (const std::exception& problem) {
        std::fprintf(stderr, "%s: %s\n", app.get_name().c_str(), problem.what());
        return dynamic_cast<const Interrupted*>(&problem) == nullptr ? 1 : 130;
    }
}

}  // namespace kimik3
