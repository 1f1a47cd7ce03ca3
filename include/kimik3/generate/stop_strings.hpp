#pragma once
// Ends a stream of text at the first of some strings to become whole, of several at once the longest, wherever the
// borders of the pieces fall: text that may be the beginning of a stop string is held back until it is clear whether it
// is one.

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kimik3/core/error.hpp"

namespace kimik3 {

class StopStrings {
public:
    explicit StopStrings(std::vector<std::string> stops = {}) : stops_(std::move(stops)) {
        for (const std::string& stop : stops_)
            require(!stop.empty(), "a stop string has at least one character, got '{}'", stop);
    }

    /// Takes in a piece and returns the text that is now certain to come before any stop string.
    std::string push(std::string_view piece) {
        if (stopped_) return {};
        held_ += piece;
        std::size_t begin = held_.size() - longest_beginning(), whole = held_.npos;  // whole: where the first stop is
        for (const std::string& stop : stops_) {
            const std::size_t found = held_.find(stop);
            if (found == held_.npos || std::pair(found + stop.size(), found) >= std::pair(whole, begin)) continue;
            begin = found;
            whole = found + stop.size();
            stopped_ = true;
        }
        std::string certain = held_.substr(0, begin);
        held_.erase(0, stopped_ ? held_.npos : begin);
        return certain;
    }

    /// Whether a stop string has been seen; nothing comes after it.
    bool stopped() const { return stopped_; }

    /// The end of the stream: what was held back.
    std::string finish() { return std::exchange(held_, {}); }

private:
    /// Length of the longest end of the held text that begins a stop string.
    std::size_t longest_beginning() const {
        std::size_t longest = 0;
        for (const std::string& stop : stops_) {
            for (std::size_t length = (std::min)(stop.size() - 1, held_.size()); length > longest; --length) {
                if (std::string_view(held_).substr(held_.size() - length) == std::string_view(stop).substr(0, length))
                    longest = length;
            }
        }
        return longest;
    }

    std::vector<std::string> stops_;
    std::string held_;
    bool stopped_ = false;
};

}  // namespace kimik3
