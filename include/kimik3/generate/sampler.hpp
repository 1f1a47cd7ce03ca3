#pragma once
// Draws a token from a row of logits, in this order:
//   repetition penalty  logits of tokens in the history: divided by the penalty where positive, else multiplied by it
//   temperature         logits / temperature; 0 is greedy: the highest logit, of equal ones the lowest id
//   top-k               the k highest logits stay, of equal ones those of the lowest ids
//   top-p               of these, the shortest list of most probable tokens whose probabilities sum to top_p or more
//   min-p               of these, tokens of at least min_p times the highest probability
// and one draw from what stays, renormalised. Sums are kept in double. Logits are rounded: what is short of top_p or
// min_p by a millionth of it is enough. The random numbers are counter-based: seed, stream and position are the
// sampler's whole state. Greedy choices draw none.

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

#include "kimik3/core/error.hpp"
#include "kimik3/core/rng.hpp"
#include "kimik3/ops/sample.hpp"

namespace kimik3 {

struct SamplingOptions {
    double temperature = 1.0;
    Index top_k = 0;                  // 0: all
    double top_p = 1.0;               // 1: all
    double min_p = 0.0;               // 0: all
    double repetition_penalty = 1.0;  // 1: none
    std::uint64_t seed = 0;

    void check() const {
        require(temperature >= 0.0 && std::isfinite(temperature),
                "temperature is finite and 0 (greedy) or more, got {}", temperature);
        require(top_k >= 0, "top_k is 0 (all tokens) or more, got {}", top_k);
        require(top_p > 0.0 && top_p <= 1.0, "top_p lies in (0, 1], got {}", top_p);
        require(min_p >= 0.0 && min_p <= 1.0, "min_p lies in [0, 1], got {}", min_p);
        require(repetition_penalty > 0.0 && std::isfinite(repetition_penalty),
                "repetition_penalty is positive and finite, got {}", repetition_penalty);
    }
};

class Sampler {
public:
    /// Samplers of one seed and different streams draw independently: one stream a sequence.
    explicit Sampler(const SamplingOptions& options, std::uint64_t stream = 0, std::uint64_t position = 0)
        : options_(options), rng_(options.seed, stream, position) {
        options.check();
    }

    const SamplingOptions& options() const { return options_; }
    /// Random numbers drawn so far; a sampler made with it goes on where this one stands.
    std::uint64_t position() const { return rng_.position(); }

    /// The same draw for a backend that makes it where the logits are: takes the random number that sample would.
    SampleRow row(Index row, Index vocabulary) {
        return {row,
                vocabulary,
                options_.temperature,
                options_.top_k,
                share(),
                least(),
                options_.repetition_penalty,
                options_.temperature == 0.0 ? 0.0 : rng_.uniform()};
    }

    /// The next token. Logits may be -infinity, which is never drawn. NaN, +infinity and a row without a finite logit
    /// are errors, and so is, where there is a penalty, an id in the history that has no logit.
    template <class A>
    std::int32_t sample(std::span<const A> logits, std::span<const std::int32_t> history) {
        weights_.assign(logits.begin(), logits.end());
        for (std::size_t id = 0; id < weights_.size(); ++id) {
            require(weights_[id] < std::numeric_limits<double>::infinity(), "the logit of token {} of {} is {}", id,
                    weights_.size(), weights_[id]);
        }
        if (options_.repetition_penalty != 1.0) penalise(history);
        const auto highest = std::max_element(weights_.begin(), weights_.end());
        const bool any = highest != weights_.end() && std::isfinite(*highest);
        require(any, "no token can be drawn: none of the {} logits is finite", weights_.size());
        if (options_.temperature == 0.0) return static_cast<std::int32_t>(highest - weights_.begin());
        const double top = *highest;
        for (double& value : weights_) value = std::exp((value - top) / options_.temperature);
        if (options_.top_k > 0 || options_.top_p < 1.0) keep_most_probable();
        for (double& weight : weights_) weight = weight < least() ? 0.0 : weight;  // the highest is 1
        return draw();
    }

private:
    static constexpr double nearly = 1.0 - 1e-6;  // what is enough of a limit
    double share() const { return options_.top_p < 1.0 ? options_.top_p * nearly : 1.0; }
    double least() const { return options_.min_p * nearly; }

    void penalise(std::span<const std::int32_t> history) {
        seen_.assign(weights_.size(), 0);
        for (const std::int32_t id : history) {
            require(id >= 0 && static_cast<std::size_t>(id) < weights_.size(),
                    "a token of the history is an id of 0 or more and below {}, got {}", weights_.size(), id);
            const std::size_t at = static_cast<std::size_t>(id);
            if (seen_[at] != 0) continue;
            seen_[at] = 1;
            double& logit = weights_[at];
            logit = logit > 0.0 ? logit / options_.repetition_penalty : logit * options_.repetition_penalty;
        }
    }

    /// Top-k, then top-p: weights that do not stay become 0. Only as many are sorted as stay.
    void keep_most_probable() {
        order_.resize(weights_.size());
        std::iota(order_.begin(), order_.end(), 0);
        const auto before = [this](std::size_t a, std::size_t b) {
            return weights_[a] > weights_[b] || (weights_[a] == weights_[b] && a < b);
        };
        const auto drop_from = [this](std::size_t kept) {
            for (std::size_t place = kept; place < order_.size(); ++place) weights_[order_[place]] = 0.0;
            order_.resize(kept);
        };
        const auto place = [this](std::size_t at) { return order_.begin() + static_cast<std::ptrdiff_t>(at); };
        if (const std::size_t k = to_size(options_.top_k); k > 0 && k < order_.size()) {
            std::nth_element(order_.begin(), place(k), order_.end(), before);
            drop_from(k);
        }
        if (options_.top_p == 1.0) return;
        double total = 0.0, sum = 0.0;
        for (const std::size_t id : order_) total += weights_[id];
        std::size_t kept = 0;
        for (std::size_t sorted = 0; kept < order_.size() && sum < share() * total; ++kept) {
            if (kept == sorted) {
                sorted = (std::min)(order_.size(), 4 * kept + 64);
                std::partial_sort(place(kept), place(sorted), order_.end(), before);
            }
            sum += weights_[order_[kept]];
        }
        drop_from(kept);
    }

    std::int32_t draw() {
        double total = 0.0, sum = 0.0;
        for (const double weight : weights_) total += weight;
        const double target = rng_.uniform() * total;
        std::size_t chosen = 0;
        for (std::size_t id = 0; id < weights_.size() && sum <= target; ++id) {
            if (weights_[id] > 0.0) chosen = id;
            sum += weights_[id];
        }
        return static_cast<std::int32_t>(chosen);
    }

    SamplingOptions options_;
    Philox rng_;
    std::vector<double> weights_;  // logits, then probabilities but for a factor
    std::vector<std::size_t> order_;
    std::vector<std::uint8_t> seen_;
};

}  // namespace kimik3
