#pragma once
// Generation: prompts in, tokens out one by one. A prompt is taken in pieces of prefill_chunk tokens, then every new
// token costs one step of the kept state. A range of one prompt:
//   for (std::int32_t token : generate(model, prompt, {.temperature = 0.8f})) ...
// and any number of prompts of unequal length side by side:
//   BatchGeneration batch(model, prompts); while (batch.next()) ... batch.token(s)
// A token is fed back only when the next one is asked for, so with a context of n a prompt of p gives up to n - p + 1.

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kimik3/generate/sampler.hpp"
#include "kimik3/model/kimi_k3.hpp"

namespace kimik3 {

struct GenerateOptions {
    // How a token is drawn: see SamplingOptions.
    double temperature = 1.0;
    Index top_k = 0;
    double top_p = 1.0, min_p = 0.0, repetition_penalty = 1.0;
    std::uint64_t seed = 0;
    std::uint64_t stream = 0;  // of the random numbers: sequence s of a batch has stream + s

    Index max_tokens = 256;
    std::vector<std::int32_t> stop_ids{};     // end at any of these; the stop token is not given out
    std::optional<std::int32_t> begin_id{};   // what an empty prompt starts from
    Index context = 0;                        // tokens kept of a sequence; 0: all that the model allows
    Index prefill_chunk = 256;
    Index vocabulary = 0;                     // only ids below this are drawn; 0: all that the model has
    std::vector<std::int32_t> barred{};       // never drawn

    SamplingOptions sampling() const { return {temperature, top_k, top_p, min_p, repetition_penalty, seed}; }
};

enum class Finish : std::uint8_t { running, max_tokens, stop_token, stopped, context_full, failed };

constexpr std::string_view name_of(Finish finish) {
    constexpr std::string_view names[] = {"running", "max tokens", "stop token", "stopped", "context full", "failed"};
    return names[static_cast<std::size_t>(finish)];
}

template <class Model>
class BatchGeneration {
public:
    BatchGeneration(Model& model, std::span<const std::vector<std::int32_t>> prompts, GenerateOptions options = {})
        : model_(&model),
          options_(std::move(options)),
          state_(model.new_state(static_cast<Index>(prompts.size()),
                                 options_.context == 0 ? Model::config.max_seq_len : options_.context)) {
        require(options_.max_tokens >= 0, "the number of tokens to generate is 0 or more, got {}", options_.max_tokens);
        check_ids(options_.stop_ids, Model::config.vocab_size);
        check_ids(options_.barred, Model::config.vocab_size);
        require(options_.prefill_chunk >= 1, "a prefill chunk has at least one token, got {}", options_.prefill_chunk);
        require(options_.vocabulary >= 0 && options_.vocabulary <= Model::config.vocab_size,
                "tokens are drawn from 0 (all) to {} ids, got {}", Model::config.vocab_size, options_.vocabulary);
        for (std::size_t s = 0; s < prompts.size(); ++s) add(prompts[s], static_cast<Index>(s));
    }

    Index size() const { return static_cast<Index>(sequences_.size()); }

    /// Draws one more token for every sequence that is still running; false when none is.
    bool next() {
        std::vector<Index> slots;
        for (Index s = 0; s < size(); ++s) {
            Member& sequence = sequences_[to_size(s)];
            sequence.token.reset();
            if (sequence.finish == Finish::running && may_go_on(sequence, s)) slots.push_back(s);
        }
        if (slots.empty()) return false;
        while (feed(slots)) {
        }
        return true;
    }

    /// Ends a running sequence from outside, where its text has met a stop string.
    void stop(Index sequence) {
        if (finish(sequence) == Finish::running) sequences_[to_size(sequence)].finish = Finish::stopped;
    }

    /// The token that the last next() gave a sequence, if it gave one.
    std::optional<std::int32_t> token(Index sequence) const { return at(sequence).token; }
    /// Prompt and tokens given out so far.
    Tokens tokens(Index sequence) const { return at(sequence).history; }
    Finish finish(Index sequence) const { return at(sequence).finish; }
    /// Why a sequence failed.
    const std::string& error(Index sequence) const { return at(sequence).error; }
    const typename Model::State& state() const { return state_; }

private:
    struct Member {
        std::vector<std::int32_t> history;
        Sampler sampler;
        Index generated = 0;
        Finish finish = Finish::running;
        std::optional<std::int32_t> token{};
        std::string error{};
    };

    const Member& at(Index sequence) const {
        require(sequence >= 0 && sequence < size(), "the batch has {} sequences, number {} was asked for", size(),
                sequence);
        return sequences_[to_size(sequence)];
    }

    void add(std::vector<std::int32_t> prompt, Index slot) {
        if (prompt.empty()) {
            require(options_.begin_id.has_value(),
                    "an empty prompt needs a token to begin from, and the options name none");
            prompt.push_back(*options_.begin_id);
        }
        require(static_cast<Index>(prompt.size()) <= state_.max_len(),
                "a prompt has at most {} tokens, the context; this one has {}", state_.max_len(), prompt.size());
        check_ids(prompt, Model::config.vocab_size);
        const std::uint64_t stream = options_.stream + static_cast<std::uint64_t>(slot);
        sequences_.push_back({std::move(prompt), Sampler(options_.sampling(), stream)});
    }

    bool may_go_on(Member& sequence, Index slot) const {
        if (sequence.generated >= options_.max_tokens) sequence.finish = Finish::max_tokens;
        else if (state_.length(slot) >= state_.max_len()) sequence.finish = Finish::context_full;
        return sequence.finish == Finish::running;
    }

    /// Feeds the next piece of every listed sequence's new tokens; sequences that have none left draw a token and leave
    /// the list. True while the list is not empty.
    bool feed(std::vector<Index>& slots) {
        std::vector<std::int32_t> fresh;
        std::vector<Index> counts;
        for (Index slot : slots) {
            const auto& history = sequences_[to_size(slot)].history;
            const Index fed = state_.length(slot),
                        count = (std::min)(options_.prefill_chunk, static_cast<Index>(history.size()) - fed);
            fresh.insert(fresh.end(), history.begin() + fed, history.begin() + fed + count);
            counts.push_back(count);
        }
        const auto logits = model_->step(state_, fresh, counts, slots);
        std::vector<Index> left, rows, drawing;
        for (std::size_t row = 0; row < slots.size(); ++row) {
            const Index slot = slots[row];
            const auto all = static_cast<Index>(sequences_[to_size(slot)].history.size());
            if (state_.length(slot) < all) left.push_back(slot);
            else rows.push_back(static_cast<Index>(row)), drawing.push_back(slot);
        }
        draw(logits, rows, drawing);
        slots = std::move(left);
        return !slots.empty();
    }

    /// Draws a token from each of the rows for the sequence in its slot.
    template <class T>
    void draw(MatrixView<const T> logits, std::span<const Index> rows, std::span<const Index> slots) {
        if (rows.empty()) return;
        const Index vocabulary = options_.vocabulary == 0 ? logits.cols : options_.vocabulary;
        if constexpr (draws_tokens<typename Model::BackendTag>) {
            if (options_.barred.empty()) return draw_there(logits, rows, slots, vocabulary);
        }
        for (std::size_t i = 0; i < rows.size(); ++i)
            draw_on_host(sequences_[to_size(slots[i])], logits.middle_rows(rows[i], 1).middle_cols(0, vocabulary));
    }

    /// The same where the logits are.
    template <class T>
    void draw_there(MatrixView<const T> logits, std::span<const Index> rows, std::span<const Index> slots,
                    Index vocabulary) {
        draws_.clear(), histories_.clear();
        for (std::size_t i = 0; i < rows.size(); ++i) {
            Member& sequence = sequences_[to_size(slots[i])];
            draws_.push_back(sequence.sampler.row(rows[i], vocabulary));
            if (options_.repetition_penalty == 1.0) continue;
            draws_.back().history = static_cast<Index>(histories_.size());
            draws_.back().history_size = static_cast<Index>(sequence.history.size());
            histories_.insert(histories_.end(), sequence.history.begin(), sequence.history.end());
        }
        sample(model_->context(), logits, draws_, histories_, drawn_);
        for (std::size_t i = 0; i < rows.size(); ++i) {
            Member& sequence = sequences_[to_size(slots[i])];
            if (drawn_[i] != failed_row) give_out(sequence, drawn_[i]);
            else draw_on_host(sequence, logits.middle_rows(rows[i], 1).middle_cols(0, vocabulary));
        }
    }

    template <class T>
    void draw_on_host(Member& sequence, MatrixView<const T> row) {
        const auto all = on_host(model_->context(), row, logits_);
        std::span<const T> logits(all.data, to_size(all.cols));
        if (!options_.barred.empty()) {
            allowed_.assign(logits.begin(), logits.end());
            for (const std::int32_t id : options_.barred)
                if (id < all.cols) allowed_[to_size(id)] = T(-std::numeric_limits<float>::infinity());
            logits = allowed_;
        }
        std::int32_t token = 0;
        try {
            token = sequence.sampler.sample(logits, Tokens(sequence.history));
        } catch (const Error& error) {
            sequence.finish = Finish::failed;
            sequence.error = error.what();
            return;
        }
        give_out(sequence, token);
    }

    void give_out(Member& sequence, std::int32_t token) {
        if (std::count(options_.stop_ids.begin(), options_.stop_ids.end(), token) > 0) {
            sequence.finish = Finish::stop_token;
            return;
        }
        sequence.history.push_back(token);
        sequence.token = token;
        ++sequence.generated;
    }

    Model* model_;
    GenerateOptions options_;
    typename Model::State state_;
    std::vector<Member> sequences_;
    std::vector<typename Model::Number> logits_;   // on the host, where the model computes elsewhere
    std::vector<typename Model::Number> allowed_;  // without those of barred ids
    std::vector<SampleRow> draws_;                 // where the backend draws
    std::vector<std::int32_t> histories_, drawn_;
};

/// One prompt's generation as an input range of token ids. A failure is thrown where the next token was asked for.
template <class Model>
class Generation {
public:
    Generation(Model& model, Tokens prompt, GenerateOptions options = {})
        : batch_(model, std::array{std::vector(prompt.begin(), prompt.end())}, std::move(options)) {}

    /// The next token, or nothing once generation has finished.
    std::optional<std::int32_t> next() {
        batch_.next();
        if (finish() == Finish::failed) throw Error(batch_.error(0));
        return batch_.token(0);
    }
    Finish finish() const { return batch_.finish(0); }
    /// Prompt and tokens given out so far.
    Tokens tokens() const { return batch_.tokens(0); }

    struct End {};
    class Iterator {
    public:
        using value_type = std::int32_t;
        using difference_type = std::ptrdiff_t;
        explicit Iterator(Generation& generation) : generation_(&generation), token_(generation.next()) {}
        std::int32_t operator*() const { return *token_; }
        Iterator& operator++() {
            token_ = generation_->next();
            return *this;
        }
        void operator++(int) { ++*this; }
        bool operator==(End) const { return !token_.has_value(); }

    private:
        Generation* generation_;
        std::optional<std::int32_t> token_;
    };
    Iterator begin() { return Iterator(*this); }
    End end() const { return {}; }

private:
    BatchGeneration<Model> batch_;
};

template <class Model>
Generation<Model> generate(Model& model, Tokens prompt, GenerateOptions options = {}) {
    return {model, prompt, std::move(options)};
}

}  // namespace kimik3
