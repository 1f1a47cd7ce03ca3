#pragma once
// What a backend is: an empty tag type and a Context<Tag>. Every operation takes the context first; ops/X.hpp states
// its contract and holds a catch-all that a missing overload falls into, with a sentence; ops/cpu/X.hpp has the
// overload.

namespace kimik3 {

template <class Backend>
class Context;

/// False, but only once a catch-all is chosen. The catch-alls take C varargs, the worst match of all, so any overload
/// whose arguments fit is taken before them.
template <class Backend>
inline constexpr bool missing_overload = false;

}  // namespace kimik3
