#pragma once
// One exception type for every wrong input: its text names the rule and the value that broke it.

#include <fmt/core.h>

#include <stdexcept>
#include <string>
#include <utility>

#include "kimik3/core/base.hpp"

namespace kimik3 {

class Error : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

/// Throws Error with the formatted sentence.
template <class... Args>
[[noreturn]] void fail(fmt::format_string<Args...> sentence, Args&&... args) {
    throw Error(fmt::format(sentence, std::forward<Args>(args)...));
}

/// Throws Error with the formatted sentence unless the rule holds. The sentence states the rule and shows the value:
/// require(t <= limit, "a sequence has at most {} tokens, this one has {}", limit, t).
template <class... Args>
void require(bool rule_holds, fmt::format_string<Args...> sentence, Args&&... args) {
    if (!rule_holds) fail(sentence, std::forward<Args>(args)...);
}

}  // namespace kimik3
