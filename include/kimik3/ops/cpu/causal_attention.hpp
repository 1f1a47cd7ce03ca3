#pragma once
// Causal attention on the CPU: a task is one head of one sequence. It walks over tiles of keys, and for each over the
// tiles of queries that see it, so that a tile of keys is transposed once; sums grow in the outputs. Only the
// gradient of the shared key slice crosses heads: heads leave their shares side by side, and these are added in the
// order of the heads.

#include "kimik3/backend/cpu.hpp"
#include "kimik3/ops/causal_attention.hpp"
#include "kimik3/ops/cpu/attention_tiles.hpp"

namespace kimik3 {
namespace detail {

inline constexpr Index tile_queries = 64;

struct HeadTile {
    Index first_key, keys, first_query, queries;

    /// Keys of the tile that query row i of the tile sees.
    Index seen(Index i) const { return std::clamp(first_query + i - first_key + 1, Index{0}, keys); }
};

/// body(tile) for every pair of a tile of keys and a tile of queries that sees some of it; begin(first_key, keys) and
/// end(first_key, keys) around the queries of one tile of keys.
template <class Begin, class Body, class End>
void for_head_tiles(Index tokens, Begin&& begin, Body&& body, End&& end) {
    for (Index j = 0; j < tokens; j += tile_keys) {
        const Index keys = (std::min)(tile_keys, tokens - j);
        begin(j, keys);
        for (Index i = j; i < tokens; i += tile_queries)
            body(HeadTile{j, keys, i, (std::min)(tile_queries, tokens - i)});
        end(j, keys);
    }
}

/// The rows of one sequence, the columns of one head.
template <class T>
struct HeadViews {
    MatrixView<const T> q, k, v, k_shared;  // [tokens, n + r], [tokens, n], [tokens, v], [tokens, r]

    HeadViews(const MlaHeads& heads, Index first, Index tokens, Index h, In<T> all_q, In<T> all_kv, In<T> all_shared)
        : q(all_q.middle_rows(first, tokens).middle_cols(h * heads.key(), heads.key())),
          k(all_kv.middle_rows(first, tokens).middle_cols(h * (heads.nope + heads.value), heads.nope)),
          v(all_kv.middle_rows(first, tokens).middle_cols(h * (heads.nope + heads.value) + heads.nope, heads.value)),
          k_shared(all_shared.middle_rows(first, tokens)) {}

    /// to [n + r, tile_keys] = scale [k | k_shared]^T of the tile.
    void pack_scaled_keys(Index first, Index keys, double scale, T* to) const {
        pack_keys(k.row(first), k.stride, keys, k.cols, static_cast<T>(scale), to);
        pack_keys(k_shared.row(first), k_shared.stride, keys, k_shared.cols, static_cast<T>(scale),
                  to + k.cols * tile_keys);
    }
};

inline Index forward_scratch(const MlaHeads& heads, Index longest) {
    return tile_keys * (heads.key() + tile_queries) + 2 * longest;
}

/// o [tokens, v], lse [tokens, 1]. (MLA-3)
template <class T>
void local_attention_forward(const MlaHeads& heads, const HeadViews<T>& in, MatrixView<T> o, MatrixView<T> lse,
                             T* scratch) {
    T *packed = scratch, *s = packed + heads.key() * tile_keys;
    auto* softmax = reinterpret_cast<RunningSoftmax<T>*>(s + tile_queries * tile_keys);
    for (Index i = 0; i < o.rows; ++i) {
        softmax[i] = {};
        std::fill_n(o.row(i), o.cols, T(0));
    }
    for_head_tiles(
        o.rows, [&](Index first, Index keys) { in.pack_scaled_keys(first, keys, heads.scale(), packed); },
        [&](const HeadTile& tile) {
            const auto seen = [&](Index i) { return tile.seen(i); };
            const Index first = tile.first_query;
            score_tile(tile.queries, heads.key(), Factor<T>{in.q.row(first), in.q.stride, 1}, packed, s, seen);
            for (Index i = 0; i < tile.queries; ++i)
                softmax[first + i].take(s + i * tile_keys, seen(i), o.row(first + i), o.cols);
            add_weighted_rows(tile.queries, o.cols, s, in.v.row(tile.first_key), in.v.stride, o.row(first), o.stride,
                              seen);
        },
        [](Index, Index) {});
    for (Index i = 0; i < o.rows; ++i) {
        const T share = T(1) / softmax[i].total;
        for_lanes<T>(o.cols, [&](auto at) { at.store(o.row(i), Lane<T>(at.load(o.row(i)) * share)); });
        lse(i, 0) = softmax[i].largest + std::log(softmax[i].total);
    }
}

/// The arrays of one head's backward, in this order.
template <class T>
struct BackwardScratch {
    T *keys_t, *values_t;  // [n + r, tile_keys] scaled, [v, tile_keys]
    T *k, *dk;             // [tile_keys, n + r]
    T *p, *ds;             // [tile_queries, tile_keys]
    T* q;                  // [tokens, n + r]: dq may overwrite the original
    T* delta;              // [tokens] do . o

    static Index size(const MlaHeads& heads, Index longest) {
        return tile_keys * (3 * heads.key() + heads.value + 2 * tile_queries) + longest * (heads.key() + 1);
    }
    BackwardScratch(const MlaHeads& heads, Index longest, T* at)
        : keys_t(at), values_t(keys_t + tile_keys * heads.key()), k(values_t + tile_keys * heads.value),
          dk(k + tile_keys * heads.key()), p(dk + tile_keys * heads.key()), ds(p + tile_queries * tile_keys),
          q(ds + tile_queries * tile_keys), delta(q + longest * heads.key()) {}
};

/// c [keys, cols] += w[queries, keys]^T b [queries, cols], without the queries that do not see a key.
template <class T>
void add_seen_columns(const HeadTile& tile, const T* w, MatrixView<const T> b, T* c, Index c_stride) {
    for (Index j = 0; j < tile.keys; j += tile_rows) {
        const Index group = (std::min)(tile_rows, tile.keys - j),
                    skip = (std::max)(Index{0}, tile.first_key + j - tile.first_query);
        if (skip >= tile.queries) break;
        few_rows_product(group, tile.queries - skip, b.cols, Factor<T>{w + j + skip * tile_keys, 1, tile_keys},
                         b.row(tile.first_query + skip), b.stride, c + j * c_stride, c_stride, Add::yes);
    }
}

/// p = exp(s - lse) and ds = scale p (dp - delta), in place of s and dp; unseen elements up to whole lanes and whole
/// groups of tile_rows become zero.
template <class T>
void weights_and_slopes(Index seen, T lse, T delta, T scale, T* p, T* ds) {
    const Index padded = round_up(seen, (std::max)(lane_width<T>, tile_rows));
    for_lanes<T>(padded, [&](auto at) {
        // (MLA-7)
        const Lane<T> weight = exp(at.load(p) - lse);
        at.store(p, weight);
        at.store(ds, Lane<T>(weight * (at.load(ds) - delta) * scale));
    });
    std::fill(p + seen, p + padded, T(0));
    std::fill(ds + seen, ds + padded, T(0));
}

/// dq [tokens, n + r], dk [tokens, n], dv [tokens, v] and this head's share of dk_shared [tokens, r].
template <class T>
void local_attention_backward(const MlaHeads& heads, const HeadViews<T>& in, MatrixView<const T> d_o,
                              MatrixView<const T> o, MatrixView<const T> lse, MatrixView<T> dq, MatrixView<T> dk,
                              MatrixView<T> dv, MatrixView<T> dk_shared, BackwardScratch<T> at) {
    const Index width = heads.key(), tokens = o.rows;
    for (Index i = 0; i < tokens; ++i) {
        at.delta[i] = dot(d_o.row(i), o.row(i), o.cols);
        std::copy_n(in.q.row(i), width, at.q + i * width);
        std::fill_n(dq.row(i), width, T(0));
    }
    const MatrixView<const T> q(at.q, tokens, width);
    for_head_tiles(
        tokens,
        [&](Index first, Index keys) {
            in.pack_scaled_keys(first, keys, heads.scale(), at.keys_t);
            pack_keys(in.v.row(first), in.v.stride, keys, in.v.cols, T(1), at.values_t);
            for (Index j = 0; j < keys; ++j) {
                std::copy_n(in.k.row(first + j), heads.nope, at.k + j * width);
                std::copy_n(in.k_shared.row(first + j), heads.shared, at.k + j * width + heads.nope);
                std::fill_n(dv.row(first + j), dv.cols, T(0));
            }
            std::fill_n(at.dk, tile_keys * width, T(0));
        },
        [&](const HeadTile& tile) {
            const auto seen = [&](Index i) { return tile.seen(i); };
            const Index first = tile.first_query;
            score_tile(tile.queries, width, Factor<T>{q.row(first), width, 1}, at.keys_t, at.p, seen);
            score_tile(tile.queries, dv.cols, Factor<T>{d_o.row(first), d_o.stride, 1}, at.values_t, at.ds, seen);
            for (Index i = 0; i < tile.queries; ++i) {
                weights_and_slopes(seen(i), lse(first + i, 0), at.delta[first + i], static_cast<T>(heads.scale()),
                                   at.p + i * tile_keys, at.ds + i * tile_keys);
            }
            add_seen_columns(tile, at.p, d_o, dv.row(tile.first_key), dv.stride);
            add_seen_columns(tile, at.ds, q, at.dk, width);
            add_weighted_rows(tile.queries, width, at.ds, at.k, width, dq.row(first), dq.stride, seen);
        },
        [&](Index first, Index keys) {
            for (Index j = 0; j < keys; ++j) {
                std::copy_n(at.dk + j * width, heads.nope, dk.row(first + j));
                std::copy_n(at.dk + j * width + heads.nope, heads.shared, dk_shared.row(first + j));
            }
        });
}

template <class T>
void clear_rows(MatrixView<T> m, Index first) {
    for (Index n = first; n < m.rows; ++n) std::fill_n(m.row(n), m.cols, T(0));
}

}  // namespace detail

template <class T>
void causal_attention_forward(const Context<Cpu>& ctx, const Sequences& seq, const MlaHeads& heads, In<T> q, In<T> kv,
                              In<T> k_shared, Out<T> o, Out<accumulator_t<T>> lse) {
    detail::check_attention<T>(seq, heads, q, kv, k_shared, o, lse);
    ctx.parallel_tasks(seq.count() * heads.count, [&](Index task, int thread) {
        const Index s = task / heads.count, h = task % heads.count, first = seq.begin(s), tokens = seq.length(s);
        if (tokens == 0) return;
        const detail::HeadViews<T> in(heads, first, tokens, h, q, kv, k_shared);
        detail::local_attention_forward<T>(heads, in,
                                           o.middle_rows(first, tokens).middle_cols(h * heads.value, heads.value),
                                           lse.middle_rows(first, tokens).middle_cols(h, 1),
                                           ctx.workspace<T>(thread, detail::forward_scratch(heads, seq.longest())));
    });
    detail::clear_rows(o, seq.tokens());
    detail::clear_rows(lse, seq.tokens());
}

template <class T>
void causal_attention_backward(const Context<Cpu>& ctx, const Sequences& seq, const MlaHeads& heads, In<T> d_o, In<T> q,
                               In<T> kv, In<T> k_shared, In<T> o, In<accumulator_t<T>> lse, Out<T> dq, Out<T> dkv,
                               Out<T> dk_shared) {
    using detail::Lane;
    detail::check_attention<T>(seq, heads, q, kv, k_shared, o, lse);
    detail::check_attention<T>(seq, heads, dq, dkv, dk_shared, d_o, lse);
    const Index rows = seq.tokens(), shared = round_up(rows * heads.shared, detail::lane_width<T>);
    const Index private_size = round_up(detail::BackwardScratch<T>::size(heads, seq.longest()), detail::lane_width<T>);
    T* shares = ctx.workspace<T>(0, ctx.threads() * private_size + heads.count * shared);
    T* scratch = shares + heads.count * shared;
    ctx.parallel_tasks(seq.count() * heads.count, [&](Index task, int thread) {
        const Index s = task / heads.count, h = task % heads.count, first = seq.begin(s), tokens = seq.length(s);
        const auto columns = [&](auto m, Index begin, Index count) {
            return m.middle_rows(first, tokens).middle_cols(begin, count);
        };
        const Index v = heads.value, kv_begin = h * (heads.nope + v);
        const MatrixView<T> share(shares + h * shared, rows, heads.shared);
        detail::local_attention_backward<T>(
            heads, detail::HeadViews<T>(heads, first, tokens, h, q, kv, k_shared), columns(d_o, h * v, v),
            columns(o, h * v, v), columns(lse, h, 1), columns(dq, h * heads.key(), heads.key()),
            columns(dkv, kv_begin, heads.nope), columns(dkv, kv_begin + heads.nope, v),
            share.middle_rows(first, tokens),
            detail::BackwardScratch<T>(heads, seq.longest(), scratch + thread * private_size));
    });
    ctx.parallel(rows, 64, [&](Index first, Index last) {
        for (Index n = first; n < last; ++n) {
            detail::for_lanes<T>(heads.shared, [&](auto at) {
                Lane<T> sum = detail::lane(T(0));
                // (MLA-8)
                for (Index h = 0; h < heads.count; ++h) sum += at.load(shares + h * shared + n * heads.shared);
                at.store(dk_shared.row(n), sum);
            });
        }
    });
    for (MatrixView<T> m : {dq, dkv, dk_shared}) detail::clear_rows(m, rows);
}

}  // namespace kimik3
