#pragma once
// Trains a byte-level BPE vocabulary: again and again the most frequent pair of neighbouring tokens becomes a token
// (Sennrich, Haddow, Birch 2016). Ids: 0..255 the bytes, then the merges in their order, last <|endoftext|>. Of pairs
// with equal counts the one with the smaller left id, then the smaller right id, is merged. Counts are 64-bit. The
// pieces counted are those of the pre-tokenizer, so the end of every pushed text is the end of a piece: push whole
// documents or lines.

#include <functional>
#include <queue>

#include "kimik3/text/tokenizer.hpp"

namespace kimik3 {

struct BpeTrainerOptions {
    Index vocab_size = 4096;     // the 256 bytes and <|endoftext|> included; less when no pair is left
    Index min_pair_count = 2;    // pairs seen less often are not merged
    std::vector<PreTokenizerStep> pre_tokenizer = {ByteLevelStep{}};
    std::function<void(Index done, Index of)> progress = {};  // called after every merge
};

class BpeTrainer {
public:
    explicit BpeTrainer(BpeTrainerOptions options = {});

    /// Counts the pieces of a text, `weight` times. Any bytes will do.
    void push(std::string_view text, Index weight = 1);

    Tokenizer train() const;

private:
    BpeTrainerOptions options_;
    PreTokenizer pre_tokenizer_;
    Matcher matcher_;
    std::unordered_map<std::string, Index, detail::TextHash, std::equal_to<>> pieces_;
    Index pushed_ = 0;  // bytes times weight: no pair count can be larger
};

namespace detail {

/// The pieces as one linked list of tokens, with the count and the places of every pair kept up to date.
class PairCounts {
public:
    struct Pair {
        Index count = 0;
        std::int32_t left = 0, right = 0;

        /// Comes later in the order of merging.
        bool operator<(const Pair& other) const {
            if (count != other.count) return count < other.count;
            return std::pair(left, right) > std::pair(other.left, other.right);
        }
    };

    void add_piece(std::string_view piece, Index weight) {
        const Index begin = static_cast<Index>(symbols_.size()), end = begin + static_cast<Index>(piece.size());
        for (Index i = begin; i < end; ++i)
            symbols_.push_back({static_cast<unsigned char>(piece[to_size(i - begin)]), i > begin ? i - 1 : -1,
                                i + 1 < end ? i + 1 : -1, weight});
        for (Index i = begin; i + 1 < end; ++i) gain(i);
    }

    /// The next pair to merge; count 0 when there is none.
    Pair pop_best() {
        queue_changed();
        while (!queue_.empty()) {
            Pair best = queue_.top();
            queue_.pop();
            const Index count = places_.at(pair_key(best.left, best.right)).count;
            if (count == best.count) return best;
            // Gains were queued when they happened; a loss is noticed here.
            if (count > 0 && count < best.count) queue_.push({count, best.left, best.right});
        }
        return {};
    }

    void merge(const Pair& pair, std::int32_t merged) {
        std::vector<Index> at = std::move(places_.at(pair_key(pair.left, pair.right)).at);
        places_.at(pair_key(pair.left, pair.right)).at.clear();
        std::sort(at.begin(), at.end());
        for (const Index i : at) {
            Symbol& left = symbol(i);
            if (left.id != pair.left || left.next < 0 || symbol(left.next).id != pair.right) continue;
            Symbol& right = symbol(left.next);
            if (left.previous >= 0) lose(left.previous);
            lose(i);
            if (right.next >= 0) lose(left.next);
            left.id = merged;
            right.id = -1;
            left.next = right.next;
            if (left.next >= 0) symbol(left.next).previous = i;
            if (left.previous >= 0) gain(left.previous);
            if (left.next >= 0) gain(i);
        }
    }

private:
    struct Symbol {
        std::int32_t id;  // -1 once merged into its left neighbour
        Index previous, next, weight;
    };
    struct Places {
        Index count = 0;
        std::vector<Index> at;  // where the pair is or once was
    };

    Symbol& symbol(Index i) { return symbols_[to_size(i)]; }
    std::uint64_t key_at(Index i) { return pair_key(symbol(i).id, symbol(symbol(i).next).id); }

    void gain(Index i) {
        const std::uint64_t key = key_at(i);
        Places& places = places_[key];
        places.count += symbol(i).weight;
        places.at.push_back(i);
        changed_.push_back(key);
    }
    void lose(Index i) { places_.at(key_at(i)).count -= symbol(i).weight; }

    void queue_changed() {
        std::sort(changed_.begin(), changed_.end());
        changed_.erase(std::unique(changed_.begin(), changed_.end()), changed_.end());
        for (const std::uint64_t key : changed_)
            queue_.push({places_.at(key).count, static_cast<std::int32_t>(key >> 32),
                         static_cast<std::int32_t>(key & 0xffffffffu)});
        changed_.clear();
    }

    std::vector<Symbol> symbols_;
    std::unordered_map<std::uint64_t, Places, PairHash> places_;
    std::vector<std::uint64_t> changed_;  // pairs whose count grew since they were last queued
    std::priority_queue<Pair> queue_;
};

}  // namespace detail

inline BpeTrainer::BpeTrainer(BpeTrainerOptions options)
    : options_(std::move(options)), pre_tokenizer_(options_.pre_tokenizer) {
    require(options_.vocab_size >= 257 && options_.vocab_size <= token_id_limit,
            "a trained vocabulary has 257 to {} entries (the bytes and <|endoftext|> at least), {} were asked for",
            token_id_limit, options_.vocab_size);
    require(options_.min_pair_count >= 1, "min_pair_count must be at least 1, got {}", options_.min_pair_count);
}

inline void BpeTrainer::push(std::string_view text, Index weight) {
    constexpr Index most = Index{1} << 62;
    require(weight >= 1, "a text is counted once or more, got weight {}", weight);
    require(weight <= (most - pushed_) / (std::max)(Index{1}, static_cast<Index>(text.size())),
            "at most 2^62 bytes can be counted, and this text with weight {} is beyond them", weight);
    pushed_ += weight * static_cast<Index>(text.size());
    const auto count = [&](std::string_view piece) {
        const auto found = pieces_.find(piece);
        if (found != pieces_.end()) found->second += weight;
        else pieces_.emplace(piece, weight);
    };
    detail::for_each_utf8_run(
        text, [&](std::string_view run) { pre_tokenizer_.split(run, matcher_, count); }, count);
}

inline Tokenizer BpeTrainer::train() const {
    TokenizerSpec spec = Tokenizer::bytes().spec();
    spec.pre_tokenizer = options_.pre_tokenizer;
    detail::PairCounts pairs;
    for (const auto& [piece, weight] : pieces_) pairs.add_piece(piece, weight);

    std::unordered_map<std::string, std::int32_t> ids;
    for (const VocabularyEntry& entry : spec.vocabulary) ids.emplace(entry.bytes, entry.id);
    const Index most = options_.vocab_size - 1;
    while (static_cast<Index>(spec.vocabulary.size()) < most) {
        const auto best = pairs.pop_best();
        if (best.count < options_.min_pair_count) break;
        const std::string bytes =
            spec.vocabulary[to_size(best.left)].bytes + spec.vocabulary[to_size(best.right)].bytes;
        if (bytes == end_of_text) continue;
        // Two ways to cut the same bytes are two merges into one token.
        const auto [entry, fresh] = ids.try_emplace(bytes, static_cast<std::int32_t>(spec.vocabulary.size()));
        if (fresh) spec.vocabulary.push_back({bytes, entry->second});
        spec.merges.push_back({best.left, best.right});
        pairs.merge(best, entry->second);
        if (options_.progress) options_.progress(static_cast<Index>(spec.vocabulary.size()) - 256, most - 256);
    }
    spec.added_tokens = {{std::string(end_of_text), static_cast<std::int32_t>(spec.vocabulary.size()), true}};
    spec.begin_id.reset();
    spec.end_id.reset();
    return Tokenizer(std::move(spec));
}

}  // namespace kimik3
