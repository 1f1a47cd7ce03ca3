#pragma once
// What programs show while they work: tables, times, and an interruption that lets the current step end.

#include <fmt/core.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kimik3/core/error.hpp"

namespace kimik3 {

inline volatile std::sig_atomic_t interrupted = 0;

/// From now on the first Ctrl-C (or SIGTERM) sets interrupted and the second ends the program.
inline void catch_interruption() {
    for (const int number : {SIGINT, SIGTERM}) {
        std::signal(number, [](int caught) {
            interrupted = 1;
            std::signal(caught, SIG_DFL);
        });
    }
}

struct Interrupted : Error {
    using Error::Error;
};

/// Ends work that cannot stop half-way.
inline void throw_if_interrupted() {
    if (interrupted != 0) throw Interrupted("interrupted");
}

/// From now on a file that grows beyond what `ulimit -f` allows is an error of its write and does not end the program.
inline void survive_file_limit() { std::signal(SIGXFSZ, SIG_IGN); }

/// What was printed is written, or it is an error.
inline void finish_output() {
    require(std::fflush(stdout) == 0 && std::ferror(stdout) == 0, "standard output cannot be written");
}

class Stopwatch {
public:
    double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }

private:
    std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

/// 75 -> "1m15s".
inline std::string shown_time(double seconds) {
    const auto whole = static_cast<long>(seconds + 0.5);
    if (whole < 60) return fmt::format("{}s", whole);
    if (whole < 3600) return fmt::format("{}m{:02}s", whole / 60, whole % 60);
    return fmt::format("{}h{:02}m", whole / 3600, whole % 3600 / 60);
}

/// 1536 -> "1.5 k", with the prefixes of powers of 1000.
inline std::string shown_amount(double amount) {
    const char* prefixes[] = {"", "k", "M", "G", "T", "P"};
    int prefix = 0;
    for (; amount >= 999.5 && prefix < 5; ++prefix) amount /= 1000;
    return fmt::format("{:.{}f} {}", amount, prefix == 0 || amount >= 99.95 ? 0 : 1, prefixes[prefix]);
}

/// A command line as a shell takes it.
inline std::string shown_command(int count, const char* const* words) {
    std::string line;
    for (int w = 0; w < count; ++w) {
        const std::string_view word = words[w];
        if (w > 0) line += ' ';
        constexpr std::string_view plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=+:,./@%";
        if (!word.empty() && word.find_first_not_of(plain) == std::string_view::npos) {
            line += word;
            continue;
        }
        line += '\'';
        for (const char letter : word) line += letter == '\'' ? std::string("'\\''") : std::string(1, letter);
        line += '\'';
    }
    return line;
}

inline void print_table(const std::vector<std::pair<std::string, std::string>>& rows) {
    for (const auto& [name, value] : rows) fmt::print("  {:<16} {}\n", name, value);
    std::fflush(stdout);
}

/// One line about the state of long work: rewritten in place on a terminal, printed now and then in a log.
class StatusLine {
public:
    bool on_terminal() const { return terminal_; }
    void show(const std::string& text) const {
        if (terminal_) fmt::print("\r{}\033[K", text);
        else fmt::print("{}\n", text);
        std::fflush(stdout);
    }
    /// Ends a line that was rewritten in place.
    void close() const {
        if (terminal_) fmt::print("\n");
        std::fflush(stdout);
    }

private:
    bool terminal_ = ::isatty(STDOUT_FILENO) == 1;
};

}  // namespace kimik3
