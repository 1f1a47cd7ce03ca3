#pragma once
// Cuts a text into the pieces that are merged on their own. Each step splits every piece of the step before it; the
// behaviours are those of the PyPI package `tokenizers`.

#include "kimik3/text/tokenizer_spec.hpp"

namespace kimik3 {

/// Immutable once built; threads may share it.
class PreTokenizer {
public:
    explicit PreTokenizer(const std::vector<PreTokenizerStep>& steps) {
        require(steps.size() <= 32, "a pre-tokenizer has at most 32 steps, this one has {}", steps.size());
        for (const PreTokenizerStep& step : steps) std::visit([&](const auto& s) { add(s); }, step);
    }

    /// Calls take(piece) for every piece of well-formed UTF-8 that is not empty, in order.
    template <class Take>
    void split(std::string_view text, Matcher& matcher, Take&& take) const {
        split_from(0, text, matcher, take);
    }

private:
    struct Step {
        std::optional<Regex> regex;  // none: the step prefixes a space
        SplitBehaviour behaviour = SplitBehaviour::isolated;
        bool invert = false;
    };

    void add(const SplitStep& s) {
        require(!s.pattern.empty(), "a Split pattern must not be empty");
        steps_.push_back({Regex(s.literal ? quote_regex(s.pattern) : s.pattern), s.behaviour, s.invert});
    }
    void add(const DigitsStep& s) {
        steps_.push_back(
            {Regex("\\p{N}"), s.individual_digits ? SplitBehaviour::isolated : SplitBehaviour::contiguous, false});
    }
    void add(const ByteLevelStep& s) {
        if (s.add_prefix_space) steps_.emplace_back();
        if (s.use_regex) steps_.push_back({Regex(gpt2_pattern), SplitBehaviour::isolated, false});
    }

    template <class Take>
    void split_from(std::size_t level, std::string_view text, Matcher& matcher, Take& take) const;

    std::vector<Step> steps_;
};

namespace detail {

/// Calls take(span, is_match) for the matches and the gaps between them, in order, from the beginning to the end. An
/// empty match counts unless it touches the match before it.
template <class Take>
void for_each_match(const Regex& regex, std::string_view text, Matcher& matcher, Take&& take) {
    const Index size = static_cast<Index>(text.size());
    Index done = 0, from = 0, last_end = -1;
    for (Span match; from <= size && matcher.find(regex, text, from, match);) {
        if (match.begin == match.end && match.end == last_end) {
            from += from < size ? utf8_unit(text, from).bytes : 1;
            continue;
        }
        if (done < match.begin) take(Span{done, match.begin}, false);
        take(match, true);
        done = from = last_end = match.end;
    }
    if (done < size) take(Span{done, size}, false);
}

/// Joins neighbouring spans as a behaviour other than isolated and removed says.
class SpanJoiner {
public:
    explicit SpanJoiner(SplitBehaviour behaviour) : behaviour_(behaviour) {}

    /// take(span) receives what can no longer grow.
    template <class Take>
    void push(Span span, bool is_match, Take&& take) {
        const bool joins = open_ && (behaviour_ == SplitBehaviour::contiguous             ? is_match == was_match_
                                     : behaviour_ == SplitBehaviour::merged_with_previous ? is_match && !was_match_
                                                                                          : !is_match && was_match_);
        if (joins) {
            pending_.end = span.end;
        } else {
            if (open_) take(pending_);
            pending_ = span;
        }
        open_ = true;
        was_match_ = is_match;
    }

    template <class Take>
    void flush(Take&& take) {
        if (open_) take(pending_);
        open_ = false;
    }

private:
    SplitBehaviour behaviour_;
    Span pending_;
    bool open_ = false, was_match_ = false;
};

}  // namespace detail

template <class Take>
void PreTokenizer::split_from(std::size_t level, std::string_view text, Matcher& matcher, Take& take) const {
    if (text.empty()) return;
    if (level == steps_.size()) return take(text);
    const Step& step = steps_[level];
    if (!step.regex) {
        if (text.front() == ' ') return split_from(level + 1, text, matcher, take);
        return split_from(level + 1, std::string(" ").append(text), matcher, take);
    }
    const auto down = [&](Span span) {
        split_from(level + 1, text.substr(to_size(span.begin), to_size(span.end - span.begin)), matcher, take);
    };
    const bool joining = step.behaviour != SplitBehaviour::isolated && step.behaviour != SplitBehaviour::removed;
    detail::SpanJoiner joiner(step.behaviour);
    detail::for_each_match(*step.regex, text, matcher, [&](Span span, bool is_match) {
        is_match = is_match != step.invert;
        if (joining) joiner.push(span, is_match, down);
        else if (!is_match || step.behaviour == SplitBehaviour::isolated) down(span);
    });
    joiner.flush(down);
}

}  // namespace kimik3
