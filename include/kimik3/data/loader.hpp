#pragma once
// Batches from token shards. A window is seq tokens and their targets, the same tokens one place further on; this is
// the only place where the two are shifted. A shard of n tokens holds (n - 1) / seq windows, back to back from its
// beginning, none across two shards; what is left at its end is not used. An epoch is count / batch batches: in
// order, or in a permutation (Fisher-Yates on Philox numbers) that depends on the seed and the epoch alone, so that
// (epoch, window) is the whole position. Windows too few for a last batch sit out the epoch; evaluation has them all.

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kimik3/core/error.hpp"
#include "kimik3/core/rng.hpp"
#include "kimik3/data/shard.hpp"

namespace kimik3 {

/// tokens and targets are [batch x seq], row-major; targets[b, t] follows tokens[b, t] in the text.
struct Batch {
    Index batch = 0, seq = 0;
    std::vector<std::int32_t> tokens, targets;
};

/// All windows of a list of shards, numbered in the order of the list. Reading changes nothing.
class TokenWindows {
public:
    TokenWindows(std::vector<Shard> shards, Index seq) : shards_(std::move(shards)), seq_(seq) {
        require(seq >= 1, "a window has at least one token, not {}", seq);
        require(!shards_.empty(), "a token loader reads at least one shard, not {}", shards_.size());
        Index tokens = 0;
        for (const Shard& shard : shards_) {
            tokens += shard.tokens();
            ends_.push_back(count() + (std::max)(Index{0}, shard.tokens() - 1) / seq);
        }
        require(count() >= 1,
                "{}: a window of {} tokens needs a shard of more, for its targets; here are {} tokens in {} shards",
                shards_.front().name(), seq, tokens, shards_.size());
    }

    Index count() const { return ends_.empty() ? 0 : ends_.back(); }
    Index seq() const { return seq_; }

    /// A number of the shards' file names and sizes: another list has another number.
    std::uint64_t fingerprint() const {
        std::uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a, 64 bits
        const auto mix = [&hash](std::uint64_t byte) { hash = (hash ^ byte) * 0x100000001b3u; };
        for (const Shard& shard : shards_) {
            const std::string name = std::filesystem::path(shard.name()).filename().string();
            for (const char letter : name) mix(static_cast<unsigned char>(letter));
            const auto tokens = static_cast<std::uint64_t>(shard.tokens());
            for (int shift = 0; shift < 64; shift += 8) mix((tokens >> shift) & 0xff);
        }
        return hash;
    }

    /// One row of the batch for each of the listed windows.
    void read(std::span<const Index> windows, Batch& batch) const {
        batch.batch = static_cast<Index>(windows.size());
        batch.seq = seq_;
        batch.tokens.resize(windows.size() * to_size(seq_));
        batch.targets.resize(batch.tokens.size());
        std::vector<std::int32_t> ids(to_size(seq_ + 1));
        for (std::size_t row = 0; row < windows.size(); ++row) {
            const Index window = windows[row];
            require(0 <= window && window < count(), "window {} is not one of the {}", window, count());
            const auto end = std::upper_bound(ends_.begin(), ends_.end(), window);
            const Index first_window = end == ends_.begin() ? 0 : *(end - 1);
            shards_[to_size(end - ends_.begin())].read((window - first_window) * seq_, ids);
            const Index offset = static_cast<Index>(row) * seq_;
            std::copy(ids.begin(), ids.end() - 1, batch.tokens.begin() + offset);
            std::copy(ids.begin() + 1, ids.end(), batch.targets.begin() + offset);
        }
    }

    /// Evaluation: visit(const Batch&) sees every window once, or the first most of them, in order; the last batch is
    /// as small as it must be.
    template <class Visit>
    void for_each_batch(Index batch, Visit&& visit, Index most = (std::numeric_limits<Index>::max)()) const {
        require(batch >= 1, "a batch has at least one window, not {}", batch);
        require(most >= 0, "0 or more windows are visited, not {}", most);
        Batch out;
        std::vector<Index> windows;
        const Index end = (std::min)(count(), most);
        for (Index first = 0; first < end; first += static_cast<Index>(windows.size())) {
            windows.resize(to_size((std::min)(batch, end - first)));
            std::iota(windows.begin(), windows.end(), first);
            read(windows, out);
            visit(std::as_const(out));
        }
    }

private:
    std::vector<Shard> shards_;
    Index seq_;
    std::vector<Index> ends_;  // [shards] windows up to and including each shard
};

enum class Order { sequential, shuffled };

constexpr std::string_view name_of(Order order) { return order == Order::sequential ? "sequential" : "shuffled"; }

/// Where a loader stands, and what that position is good for.
struct LoaderState {
    std::uint64_t shards = 0;  // fingerprint of the shard list
    std::uint64_t seed = 0;
    Order order = Order::sequential;
    Index seq = 0;
    Index epoch = 0;
    Index window = 0;  // windows of this epoch given so far

    bool operator==(const LoaderState&) const = default;
};

/// An endless row of training batches.
class TokenLoader {
public:
    TokenLoader(TokenWindows windows, Index batch, Order order = Order::sequential, std::uint64_t seed = 0)
        : windows_(std::move(windows)), batch_(batch), sequence_(to_size(windows_.count())) {
        require(batch >= 1, "a batch has at least one window, not {}", batch);
        require(batch <= windows_.count(), "a batch of {} x {} tokens needs {} windows, the shards hold {}", batch,
                windows_.seq(), batch, windows_.count());
        state_ = {windows_.fingerprint(), seed, order, windows_.seq(), 0, 0};
        arrange();
    }

    const TokenWindows& windows() const { return windows_; }
    Index batches_per_epoch() const { return windows_.count() / batch_; }

    void next(Batch& batch) {
        if (state_.window + batch_ > windows_.count()) {
            ++state_.epoch;
            state_.window = 0;
            arrange();
        }
        windows_.read(std::span(sequence_).subspan(to_size(state_.window), to_size(batch_)), batch);
        state_.window += batch_;
    }

    const LoaderState& state() const { return state_; }

    /// Goes on where the loader that gave the state stood. The batch size may differ: a position counts windows.
    void restore(const LoaderState& saved) {
        require(saved.shards == state_.shards, "the saved position {:#x} is of another list of shards than this, {:#x}",
                saved.shards, state_.shards);
        require(saved.seq == state_.seq, "the saved position is of windows of {} tokens, these have {}", saved.seq,
                state_.seq);
        require(saved.order == state_.order && saved.seed == state_.seed,
                "the saved position is of the {} order with seed {}, this is the {} order with seed {}",
                name_of(saved.order), saved.seed, name_of(state_.order), state_.seed);
        require(saved.epoch >= 0 && 0 <= saved.window && saved.window <= windows_.count(),
                "the saved position, window {} of epoch {}, is not one of {} windows", saved.window, saved.epoch,
                windows_.count());
        state_ = saved;
        arrange();
    }

private:
    void arrange() {
        std::iota(sequence_.begin(), sequence_.end(), Index{0});
        if (state_.order == Order::sequential) return;
        // the upper half of the streams, away from those that draw weights
        Philox random(state_.seed, (std::uint64_t{1} << 63) + static_cast<std::uint64_t>(state_.epoch));
        for (std::size_t last = sequence_.size() - 1; last > 0; --last) {
            std::swap(sequence_[last], sequence_[random.below(last + 1)]);
        }
    }

    TokenWindows windows_;
    Index batch_;
    std::vector<Index> sequence_;  // [windows] the order of this epoch
    LoaderState state_;
};

}  // namespace kimik3
