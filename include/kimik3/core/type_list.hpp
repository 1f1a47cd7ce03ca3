#pragma once
// A list of types and a loop over its positions; the layer schedule is built from it.

#include <tuple>
#include <type_traits>
#include <utility>

#include "kimik3/core/base.hpp"

namespace kimik3 {

template <class... Types>
struct TypeList {
    static constexpr Index size = static_cast<Index>(sizeof...(Types));

    template <Index position>
    using at = std::tuple_element_t<to_size(position), std::tuple<Types...>>;
};

/// Calls body(std::integral_constant<Index, 0>{}), ..., body(std::integral_constant<Index, count - 1>{}) in order.
template <Index count, class Body>
constexpr void static_for(Body&& body) {
    [&]<Index... position>(std::integer_sequence<Index, position...>) {
        (body(std::integral_constant<Index, position>{}), ...);
    }(std::make_integer_sequence<Index, count>{});
}

/// The same loop from the last position to the first.
template <Index count, class Body>
constexpr void static_for_reverse(Body&& body) {
    static_for<count>([&](auto position) { body(std::integral_constant<Index, count - 1 - position>{}); });
}

}  // namespace kimik3
