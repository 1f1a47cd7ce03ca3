#pragma once
// What decoding keeps of a sequence: KDA states and convolution windows, MLA latent caches, and how many tokens they
// have taken in. A DecodingState holds slots, one sequence each. It is a value: a copy is a snapshot, and copy_slot
// branches a sequence. A recurrent state cannot forget its last tokens, so it is shortened only to nothing; go back by
// a snapshot.

#include <algorithm>
#include <span>
#include <vector>

#include "kimik3/model/model_params.hpp"
#include "kimik3/tensor/transfer.hpp"

namespace kimik3 {

template <class Layers, class Backend, class T>
class DecodingState {
public:
    template <class Block>
    using LayerState = typename BlockLayer<Block, Backend, T>::State;

    /// Room for slots sequences of up to max_len tokens, all empty.
    DecodingState(Context<Backend> ctx, const ModelConfig& config, Index slots, Index max_len)
        : ctx_(std::move(ctx)), config_(&config), max_len_(max_len), lengths_(to_size((std::max)(Index{0}, slots)), 0) {
        require(slots >= 1, "a decoding state has at least one slot, got {}", slots);
        require(max_len >= 1 && max_len <= config.max_seq_len,
                "a decoding state holds 1 to {} tokens a sequence, got {}", config.max_seq_len, max_len);
        Arena measure;
        bind(measure);
        ctx_.make_current();
        memory_ = Buffer<std::byte, Backend>(measure.used_bytes());
        rebind();
    }
    DecodingState(const DecodingState& other)
        : ctx_(other.ctx_),
          config_(other.config_),
          max_len_(other.max_len_),
          lengths_(other.lengths_) {
        ctx_.make_current();
        memory_ = Buffer<std::byte, Backend>(other.memory_.size());
        copy(ctx_, MatrixView<std::byte>(other.memory_.data(), 1, memory_.size()),
             MatrixView<std::byte>(memory_.data(), 1, memory_.size()));
        rebind();
    }
    DecodingState(DecodingState&&) noexcept = default;
    DecodingState& operator=(const DecodingState& other) { return *this = DecodingState(other); }
    DecodingState& operator=(DecodingState&&) noexcept = default;

    Index slots() const { return static_cast<Index>(lengths_.size()); }
    Index max_len() const { return max_len_; }
    /// Tokens that the sequence in a slot has taken in.
    Index length(Index slot) const {
        require_slot(slot);
        return lengths_[to_size(slot)];
    }
    Index bytes() const { return memory_.size(); }
    /// Where all of it lies.
    const std::byte* data() const { return memory_.data(); }

    /// Shortens a slot's sequence: to what it is, or to nothing.
    void truncate(Index slot, Index length) {
        const Index now = this->length(slot);
        require(length == now || length == 0,
                "a recurrent state cannot go back to {} of its {} tokens: copy the state at the place to return to",
                length, now);
        if (length == 0) reset(slot);
    }

    void reset(Index slot) {
        require_slot(slot);
        lengths_[to_size(slot)] = 0;
        each_row([&](auto rows) { clear(ctx_, rows.middle_rows(slot, 1)); });
    }

    /// Makes the sequence in slot to the one in slot from.
    void copy_slot(Index from, Index to) {
        require_slot(from);
        require_slot(to);
        if (from == to) return;
        lengths_[to_size(to)] = lengths_[to_size(from)];
        each_row([&](auto rows) { copy(ctx_, rows.middle_rows(from, 1), rows.middle_rows(to, 1)); });
    }

    /// How new tokens, counts[s] for the sequence in slots[s], are laid out; refuses what does not fit.
    Sequences plan(std::span<const Index> counts, std::span<const Index> slots, Index tokens) const {
        require(counts.size() == slots.size(), "every sequence has a token count and a slot, got {} and {}",
                counts.size(), slots.size());
        std::vector<Index> offsets{0}, past;
        std::vector<std::uint8_t> taken(lengths_.size());
        for (std::size_t s = 0; s < counts.size(); ++s) {
            past.push_back(length(slots[s]));
            require(taken[to_size(slots[s])] == 0, "slot {} is named twice in one step", slots[s]);
            taken[to_size(slots[s])] = 1;
            require(counts[s] >= 0, "a sequence has 0 new tokens or more, got {}", counts[s]);
            require(past.back() + counts[s] <= max_len_,
                    "context full: slot {} holds {} of {} tokens, {} more do not fit", slots[s], past.back(), max_len_,
                    counts[s]);
            offsets.push_back(offsets.back() + counts[s]);
        }
        require(offsets.back() == tokens, "the token counts add up to the tokens given: {} and {}", offsets.back(),
                tokens);
        return Sequences(std::move(offsets), {slots.begin(), slots.end()}, std::move(past));
    }

    /// The least number of the form 2^i - 1, from 255 on, that no past length passes; or the last that a slot holds.
    Index past_bound(const Sequences& step) const {
        Index bound = 255;
        for (Index s = 0; s < step.count(); ++s)
            while (bound < step.past(s)) bound = 2 * bound + 1;
        return (std::min)(bound, max_len_ - 1);
    }

    /// Counts the tokens of a finished step.
    void advance(const Sequences& step) {
        for (Index s = 0; s < step.count(); ++s) lengths_[to_size(step.slot(s))] += step.length(s);
    }

    template <Index layer>
    auto& layer_state() {
        return std::get<layer>(layers_);
    }

private:
    void bind(Arena& arena) {
        static_for<Layers::size>([&](auto layer) {
            using Attention = typename BlockLayer<typename Layers::template at<layer>, Backend, T>::Attention;
            std::get<layer>(layers_) = Attention::bind_state(arena, *config_, slots(), max_len_);
        });
    }
    void rebind() {
        Arena arena(memory_.data(), memory_.size());
        bind(arena);
    }
    template <class Body>
    void each_row(Body&& body) {
        static_for<Layers::size>([&](auto layer) { std::get<layer>(layers_).each(body); });
    }
    void require_slot(Index slot) const {
        require(slot >= 0 && slot < slots(), "slots lie in [0, {}), got {}", slots(), slot);
    }

    Context<Backend> ctx_;
    const ModelConfig* config_;
    Index max_len_;
    std::vector<Index> lengths_;
    Buffer<std::byte, Backend> memory_;
    typename PerLayer<Layers, LayerState>::type layers_;
};

}  // namespace kimik3
