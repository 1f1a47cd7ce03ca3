#pragma once
// Which rows of a token matrix belong to which sequence. Tokens of all sequences stand one after another; operations
// that look along time (short convolution, KDA, attention) never look across a border. A training batch, packed
// documents, ragged prompts and one decode step of many sequences are all this.

#include <algorithm>
#include <span>
#include <vector>

#include "kimik3/core/error.hpp"

namespace kimik3 {

class Sequences {
public:
    Sequences() = default;

    /// offsets: 0 = first row of the first sequence, ..., one past the last row; empty sequences are allowed.
    /// For decoding, slots: the row of the decoding state that each sequence uses, and past: how many of its tokens
    /// that state has already taken in; left out, sequence s uses slot s from its start.
    explicit Sequences(std::vector<Index> offsets, const std::vector<Index>& slots = {},
                       const std::vector<Index>& past = {})
        : count_(static_cast<Index>(offsets.size()) - 1), packed_(std::move(offsets)) {
        require(!packed_.empty() && packed_.front() == 0, "sequence offsets begin with 0");
        for (Index s = 0; s < count_; ++s)
            require(begin(s) <= end(s), "sequence offsets never fall, got {} after {}", end(s), begin(s));
        const std::size_t count = to_size(count_);
        require(slots.empty() || slots.size() == count, "{} sequences need as many slots, got {}", count, slots.size());
        require(past.empty() || past.size() == count, "{} sequences need as many past lengths, got {}", count,
                past.size());
        for (Index s = 0; s < count_; ++s) packed_.push_back(slots.empty() ? s : slots[to_size(s)]);
        for (Index s = 0; s < count_; ++s) packed_.push_back(past.empty() ? 0 : past[to_size(s)]);
    }

    /// batch sequences of length tokens each.
    static Sequences uniform(Index batch, Index length) {
        require(batch >= 0 && length >= 0, "there are 0 sequences of 0 tokens or more, got {} of {}", batch, length);
        std::vector<Index> offsets(to_size(batch + 1));
        for (Index s = 0; s <= batch; ++s) offsets[to_size(s)] = s * length;
        return Sequences(std::move(offsets));
    }

    Index count() const { return count_; }
    Index begin(Index sequence) const { return packed_[to_size(sequence)]; }
    Index end(Index sequence) const { return packed_[to_size(sequence) + 1]; }
    Index length(Index sequence) const { return end(sequence) - begin(sequence); }
    Index tokens() const { return packed_[to_size(count_)]; }
    Index slot(Index sequence) const { return packed_[to_size(count_ + 1 + sequence)]; }
    Index past(Index sequence) const { return packed_[to_size(2 * count_ + 1 + sequence)]; }
    Index longest() const {
        Index most = 0;
        for (Index s = 0; s < count(); ++s) most = length(s) > most ? length(s) : most;
        return most;
    }

    /// Whether every sequence has one new token: a decoding step.
    bool single() const { return count() > 0 && tokens() == count() && longest() == 1; }

    /// All of it as one array, for devices: count() + 1 offsets, count() slots, count() past lengths.
    std::span<const Index> packed() const { return packed_; }

    /// The same sequences for work that is recorded: a device finds packed() at placed, where it changes from step to
    /// step, and the host sees bound as every past length, which is at least that, so that it stays the same.
    Sequences placed_at(const Index* placed, Index bound) const {
        Sequences all = *this;
        all.placed_ = placed;
        std::fill(all.packed_.end() - static_cast<std::ptrdiff_t>(count_), all.packed_.end(), bound);
        return all;
    }
    /// Where a device finds packed(), or nullptr.
    const Index* placed() const { return placed_; }

private:
    Index count_ = 0;
    std::vector<Index> packed_{0};
    const Index* placed_ = nullptr;
};

}  // namespace kimik3
