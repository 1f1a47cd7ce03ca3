#pragma once
// Numbers as files store them: the C++ type behind a dtype, and the conversion of one element into the type asked for.
// Floating-point types are converted by a cast, which must not make a finite number infinite; integers must fit; the
// two kinds do not mix.

#include <bit>
#include <cmath>
#include <type_traits>

#include "kimik3/core/dtype.hpp"

namespace kimik3::detail {

static_assert(std::endian::native == std::endian::little, "kimik3: files are read on little-endian machines");

template <class T>
inline constexpr bool is_float = std::is_floating_point_v<T> || std::is_same_v<T, bf16> || std::is_same_v<T, f16>;

/// Which stored types may be read as T.
template <class Stored, class T>
inline constexpr bool convertible = std::is_same_v<T, bool> ? std::is_same_v<Stored, bool>
                                                            : is_float<Stored> == is_float<T>;

/// Calls body(std::type_identity<the C++ type of dtype>{}).
template <class Body>
void with_type(DType dtype, Body&& body) {
    switch (dtype) {
        case DType::f64: return body(std::type_identity<double>{});
        case DType::f32: return body(std::type_identity<float>{});
        case DType::f16: return body(std::type_identity<f16>{});
        case DType::bf16: return body(std::type_identity<bf16>{});
        case DType::i64: return body(std::type_identity<std::int64_t>{});
        case DType::i32: return body(std::type_identity<std::int32_t>{});
        case DType::i16: return body(std::type_identity<std::int16_t>{});
        case DType::i8: return body(std::type_identity<std::int8_t>{});
        case DType::u64: return body(std::type_identity<std::uint64_t>{});
        case DType::u32: return body(std::type_identity<std::uint32_t>{});
        case DType::u16: return body(std::type_identity<std::uint16_t>{});
        case DType::u8: return body(std::type_identity<std::uint8_t>{});
        case DType::boolean: return body(std::type_identity<bool>{});
    }
}

/// Stores the value in result; false when T does not hold it.
template <class Stored, class Raw, class T>
bool convert_element(Raw value, T& result) {
    if constexpr (is_float<T>) {
        if constexpr (std::is_same_v<T, bf16> || std::is_same_v<T, f16>) result = T(static_cast<float>(value));
        else result = static_cast<T>(value);
        if constexpr (sizeof(T) < sizeof(Stored) || std::is_same_v<T, f16>)
            return std::isfinite(static_cast<double>(result)) || !std::isfinite(static_cast<double>(value));
    } else {
        if constexpr (std::is_same_v<Stored, bool>) {
            if (value > 1) return false;
        } else {
            if (!std::in_range<T>(value)) return false;
        }
        result = static_cast<T>(value);
    }
    return true;
}

/// The value as a type that the format library prints as a number.
template <class Raw>
auto printable(Raw value) {
    if constexpr (is_float<Raw>) return static_cast<double>(value);
    else if constexpr (std::is_signed_v<Raw>) return static_cast<std::int64_t>(value);
    else return static_cast<std::uint64_t>(value);
}

}  // namespace kimik3::detail
