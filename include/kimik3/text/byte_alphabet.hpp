#pragma once
// The printable alphabet in which byte-level vocabularies are written (GPT-2, Radford et al. 2019): the bytes 21..7E,
// A1..AC and AE..FF stand for themselves as code points; the other 68, in ascending order, are U+0100, U+0101, ...

#include <array>
#include <optional>
#include <string>
#include <string_view>

#include "kimik3/text/utf8.hpp"

namespace kimik3 {
namespace detail {

constexpr bool stands_for_itself(unsigned byte) {
    return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte != 0xad);
}

struct ByteAlphabet {
    std::array<std::uint16_t, 256> code{};   // byte -> code point
    std::array<std::int16_t, 0x144> byte{};  // code point -> byte, or -1
};

inline constexpr ByteAlphabet byte_alphabet = [] {
    ByteAlphabet alphabet;
    for (std::int16_t& byte : alphabet.byte) byte = -1;
    unsigned next = 0x100;
    for (unsigned byte = 0; byte < 256; ++byte) {
        const unsigned code = stands_for_itself(byte) ? byte : next++;
        alphabet.code[byte] = static_cast<std::uint16_t>(code);
        alphabet.byte[code] = static_cast<std::int16_t>(byte);
    }
    return alphabet;
}();

}  // namespace detail

/// Bytes -> the printable form of a token.
inline std::string to_byte_alphabet(std::string_view bytes) {
    std::string out;
    for (const char c : bytes) detail::append_utf8(out, detail::byte_alphabet.code[static_cast<unsigned char>(c)]);
    return out;
}

/// The bytes of a printable token, or nothing when it has a character outside the alphabet.
inline std::optional<std::string> from_byte_alphabet(std::string_view printable) {
    std::string out;
    for (Index at = 0; at < static_cast<Index>(printable.size());) {
        const Utf8Unit unit = utf8_unit(printable, at);
        if (unit.kind != Utf8Unit::code_point) return std::nullopt;
        const std::uint32_t code = detail::code_point_at(printable, at);
        if (code >= detail::byte_alphabet.byte.size() || detail::byte_alphabet.byte[code] < 0) return std::nullopt;
        out.push_back(static_cast<char>(static_cast<unsigned char>(detail::byte_alphabet.byte[code])));
        at += unit.bytes;
    }
    return out;
}

}  // namespace kimik3
