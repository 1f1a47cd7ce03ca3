#pragma once
// Byte-pair encoding of one piece (Sennrich, Haddow, Birch 2016): among all adjacent pairs that have a merge, the one
// of lowest rank is merged, the leftmost first, until none is left. A queue over a linked list: O(n log n) for n bytes,
// so a piece of a million equal letters costs no more than a million short ones.

#include <bit>
#include <functional>

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
        std::vector<Symbol> symbols;
        std::vector<std::uint64_t> queue;  // rank << 40 | place, smallest first
    };

    static constexpr std::size_t most_merges = 1 << 24;  // ranks fit beside places in a queue entry

    /// The next merge in the order of ranks. Of a pair given twice the later rank counts, as in `tokenizers`.
    void add(Merge pair, std::int32_t merged) {
        if (!pair.tied) ++rank_;
        reserve(pairs_ + 1);
        Slot& slot = slots_[place(pair_key(pair.left, pair.right))];
        if (slot.pair == no_pair) ++pairs_;
        slot = {pair_key(pair.left, pair.right), {rank_, merged}};
    }

    /// At most half of the slots are taken.
    void reserve(std::size_t pairs) {
        if (2 * pairs < slots_.size()) return;
        const std::vector<Slot> old = std::exchange(slots_, std::vector<Slot>(std::bit_ceil(2 * pairs + 1)));
        for (const Slot& slot : old)
            if (slot.pair != no_pair) slots_[place(slot.pair)] = slot;
    }
    /// -1: the byte has no token and is left out of every piece, whose other bytes then stand side by side.
    void set_byte(unsigned char byte, std::int32_t id) { byte_id_[byte] = id; }

    /// Appends the ids of the piece. Returns the number of queue entries handled, which is what the time goes with.
    Index encode(std::string_view piece, Scratch& scratch, std::vector<std::int32_t>& ids) const;

private:
    struct Merged {
        std::int32_t rank, id;
    };
    static constexpr std::uint64_t no_pair = ~std::uint64_t{0};
    struct Slot {
        std::uint64_t pair = no_pair;
        Merged merged{};
    };

    /// The slot of the pair, or the free one where it belongs.
    std::size_t place(std::uint64_t pair) const {
        std::size_t at = PairHash{}(pair) & (slots_.size() - 1);
        while (slots_[at].pair != pair && slots_[at].pair != no_pair) at = (at + 1) & (slots_.size() - 1);
        return at;
    }

    std::vector<Slot> slots_{1};  // a power of two: one read of memory finds a pair, or that it does not merge
    std::size_t pairs_ = 0;
    std::int32_t byte_id_[256] = {}, rank_ = 0;
};

inline Index MergeTable::encode(std::string_view piece, Scratch& scratch, std::vector<std::int32_t>& ids) const {
    constexpr int place_bits = 40;
    auto& [symbols, queue] = scratch;
    const auto symbol = [&](Index i) -> Scratch::Symbol& { return scratch.symbols[to_size(i)]; };
    const auto merge_at = [&](Index i) -> const Merged* {
        if (symbol(i).id < 0 || symbol(i).next < 0) return nullptr;
        const Slot& slot = slots_[place(pair_key(symbol(i).id, symbol(symbol(i).next).id))];
        return slot.pair == no_pair ? nullptr : &slot.merged;
    };
    const auto entry = [](std::int32_t rank, Index i) {
        return (static_cast<std::uint64_t>(rank) << place_bits) | static_cast<std::uint64_t>(i);
    };
    const auto offer = [&](Index i) {
        const Merged* merge = merge_at(i);
        if (merge == nullptr) return;
        scratch.queue.push_back(entry(merge->rank, i));
        std::push_heap(scratch.queue.begin(), scratch.queue.end(), std::greater<>{});
    };

    symbols.clear();
    queue.clear();
    for (const char c : piece) {
        const std::int32_t id = byte_id_[static_cast<unsigned char>(c)];
        const Index i = static_cast<Index>(symbols.size());
        if (id >= 0) symbols.push_back({id, i - 1, i + 1});
    }
    const Index size = static_cast<Index>(symbols.size());
    if (size > 0) symbols.back().next = -1;
    for (Index i = 0; i < size; ++i)
        if (const Merged* merge = merge_at(i)) queue.push_back(entry(merge->rank, i));
    std::make_heap(queue.begin(), queue.end(), std::greater<>{});

    Index handled = 0;
    for (; !queue.empty(); ++handled) {
        std::pop_heap(queue.begin(), queue.end(), std::greater<>{});
        const std::uint64_t best = queue.back();
        queue.pop_back();
        const Index at = static_cast<Index>(best & ((std::uint64_t{1} << place_bits) - 1));
        const Merged* merge = merge_at(at);
        if (merge == nullptr || entry(merge->rank, at) != best) continue;  // what was queued is merged or gone
        Scratch::Symbol& left = symbol(at);
        Scratch::Symbol& right = symbol(left.next);
        left.id = merge->id;
        left.next = right.next;
        right.id = -1;
        if (left.next >= 0) symbol(left.next).previous = at;
        offer(at);
        if (left.previous >= 0) offer(left.previous);
    }
    for (Index i = 0; i >= 0 && i < size; i = symbol(i).next) ids.push_back(symbol(i).id);
    return handled;
}

}  // namespace kimik3::detail
