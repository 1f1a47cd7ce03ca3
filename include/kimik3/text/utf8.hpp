#pragma once
// What tokenizers need of UTF-8 (Unicode 15, section 3.9, table 3-7): where a text stops being well formed, and a
// filter for streams. Ill-formed bytes are replaced by U+FFFD one maximal subpart at a time, as the Unicode standard
// (chapter 3, "U+FFFD Substitution of Maximal Subparts"), WHATWG and Python do.

#include <cstring>
#include <string>
#include <string_view>

#include "kimik3/core/base.hpp"

namespace kimik3 {

/// What begins at one place of a text: `bytes` bytes that are one code point, or a maximal ill-formed subpart, or the
/// beginning of a code point that the text's end cuts off.
struct Utf8Unit {
    enum Kind : std::uint8_t { code_point, ill_formed, cut_off };
    Kind kind = ill_formed;
    Index bytes = 1;
};

/// Requires 0 <= at < text.size().
constexpr Utf8Unit utf8_unit(std::string_view text, Index at) {
    const auto byte = [&](Index i) { return static_cast<unsigned char>(text[to_size(i)]); };
    const unsigned lead = byte(at);
    if (lead < 0x80) return {Utf8Unit::code_point, 1};
    if (lead < 0xc2 || lead > 0xf4) return {Utf8Unit::ill_formed, 1};
    const Index length = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
    unsigned low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
    unsigned high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
    for (Index i = 1; i < length; ++i) {
        if (at + i == static_cast<Index>(text.size())) return {Utf8Unit::cut_off, i};
        if (byte(at + i) < low || byte(at + i) > high) return {Utf8Unit::ill_formed, i};
        low = 0x80, high = 0xbf;
    }
    return {Utf8Unit::code_point, length};
}

/// The first place at or after `from` where the text is not well-formed UTF-8, or its size.
inline Index utf8_valid_until(std::string_view text, Index from = 0) {
    const Index size = static_cast<Index>(text.size());
    while (from < size) {
        std::uint64_t eight = 0;
        if (size - from >= 8) {
            std::memcpy(&eight, text.data() + from, 8);
            if ((eight & 0x8080808080808080u) == 0) {
                from += 8;
                continue;
            }
        }
        const Utf8Unit unit = utf8_unit(text, from);
        if (unit.kind != Utf8Unit::code_point) return from;
        from += unit.bytes;
    }
    return size;
}

inline bool is_utf8(std::string_view text) { return utf8_valid_until(text) == static_cast<Index>(text.size()); }

/// Turns a stream of bytes into well-formed UTF-8: a code point comes out once it is complete, U+FFFD as soon as bytes
/// can no longer become one.
class Utf8Stream {
public:
    std::string push(std::string_view bytes) {
        pending_.append(bytes);
        return take(false);
    }

    /// The rest: what is still incomplete comes out as one U+FFFD.
    std::string flush() { return take(true); }

private:
    std::string take(bool at_end) {
        std::string out;
        Index at = 0;
        while (at < static_cast<Index>(pending_.size())) {
            const Index valid = utf8_valid_until(pending_, at);
            out.append(pending_, to_size(at), to_size(valid - at));
            at = valid;
            if (at == static_cast<Index>(pending_.size())) break;
            const Utf8Unit unit = utf8_unit(pending_, at);
            if (unit.kind == Utf8Unit::cut_off && !at_end) break;
            out += "\xEF\xBF\xBD";
            at += unit.bytes;
        }
        pending_.erase(0, to_size(at));
        return out;
    }

    std::string pending_;
};

namespace detail {

/// Cuts any bytes into runs that are well-formed UTF-8, for valid(run), and runs that are not, for invalid(run), in
/// order.
template <class Valid, class Invalid>
void for_each_utf8_run(std::string_view text, Valid&& valid, Invalid&& invalid) {
    while (!text.empty()) {
        if (const std::size_t good = to_size(utf8_valid_until(text)); good > 0) {
            valid(text.substr(0, good));
            text.remove_prefix(good);
        }
        std::size_t bad = 0;
        while (bad < text.size()) {
            const Utf8Unit unit = utf8_unit(text, static_cast<Index>(bad));
            if (unit.kind == Utf8Unit::code_point) break;
            bad += to_size(unit.bytes);
        }
        if (bad > 0) invalid(text.substr(0, bad));
        text.remove_prefix(bad);
    }
}

/// Appends the UTF-8 form of a code point that is no surrogate and not above U+10FFFF.
inline void append_utf8(std::string& out, std::uint32_t code) {
    const auto put = [&](std::uint32_t byte) { out.push_back(static_cast<char>(static_cast<unsigned char>(byte))); };
    if (code < 0x80) return put(code);
    if (code < 0x800) put(0xc0 | (code >> 6));
    else if (code < 0x10000) put(0xe0 | (code >> 12)), put(0x80 | ((code >> 6) & 0x3f));
    else put(0xf0 | (code >> 18)), put(0x80 | ((code >> 12) & 0x3f)), put(0x80 | ((code >> 6) & 0x3f));
    put(0x80 | (code & 0x3f));
}

/// The code point at a place where a well-formed one begins.
constexpr std::uint32_t code_point_at(std::string_view text, Index at) {
    const auto byte = [&](Index i) { return std::uint32_t{static_cast<unsigned char>(text[to_size(at + i)])}; };
    const Index length = utf8_unit(text, at).bytes;
    std::uint32_t code = length == 1 ? byte(0) : byte(0) & (0x7fu >> length);
    for (Index i = 1; i < length; ++i) code = (code << 6) | (byte(i) & 0x3f);
    return code;
}

}  // namespace detail
}  // namespace kimik3
