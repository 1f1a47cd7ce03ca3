#pragma once
// Ends a stream of text at the first of some strings, wherever the borders of the pieces fall: text that may be the
// beginning of a stop string is held back until it is clear whether it is one.

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
        for (const std::string& stop : stops_) require(!stop.empty(), "a stop string has at least one character, got '{}'", stop);
    }

    /// Takes in a piece and returns the text that is now certain to come before any stop string.
    std::string push(std::string_view piece) {
        if (stopped_) return {};
        held_ += piece;
        std::size_t end = held_.npos;
        for (const std::string& stop : stops_) end = (std::min)(end, held_.find(stop));
        stopped_ = end != held_.npos;
        if (!stopped_) end = held_.size() - longest_beginning();
        std::string certain = held_.substr(0, end);
        held_.erase(0, stopped_ ? held_.npos : end);
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
                if (std::string_view(held_).substr(held_.size() - length) == std::string_view(stop).substr(0, length)) longest = length;
            }
        }
        return longest;
    }

    std::vector<std::string> stops_;
    std::string held_;
    bool stopped_ = false;
};

}  // namespace kimik3
