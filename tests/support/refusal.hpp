#pragma once
// The sentence with which something is refused.

#include <string>
#include <string_view>

#include "kimik3/core/error.hpp"

namespace kimik3::test {

/// The sentence with which body refuses, or "accepted".
template <class Body>
std::string refusal(Body&& body) {
    try {
        body();
    } catch (const Error& error) {
        return error.what();
    }
    return "accepted";
}

inline bool contains(std::string_view text, std::string_view part) { return text.find(part) != text.npos; }

}  // namespace kimik3::test
