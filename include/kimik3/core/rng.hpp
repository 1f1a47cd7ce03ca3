#pragma once
// Counter-based random numbers: Philox 4x32 with 10 rounds (Salmon et al., "Parallel random numbers: as easy as
// 1, 2, 3", SC 2011). A value depends on (seed, stream, position) alone, so any thread on any backend draws the same
// one, and a generator is resumed by its position.

#include <cmath>
#include <numbers>

#include "kimik3/core/base.hpp"

namespace kimik3 {

struct PhiloxBlock {
    std::uint32_t word[4];
};

/// The four 32-bit words at one position of one stream.
KIMIK3_HOST_DEVICE constexpr PhiloxBlock philox(std::uint64_t seed, std::uint64_t stream, std::uint64_t position) {
    auto low = [](std::uint64_t x) { return static_cast<std::uint32_t>(x & 0xffffffffu); };
    auto high = [](std::uint64_t x) { return static_cast<std::uint32_t>(x >> 32); };
    PhiloxBlock c{{low(position), high(position), low(stream), high(stream)}};
    std::uint32_t key0 = low(seed), key1 = high(seed);
    for (int round = 0; round < 10; ++round) {
        const std::uint64_t product0 = 0xD2511F53ull * c.word[0], product1 = 0xCD9E8D57ull * c.word[2];
        c = PhiloxBlock{
            {high(product1) ^ c.word[1] ^ key0, low(product1), high(product0) ^ c.word[3] ^ key1, low(product0)}};
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
    return c;
}

/// A sequence of random numbers with a position that can be saved and restored.
class Philox {
public:
    explicit constexpr Philox(std::uint64_t seed, std::uint64_t stream = 0, std::uint64_t position = 0)
        : seed_(seed), stream_(stream), position_(position) {}

    std::uint64_t position() const { return position_; }

    std::uint64_t bits() {
        const PhiloxBlock block = philox(seed_, stream_, position_++);
        return (std::uint64_t{block.word[0]} << 32) | block.word[1];
    }

    /// Uniform in [0, 1) with 53 bits.
    double uniform() { return static_cast<double>(bits() >> 11) * 0x1p-53; }

    /// Uniform in [0, count), for count > 0, without modulo bias worth the name (2^-64 count).
    std::uint64_t below(std::uint64_t count) {
        __extension__ using Wide = unsigned __int128;
        return static_cast<std::uint64_t>((Wide{bits()} * count) >> 64);
    }

    /// Standard normal (Box-Muller, one value a draw).
    double normal() {
        const PhiloxBlock block = philox(seed_, stream_, position_++);
        const auto unit = [](std::uint32_t hi, std::uint32_t lo) {
            return static_cast<double>(((std::uint64_t{hi} << 32) | lo) >> 11) * 0x1p-53;
        };
        const double radius = std::sqrt(-2.0 * std::log(1.0 - unit(block.word[0], block.word[1])));
        return radius * std::cos(2.0 * std::numbers::pi * unit(block.word[2], block.word[3]));
    }

private:
    std::uint64_t seed_, stream_, position_;
};

}  // namespace kimik3
