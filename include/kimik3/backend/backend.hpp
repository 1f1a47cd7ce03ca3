#pragma once
// What a backend is: an empty tag type and a Context<Tag>. Every operation takes the context first; ops/X.hpp states
// its contract and holds a catch-all that a missing overload falls into, with a sentence; ops/cpu/X.hpp has the
// overload.

#include <span>
#include <type_traits>

#include "kimik3/core/base.hpp"

namespace kimik3 {

template <class Backend>
class Context;

/// False, but only once a catch-all is chosen. The catch-alls take C varargs, the worst match of all, so any overload
/// whose arguments fit is taken before them.
template <class Backend>
inline constexpr bool missing_overload = false;

/// Whether a backend has a model's operations for numbers of type T.
template <class Backend, class T>
inline constexpr bool computes_in = std::is_same_v<T, float> || std::is_same_v<T, double>;

/// Whether a backend decides itself, from numbers in its memory, if and how an optimizer step is taken
/// (ops/step_decision.hpp), so that the host need not wait in the middle of a step.
template <class Backend>
inline constexpr bool decides_steps = false;

/// Whether a backend takes a decoding step in few launches, by operations made for one new token a sequence
/// (ops/step_products.hpp and its like), in numbers of type T.
template <class Backend, class T>
inline constexpr bool has_steps = false;

/// Logits that a head computes at once, and rows of them at most: as many as a cache holds, or as products of full
/// speed have.
struct LogitsChunk {
    Index elements, rows;
};
template <class Backend>
inline constexpr LogitsChunk logits_chunk{Index{1} << 20, 1024};

/// Whether a backend draws tokens itself (ops/sample.hpp), so that logits stay where they are.
template <class Backend>
inline constexpr bool draws_tokens = false;

/// Work that is done again and again. run(ctx, shape, body) runs body; a backend that can records what it enqueues and
/// starts the recording as long as shape, on which all but numbers in memory depends, stays as it was.
template <class Backend>
class Repeated {
public:
    template <class Body>
    void run(const Context<Backend>&, std::span<const Index>, Body&& body) {
        body();
    }
};

}  // namespace kimik3
