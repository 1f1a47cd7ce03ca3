#pragma once
// Which rows of a token matrix belong to which sequence. Tokens of all sequences stand one after another; operations
// that look along time (short convolution, KDA, attention) never look across a border. A training batch, packed
// documents, ragged prompts and one decode step of many sequences are all this.

#include <vector>

#include "kimik3/core/error.hpp"

namespace kimik3 {

class Sequences {
public:
    Sequences() = default;

    /// offsets: 0 = first row of the first sequence, ..., one past the last row; empty sequences are allowed.
    /// For decoding, slots: the row of the decoding state that each sequence uses, and past: how many of its tokens that
    /// state has already taken in; left out, sequence s uses slot s from its start.
    explicit Sequences(std::vector<Index> offsets, std::vector<Index> slots = {}, std::vector<Index> past = {})
        : offsets_(std::move(offsets)), slots_(std::move(slots)), past_(std::move(past)) {
        require(!offsets_.empty() && offsets_.front() == 0, "sequence offsets begin with 0");
        for (std::size_t s = 1; s < offsets_.size(); ++s) {
            require(offsets_[s - 1] <= offsets_[s], "sequence offsets never fall, got {} after {}", offsets_[s], offsets_[s - 1]);
        }
        require(slots_.empty() || slots_.size() + 1 == offsets_.size(), "{} sequences need as many slots, got {}",
                offsets_.size() - 1, slots_.size());
        require(past_.empty() || past_.size() + 1 == offsets_.size(), "{} sequences need as many past lengths, got {}",
                offsets_.size() - 1, past_.size());
    }

    /// batch sequences of length tokens each.
    static Sequences uniform(Index batch, Index length) {
        std::vector<Index> offsets(to_size(batch + 1));
        for (Index s = 0; s <= batch; ++s) offsets[to_size(s)] = s * length;
        return Sequences(std::move(offsets));
    }

    Index count() const { return static_cast<Index>(offsets_.size()) - 1; }
    Index begin(Index sequence) const { return offsets_[to_size(sequence)]; }
    Index end(Index sequence) const { return offsets_[to_size(sequence) + 1]; }
    Index length(Index sequence) const { return end(sequence) - begin(sequence); }
    Index tokens() const { return offsets_.back(); }
    Index slot(Index sequence) const { return slots_.empty() ? sequence : slots_[to_size(sequence)]; }
    Index past(Index sequence) const { return past_.empty() ? 0 : past_[to_size(sequence)]; }
    Index longest() const {
        Index most = 0;
        for (Index s = 0; s < count(); ++s) most = length(s) > most ? length(s) : most;
        return most;
    }

private:
    std::vector<Index> offsets_{0};
    std::vector<Index> slots_, past_;
};

}  // namespace kimik3
