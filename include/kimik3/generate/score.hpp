#pragma once
// Scores of text under a model, in nats: log-likelihoods of tokens given those before them.
//   score_text     a whole text in windows: window inputs a pass, each window stride tokens after the last; a window
//                  counts only the targets that no earlier one has counted. So every token counts exactly once, with
//                  all that precedes it up to window, and from the second window on with at least window - stride
//                  tokens. The first token of the text has nothing before it: it counts where there is a begin_id.
//   score_endings  log-likelihoods of endings after a context, for multiple choice
// Perplexity is exp(nats / tokens), bits per byte nats / (ln 2 bytes). How sequences share a batch does not matter.

#include <algorithm>
#include <cmath>
#include <numbers>
#include <optional>
#include <span>
#include <vector>

#include "kimik3/data/shard.hpp"
#include "kimik3/model/kimi_k3.hpp"

namespace kimik3 {

struct TextScore {
    double nats = 0;
    Index tokens = 0;  // that were counted

    double loss() const { return tokens == 0 ? 0.0 : nats / static_cast<double>(tokens); }
    double perplexity() const { return std::exp(loss()); }
    double bits_per_byte(Index bytes) const {
        return bytes == 0 ? 0.0 : nats / (std::numbers::ln2 * static_cast<double>(bytes));
    }
    TextScore& operator+=(const TextScore& other) {
        nats += other.nats, tokens += other.tokens;
        return *this;
    }
};

struct TextScoreOptions {
    Index window = 256, stride = 128;
    Index batch = 8;                         // windows a pass
    std::optional<std::int32_t> begin_id{};  // stands before the first token
};

/// Calls counted(position in the shard, log-likelihood) for each token that counts, in order; returns their sum.
template <class Model, class Counted>
TextScore score_text(Model& model, const Shard& text, const TextScoreOptions& options, Counted&& counted);
template <class Model>
TextScore score_text(Model& model, const Shard& text, const TextScoreOptions& options = {}) {
    return score_text(model, text, options, [](Index, double) {});
}

/// A context and an ending, as ids.
struct Ending {
    std::vector<std::int32_t> context, ending;
};

/// The log-likelihood of each ending, batch of them in a pass. Every one has a context and an ending of at least one
/// token, together at most the model's longest sequence and one.
template <class Model>
std::vector<double> score_endings(Model& model, std::span<const Ending> endings, Index batch = 8);

namespace detail {

/// Sequences of unequal length side by side, each with the targets that it counts.
class ScoreBatch {
public:
    /// ids: inputs and, one further on, targets; the last counts targets count.
    void add(std::span<const std::int32_t> ids, Index counts) {
        const std::size_t inputs = ids.size() - 1, skipped = inputs - to_size(counts);
        tokens_.insert(tokens_.end(), ids.begin(), ids.end() - 1);
        targets_.insert(targets_.end(), skipped, ignored_target);
        targets_.insert(targets_.end(), ids.end() - counts, ids.end());
        offsets_.push_back(static_cast<Index>(tokens_.size()));
    }
    Index sequences() const { return static_cast<Index>(offsets_.size()) - 1; }

    /// Calls counted(sequence, log-likelihood) for each target that counts, in order, and empties the batch.
    template <class Model, class Counted>
    void score(Model& model, Counted&& counted) {
        if (sequences() == 0) return;
        const Sequences sequences(offsets_);
        model.evaluate(tokens_, targets_, sequences);
        std::vector<typename Model::A> memory;
        const auto last_pass = on_host(model.context(), model.token_losses(), memory);
        const std::vector<typename Model::A> losses(last_pass.begin(), last_pass.end());  // counted may use the model
        for (Index s = 0; s < sequences.count(); ++s)
            for (Index at = sequences.begin(s); at < sequences.end(s); ++at)
                if (targets_[to_size(at)] != ignored_target) counted(s, -static_cast<double>(losses[to_size(at)]));
        *this = {};
    }

private:
    std::vector<std::int32_t> tokens_, targets_;
    std::vector<Index> offsets_{0};
};

}  // namespace detail

template <class Model, class Counted>
TextScore score_text(Model& model, const Shard& text, const TextScoreOptions& options, Counted&& counted) {
    require(options.window >= 1 && options.window <= Model::config.max_seq_len,
            "a window has 1 to {} tokens, the model's longest sequence, got {}", Model::config.max_seq_len,
            options.window);
    require(options.stride >= 1 && options.stride <= options.window,
            "windows follow one another after 1 to {} tokens, the window's length, got {}", options.window,
            options.stride);
    require(options.batch >= 1, "a pass has at least one window, got {}", options.batch);
    const Index before = options.begin_id ? 1 : 0, all = text.tokens() + before;
    TextScore sum;
    Index position = 1 - before;
    const auto count = [&](Index, double log_likelihood) {
        counted(position++, log_likelihood);
        sum += {-log_likelihood, 1};
    };
    detail::ScoreBatch batch;
    std::vector<std::int32_t> ids;
    // the ids [first, end) of the text with begin_id before it; those from done on count
    for (Index first = 0, done = 1; done < all; first += options.stride) {
        const Index end = (std::min)(first + options.window + 1, all), from = (std::max)(first, before);
        ids.assign(to_size(end - first), options.begin_id.value_or(0));
        text.read(from - before, std::span(ids).last(to_size(end - from)));
        batch.add(ids, end - done);
        done = end;
        if (batch.sequences() == options.batch) batch.score(model, count);
    }
    batch.score(model, count);
    return sum;
}

template <class Model>
std::vector<double> score_endings(Model& model, std::span<const Ending> endings, Index batch) {
    require(batch >= 1, "a pass has at least one ending, got {}", batch);
    std::vector<double> scores(endings.size(), 0.0);
    detail::ScoreBatch pass;
    std::vector<std::int32_t> ids;
    std::size_t first = 0;  // of the pass
    const auto count = [&](Index s, double log_likelihood) { scores[first + to_size(s)] += log_likelihood; };
    for (std::size_t e = 0; e < endings.size(); ++e) {
        const Ending& each = endings[e];
        require(!each.context.empty() && !each.ending.empty(),
                "an ending is scored with a context and tokens of its own; number {} has {} and {} tokens", e,
                each.context.size(), each.ending.size());
        ids = each.context;
        ids.insert(ids.end(), each.ending.begin(), each.ending.end());
        pass.add(ids, static_cast<Index>(each.ending.size()));
        if (pass.sequences() < batch && e + 1 < endings.size()) continue;
        pass.score(model, count);
        first = e + 1;
    }
    return scores;
}

}  // namespace kimik3
