#pragma once
// What a misspelt name probably meant: the candidate with the smallest edit distance, if that is small.

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "kimik3/core/error.hpp"

namespace kimik3 {

namespace detail {

/// Insertions, deletions and substitutions that turn a into b.
inline Index edit_distance(std::string_view a, std::string_view b) {
    std::vector<Index> row(b.size() + 1);
    for (std::size_t j = 0; j < row.size(); ++j) row[j] = static_cast<Index>(j);
    for (std::size_t i = 1; i <= a.size(); ++i) {
        Index diagonal = row[0];
        row[0] = static_cast<Index>(i);
        for (std::size_t j = 1; j < row.size(); ++j) {
            const Index substituted = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
            diagonal = row[j];
            row[j] = (std::min)({substituted, row[j] + 1, row[j - 1] + 1});
        }
    }
    return row.back();
}

/// A name as messages show it: cut at 120 bytes.
inline std::string shown_name(std::string_view name) {
    constexpr std::size_t longest = 120;
    return name.size() <= longest ? std::string(name) : fmt::format("{}...", name.substr(0, longest));
}

}  // namespace detail

/// The candidate nearest to name, or an empty view when none differs in less than a third of its letters.
inline std::string_view nearest_name(std::string_view name, const std::vector<std::string_view>& candidates) {
    constexpr std::size_t longest = 200;
    std::string_view best;
    if (name.size() > longest) return best;
    Index smallest = static_cast<Index>(name.size()) / 3 + 1;
    for (std::string_view candidate : candidates) {
        if (candidate.size() > longest) continue;
        const Index distance = detail::edit_distance(name, candidate);
        if (distance < smallest) best = candidate, smallest = distance;
    }
    return best;
}

}  // namespace kimik3
