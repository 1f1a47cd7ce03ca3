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

namespace detail {

// Checking every sentence against its arguments while compiling costs a program time, so it is done where the library
// itself is tested.
#ifdef KIMIK3_CHECK_SENTENCES
template <class... Args>
using Sentence = fmt::format_string<Args...>;
#else
template <class... Args>
using Sentence = fmt::string_view;
#endif

[[noreturn, gnu::noinline]] inline void fail_with(fmt::string_view sentence, fmt::format_args args) {
    throw Error(fmt::vformat(sentence, args));
}

}  // namespace detail

/// Throws Error with the formatted sentence.
template <class... Args>
[[noreturn]] void fail(detail::Sentence<Args...> sentence, Args&&... args) {
    detail::fail_with(sentence, fmt::make_format_args(args...));
}

/// Throws Error with the formatted sentence unless the rule holds. The sentence states the rule and shows the value:
/// require(t <= limit, "a sequence has at most {} tokens, this one has {}", limit, t).
template <class... Args>
void require(bool rule_holds, detail::Sentence<Args...> sentence, Args&&... args) {
    if (!rule_holds) fail(sentence, std::forward<Args>(args)...);
}

}  // namespace kimik3
