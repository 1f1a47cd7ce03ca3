#pragma once
// Latent attention on the CPU. A task is a few new tokens of one sequence, all heads together, since these read the
// same cache rows. Where the new tokens are too few to keep the threads busy, the keys are split at fixed places as
// well, and the parts are put together in order; so decoding reads the cache once, on all threads.

#include "kimik3/backend/cpu.hpp"
#include "kimik3/ops/cpu/attention_tiles.hpp"
#include "kimik3/ops/cpu/matmul.hpp"
#include "kimik3/ops/latent_attention.hpp"

namespace kimik3 {
namespace detail {

/// How the work on one sequence is cut: new tokens in blocks, and for a single block the keys in parts.
struct LatentCut {
    static constexpr Index block_rows = 64, part_keys = 4 * tile_keys;
    Index block_tokens, blocks, parts;

    LatentCut(const Sequences& seq, Index s, Index heads)
        : block_tokens((std::max)(Index{1}, block_rows / heads)), blocks(ceil_div(seq.length(s), block_tokens)),
          parts(blocks == 1 ? ceil_div(seq.past(s) + seq.length(s), part_keys) : 1) {}

    Index tasks() const { return blocks * parts; }
};

/// Queries of a few tokens, row t * H + h, against the keys [first_key, last_key) of one slot.
template <class T>
struct LatentTask {
    MatrixView<const T> keys;  // [max_len, c + r]
    Index heads, latent;       // H, c
    Index tokens, position;    // new tokens, and the number of the first of them
    Index first_key, last_key;
    Index first_row;    // of the activations
    Index parts, part;  // into how many the keys are split, and which one this is

    Index rows() const { return tokens * heads; }
    Index seen(Index row, Index tile) const {
        return std::clamp(position + row / heads + 1 - tile, Index{0}, (std::min)(tile_keys, last_key - tile));
    }

    /// queries [rows, c + r] scaled; adds to o [rows, c] and softmax [rows]. s and packed are scratch.
    void run(const T* queries, T* o, RunningSoftmax<T>* softmax, T* s, T* packed) const {
        const Index width = keys.cols, count = rows();
        for (Index tile = first_key; tile < last_key; tile += tile_keys) {
            const Index size = (std::min)(tile_keys, last_key - tile);
            const auto seen_here = [&](Index row) { return seen(row, tile); };
            if (count < few_rows) {
                dot_rows<T>({queries, count, width}, keys.middle_rows(tile, size), {s, count, size, tile_keys}, Add::no,
                            0, size);
            } else {
                pack_keys(keys.row(tile), keys.stride, size, width, T(1), packed);
                score_tile(count, width, Factor<T>{queries, width, 1}, packed, s, seen_here);
            }
            for (Index i = 0; i < count; ++i)
                if (seen_here(i) > 0) softmax[i].take(s + i * tile_keys, seen_here(i), o + i * latent, latent);
            add_weighted_rows(count, latent, s, keys.row(tile), keys.stride, o, latent, seen_here);
        }
    }
};

/// Where the tasks of a call leave their shares: o [rows, c] and softmax [rows] each, not yet divided by the total.
template <class T>
struct LatentShares {
    const Sequences& seq;
    const MlaHeads& heads;
    Index latent, most_rows = 0;
    Index* first_task = nullptr;  // [sequences + 1]
    T *shares = nullptr, *scratch = nullptr;

    LatentShares(const Context<Cpu>& ctx, const Sequences& sequences, const MlaHeads& sizes, Index latent_width)
        : seq(sequences), heads(sizes), latent(latent_width) {
        Index tasks = 0;
        for (Index s = 0; s < seq.count(); ++s) {
            const LatentCut c = cut(s);
            tasks += c.tasks();
            most_rows = (std::max)(most_rows, (std::min)(c.block_tokens, seq.length(s)) * heads.count);
        }
        const Index table = round_up((seq.count() + 1) * static_cast<Index>(sizeof(Index)), 64);
        const Index numbers = tasks * share_size() + ctx.threads() * scratch_size();
        std::byte* memory = ctx.workspace<std::byte>(0, table + numbers * static_cast<Index>(sizeof(T)));
        first_task = static_cast<Index*>(static_cast<void*>(memory));
        shares = static_cast<T*>(static_cast<void*>(memory + table));
        scratch = shares + tasks * share_size();
        first_task[0] = 0;
        for (Index s = 0; s < seq.count(); ++s) first_task[s + 1] = first_task[s] + cut(s).tasks();
    }

    LatentCut cut(Index s) const { return {seq, s, heads.count}; }
    Index tasks() const { return first_task[seq.count()]; }
    Index width() const { return latent + heads.shared; }
    Index share_size() const { return round_up(most_rows * (latent + 2), lane_width<T>); }
    Index scratch_size() const {
        return round_up(most_rows * (width() + tile_keys) + tile_keys * width(), lane_width<T>);
    }
    Index sequence_of(Index task) const {
        return std::upper_bound(first_task, first_task + seq.count() + 1, task) - first_task - 1;
    }
    T* o(Index task) const { return shares + task * share_size(); }
    RunningSoftmax<T>* softmax(Index task) const {
        return reinterpret_cast<RunningSoftmax<T>*>(o(task) + most_rows * latent);
    }

    LatentTask<T> describe(Index task, In<T> cache) const {
        const Index s = sequence_of(task), local = task - first_task[s];
        const LatentCut c = cut(s);
        const Index token = local / c.parts * c.block_tokens,
                    tokens = (std::min)(c.block_tokens, seq.length(s) - token);
        const Index position = seq.past(s) + token, end = position + tokens, part = local % c.parts;
        return {{cache.row(seq.slot(s)), cache.cols / width(), width()}, heads.count, latent, tokens, position,
                part * LatentCut::part_keys, c.parts == 1 ? end : (std::min)(end, (part + 1) * LatentCut::part_keys),
                seq.begin(s) + token, c.parts, part};
    }
};

/// to [rows, c + r] = scale [q_lat | shared slice of q], a row a token and head.
template <class T>
void pack_latent_queries(const MlaHeads& heads, Index latent, MatrixView<const T> q_lat, MatrixView<const T> q, T* to) {
    const T scale = static_cast<T>(heads.scale());
    for (Index n = 0; n < q.rows; ++n) {
        for (Index h = 0; h < heads.count; ++h, to += latent + heads.shared) {
            const T *first = q_lat.row(n) + h * latent, *second = q.row(n) + h * heads.key() + heads.nope;
            for_lanes<T>(latent, [&](auto at) { at.store(to, Lane<T>(at.load(first) * scale)); });
            for_lanes<T>(heads.shared, [&](auto at) { at.store(to + latent, Lane<T>(at.load(second) * scale)); });
        }
    }
}

/// Row of o_lat (MLA-10): the parts of its keys, which are the tasks [task, task + parts), on one footing.
template <class T>
void join_parts(const LatentShares<T>& shares, Index task, Index parts, Index row, T* to) {
    T largest = -std::numeric_limits<T>::infinity(), total = 0;
    for (Index p = task; p < task + parts; ++p) largest = (std::max)(largest, shares.softmax(p)[row].largest);
    for_lanes<T>(shares.latent, [&](auto at) { at.store(to, lane(T(0))); });
    for (Index p = task; p < task + parts; ++p) {
        const RunningSoftmax<T>& part = shares.softmax(p)[row];
        const T weight = std::exp(part.largest - largest), *from = shares.o(p) + row * shares.latent;
        total += weight * part.total;
        for_lanes<T>(shares.latent, [&](auto at) { at.store(to, Lane<T>(at.load(to) + at.load(from) * weight)); });
    }
    for_lanes<T>(shares.latent, [&](auto at) { at.store(to, Lane<T>(at.load(to) / total)); });
}

}  // namespace detail

template <class T>
void latent_append(const Context<Cpu>& ctx, const Sequences& seq, In<T> latent, In<T> shared, Out<T> cache) {
    const Index width = latent.cols + shared.cols;
    require(seq.tokens() <= latent.rows, "the sequences have {} tokens, the matrices only {} rows", seq.tokens(),
            latent.rows);
    require_shape("latent_append: shared", shared, latent.rows, shared.cols);
    check_room(seq, cache.rows, cache.cols / width);
    ctx.parallel(seq.count(), 1, [&](Index first, Index last) {
        for (Index s = first; s < last; ++s) {
            T* to = cache.row(seq.slot(s)) + seq.past(s) * width;
            for (Index n = seq.begin(s); n < seq.end(s); ++n, to += width)
                std::copy_n(shared.row(n), shared.cols, std::copy_n(latent.row(n), latent.cols, to));
        }
    });
}

template <class T>
void latent_attention(const Context<Cpu>& ctx, const Sequences& seq, const MlaHeads& heads, In<T> q_lat, In<T> q,
                      In<T> cache, Out<T> o_lat) {
    using namespace detail;
    const Index latent = o_lat.cols / heads.count;
    require(seq.tokens() <= o_lat.rows, "the sequences have {} tokens, the matrices only {} rows", seq.tokens(),
            o_lat.rows);
    require_shape("latent_attention: q_lat", q_lat, o_lat.rows, heads.count * latent);
    require_shape("latent_attention: q", q, o_lat.rows, heads.count * heads.key());
    check_room(seq, cache.rows, cache.cols / (latent + heads.shared));
    const LatentShares<T> shares(ctx, seq, heads, latent);
    ctx.parallel_tasks(shares.tasks(), [&](Index task, int thread) {
        const LatentTask<T> work = shares.describe(task, cache);
        const Index first = work.first_row, rows = work.rows();
        T* queries = shares.scratch + thread * shares.scratch_size();
        T *s = queries + rows * shares.width(), *packed = s + rows * tile_keys, *o = shares.o(task);
        pack_latent_queries<T>(heads, latent, q_lat.middle_rows(first, work.tokens), q.middle_rows(first, work.tokens),
                               queries);
        std::fill_n(o, rows * latent, T(0));
        std::fill_n(shares.softmax(task), rows, RunningSoftmax<T>{});
        work.run(queries, o, shares.softmax(task), s, packed);
    });
    ctx.parallel_tasks(shares.tasks(), [&](Index task, int) {
        const LatentTask<T> work = shares.describe(task, cache);
        if (work.part != 0) return;
        for (Index row = 0; row < work.rows(); ++row)
            join_parts(shares, task, work.parts, row,
                       o_lat.row(work.first_row + row / heads.count) + row % heads.count * latent);
    });
    for (Index n = seq.tokens(); n < o_lat.rows; ++n) std::fill_n(o_lat.row(n), o_lat.cols, T(0));
}

}  // namespace kimik3
