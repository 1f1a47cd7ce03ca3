#pragma once
// Byte-pair encoding of one piece (Sennrich, Haddow, Birch 2016): among all adjacent pairs that have a merge, the one of
// lowest rank is merged, the leftmost first, until none is left. A queue over a linked list: O(n log n) for n bytes, so a
// piece of a million equal letters costs no more than a million short ones.

#include <unordered_map>

#include "kimik3/text/tokenizer_spec.hpp"

namespace kimik3::detail {

/// Lets maps with string keys be searched by views.
struct TextHash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
};

/// Two ids as one key, and its hash.
constexpr std::uint64_t pair_key(std::int32_t left, std::int32_t right) {
    return (std::uint64_t{static_cast<std::uint32_t>(left)} << 32) | static_cast<std::uint32_t>(right);
}
struct PairHash {
    std::size_t operator()(std::uint64_t key) const { return ((key ^ (key >> 29)) * 0x9E3779B97F4A7C15u) >> 7; }
};

class MergeTable {
public:
    /// Working memory, kept from piece to piece.
    struct Scratch {
        struct Symbol {
            std::int32_t id;  // -1 once merged into its left neighbour
            Index previous, next;
        };
        struct Candidate {
            std::int32_t rank;
            Index at;
            std::int32_t left, right, merged;
        };
        std::vector<Symbol> symbols;
        std::vector<Candidate> queue;
    };

    MergeTable() = default;

    /// The next merge in the order of ranks. Of a pair given twice the later rank counts, as in `tokenizers`.
    void add(Merge pair, std::int32_t merged) {
        if (!pair.tied) ++rank_;
        merges_.insert_or_assign(pair_key(pair.left, pair.right), Merged{rank_, merged});
    }

    void reserve(std::size_t merges) { merges_.reserve(merges); }
    void set_byte(unsigned char byte, std::int32_t id) { byte_id_[byte] = id; }

    /// Appends the ids of the piece. Returns the number of queue entries handled, which is what the time goes with.
    Index encode(std::string_view piece, Scratch& scratch, std::vector<std::int32_t>& ids) const;

private:
    struct Merged {
        std::int32_t rank, id;
    };

    std::unordered_map<std::uint64_t, Merged, PairHash> merges_;
    std::int32_t byte_id_[256] = {}, rank_ = 0;
};

inline Index MergeTable::encode(std::string_view piece, Scratch& scratch, std::vector<std::int32_t>& ids) const {
    using Candidate = Scratch::Candidate;
    auto& symbols = scratch.symbols;
    auto& queue = scratch.queue;
    const auto later = [](const Candidate& a, const Candidate& b) {
        return a.rank != b.rank ? a.rank > b.rank : a.at > b.at;
    };
    const auto symbol = [&](Index i) -> Scratch::Symbol& { return symbols[to_size(i)]; };
    const auto offer = [&](Index at) {
        const Index next = symbol(at).next;
        if (next < 0) return false;
        const auto found = merges_.find(pair_key(symbol(at).id, symbol(next).id));
        if (found == merges_.end()) return false;
        queue.push_back({found->second.rank, at, symbol(at).id, symbol(next).id, found->second.id});
        return true;
    };

    const Index size = static_cast<Index>(piece.size());
    symbols.clear();
    queue.clear();
    for (Index i = 0; i < size; ++i)
        symbols.push_back({byte_id_[static_cast<unsigned char>(piece[to_size(i)])], i - 1, i + 1 < size ? i + 1 : -1});
    for (Index i = 0; i < size; ++i) offer(i);
    std::make_heap(queue.begin(), queue.end(), later);

    Index handled = 0;
    for (; !queue.empty(); ++handled) {
        std::pop_heap(queue.begin(), queue.end(), later);
        const Candidate best = queue.back();
        queue.pop_back();
        Scratch::Symbol& left = symbol(best.at);
        if (left.id != best.left || left.next < 0 || symbol(left.next).id != best.right) continue;
        Scratch::Symbol& right = symbol(left.next);
        left.id = best.merged;
        left.next = right.next;
        right.id = -1;
        if (left.next >= 0) symbol(left.next).previous = best.at;
        if (offer(best.at)) std::push_heap(queue.begin(), queue.end(), later);
        if (left.previous >= 0 && offer(left.previous)) std::push_heap(queue.begin(), queue.end(), later);
    }
    for (Index i = 0; i >= 0 && i < size; i = symbol(i).next) ids.push_back(symbol(i).id);
    return handled;
}

}  // namespace kimik3::detail
