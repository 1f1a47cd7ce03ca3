#pragma once
// One chunk of one head of KDA on one thread (spec 2.5, 2.7), from q, k, v, log-decay, beta and the entering state to
// the outputs, the leaving state and all gradients. How the pair sums P and X and their gradients are formed is the
// caller's:
//   Pairs::prepare(w)        from w.c: w.up = e^c, w.down = e^(c_C - c), w.end = e^c_C; w.pairs = [P; X], lower
//                            triangle
//   Pairs::add_gradients(w)  from w.dpairs: adds to w.dqk (rows i of the pairs) and w.dcol (rows j)
// Everything is padded with zeros: rows to tiles of 16, channels to whole lanes. Zeros change no result
// (block_product.hpp). Letters as in docs/mechanisms/kda.md; matrices with 2 R rows hold two of R rows, one below the
// other.

#include <utility>

#include "kimik3/ops/cpu/block_product.hpp"
#include "kimik3/ops/cpu/kda_step.hpp"
#include "kimik3/tensor/arena.hpp"

namespace kimik3::detail {

inline constexpr Index kda_tile = 16;

template <class T>
struct KdaWork {
    Index rows, key, value;   // R, K, V, padded
    MatrixView<T> qk;         // [2 R, K] q K^-1/2; k
    MatrixView<T> v;          // [R, V]
    MatrixView<T> c;          // [R, K] log-decay, then its sums from the chunk's start; in backward dg at last
    VectorView<T> beta;       // [R]
    MatrixView<T> up, down;   // [R, K]
    VectorView<T> end;        // [K]
    MatrixView<T> plus;       // [2 R, K] Q+; K+
    MatrixView<T> bar;        // [R, K] k e^(c_C - c)
    MatrixView<T> pairs;      // [2 R, R] P; X
    MatrixView<T> lower;      // [R, R] L
    MatrixView<T> read;       // [2 R, V] Q+ S, then O; V - K+ S
    MatrixView<T> u;          // [R, V]
    MatrixView<T> state;      // [K, V] S, then S'
    MatrixView<T> grad;       // [2 R, V] dO; dY, then -beta dY = -dV
    MatrixView<T> u_turned;   // [V, R]
    MatrixView<T> dpairs;     // [2 R, R] dP; dX
    MatrixView<T> dplus;      // [2 R, K]
    MatrixView<T> dbar;       // [R, K]
    MatrixView<T> dqk, dcol;  // [2 R, K] dq; dk as a row of the pairs.  [R, K] dk as a column
    MatrixView<T> dstate;     // [K, V] the gradient of S', then of S
    MatrixView<T> turned;     // [V, K] S or dS', transposed
    VectorView<T> dbeta;      // [R]

    static KdaWork bind(Arena& arena, const KdaShape& shape, Index tokens, bool backward) {
        const Index r = round_up(tokens, kda_tile), key = round_up(shape.key, lane_width<T>),
                    value = round_up(shape.value, lane_width<T>);
        KdaWork w{};
        w.rows = r, w.key = key, w.value = value;
        w.qk = arena.matrix<T>(2 * r, key), w.v = arena.matrix<T>(r, value), w.c = arena.matrix<T>(r, key),
        w.beta = arena.vector<T>(r);
        w.up = arena.matrix<T>(r, key), w.down = arena.matrix<T>(r, key), w.end = arena.vector<T>(key);
        w.plus = arena.matrix<T>(2 * r, key), w.bar = arena.matrix<T>(r, key);
        w.pairs = arena.matrix<T>(2 * r, r), w.lower = arena.matrix<T>(r, r);
        w.read = arena.matrix<T>(2 * r, value), w.u = arena.matrix<T>(r, value), w.state = arena.matrix<T>(key, value);
        if (!backward) return w;
        w.grad = arena.matrix<T>(2 * r, value), w.u_turned = arena.matrix<T>(value, r),
        w.dpairs = arena.matrix<T>(2 * r, r);
        w.dplus = arena.matrix<T>(2 * r, key), w.dbar = arena.matrix<T>(r, key), w.dqk = arena.matrix<T>(2 * r, key);
        w.dcol = arena.matrix<T>(r, key), w.dstate = arena.matrix<T>(key, value),
        w.turned = arena.matrix<T>(value, key);
        w.dbeta = arena.vector<T>(r);
        return w;
    }
};

/// Memory of one thread for a work and the pairs' own scratch.
template <class T, class Pairs>
std::pair<KdaWork<T>, Pairs> kda_work(const Context<Cpu>& ctx, int thread, const KdaShape& shape, Index tokens,
                                      bool backward) {
    const auto bind = [&](Arena& arena) {
        KdaWork<T> w = KdaWork<T>::bind(arena, shape, tokens, backward);
        return std::pair(w, Pairs::bind(arena, w));
    };
    Arena size;
    bind(size);
    Arena arena(ctx.workspace<std::byte>(thread, size.used_bytes()), size.used_bytes());
    return bind(arena);
}

/// to = from in the first corner, zeros in the rest; from nullptr: zeros.
template <class T>
void pad_state(const T* from, const KdaShape& shape, MatrixView<T> to) {
    std::fill(to.data, to.data + to.size(), T(0));
    for (Index a = 0; from != nullptr && a < shape.key; ++a)
        std::copy(from + a * shape.value, from + (a + 1) * shape.value, to.row(a));
}
template <class T>
void unpad_state(MatrixView<const T> from, const KdaShape& shape, T* to) {
    for (Index a = 0; a < shape.key; ++a) std::copy(from.row(a), from.row(a) + shape.value, to + a * shape.value);
}

/// Rows of one head, copied between a token matrix and a padded one.
template <class T>
void load_rows(MatrixView<const T> from, Index row, Index count, Index col, Index width, MatrixView<T> to) {
    for (Index i = 0; i < to.rows; ++i) {
        const Index used = i < count ? width : 0;
        if (used != 0) std::copy(from.row(row + i) + col, from.row(row + i) + col + width, to.row(i));
        std::fill(to.row(i) + used, to.row(i) + to.cols, T(0));
    }
}
template <class T>
void store_rows(MatrixView<const T> from, Index count, MatrixView<T> to, Index row, Index col, Index width) {
    for (Index i = 0; i < count; ++i) std::copy(from.row(i), from.row(i) + width, to.row(row + i) + col);
}

/// c: from the log-decay of each row to its sum up to that row, or back from the last row. (KDA-12)
template <class T>
void sum_down(MatrixView<T> c) {
    for (Index i = 1; i < c.rows; ++i)
        for_lanes<T>(c.cols, [&](auto at) { at.store(c.row(i), Lane<T>(at.load(c.row(i)) + at.load(c.row(i - 1)))); });
}
template <class T>
void sum_up(MatrixView<T> c) {
    for (Index i = c.rows - 1; i-- > 0;)
        for_lanes<T>(c.cols, [&](auto at) { at.store(c.row(i), Lane<T>(at.load(c.row(i)) + at.load(c.row(i + 1)))); });
}

/// Rows [first, first + 16) of u := (I + L)^-1 u within the tile, or its transpose.
template <class T>
void solve_tile(MatrixView<const T> lower, Index first, MatrixView<T> u) {
    for (Index i = first + 1; i < first + kda_tile; ++i) {
        for_lanes<T>(u.cols, [&](auto at) {
            Lane<T> value = at.load(u.row(i));
            for (Index j = first; j < i; ++j) value -= lower(i, j) * at.load(u.row(j));
            at.store(u.row(i), value);
        });
    }
}
template <class T>
void solve_tile_transposed(MatrixView<const T> lower, Index first, MatrixView<T> u) {
    for (Index i = first + kda_tile - 1; i-- > first;) {
        for_lanes<T>(u.cols, [&](auto at) {
            Lane<T> value = at.load(u.row(i));
            for (Index j = i + 1; j < first + kda_tile; ++j) value -= lower(j, i) * at.load(u.row(j));
            at.store(u.row(i), value);
        });
    }
}

/// From the inputs and S: pairs, V - K+ S, U and, where outputs follow, Q+ S.
template <class T, class Pairs>
void kda_chunk_solve(KdaWork<T>& w, Pairs& pairs, bool outputs) {
    const Index r = w.rows;
    sum_down(w.c);
    pairs.prepare(w);
    for (Index i = 0; i < r; ++i) {
        for_lanes<T>(w.key, [&](auto at) {
            const Lane<T> up = at.load(w.up.row(i)), k = at.load(w.qk.row(r + i));
            at.store(w.plus.row(i), Lane<T>(at.load(w.qk.row(i)) * up));
            at.store(w.plus.row(r + i), Lane<T>(k * up));
            at.store(w.bar.row(i), Lane<T>(k * at.load(w.down.row(i))));
        });
    }
    const Index unread = outputs ? 0 : r;
    // (KDA-13)
    block_nn<T>(w.plus.middle_rows(unread, 2 * r - unread), w.state, w.read.middle_rows(unread, 2 * r - unread),
                Store::set);
    for (Index i = 0; i < r; ++i) {
        const T beta = w.beta[i];
        for_lanes<T>(w.value, [&](auto at) {
            const Lane<T> rest = at.load(w.v.row(i)) - at.load(w.read.row(r + i));
            at.store(w.read.row(r + i), rest);
            at.store(w.u.row(i), Lane<T>(beta * rest));
        });
        for (Index j = 0; j < round_up(i + 1, kda_tile); ++j) w.lower(i, j) = beta * w.pairs(r + i, j);
    }
    for (Index first = 0; first < r; first += kda_tile) {
        if (first > 0)
            block_nn<T>(w.lower.middle_rows(first, kda_tile).middle_cols(0, first), w.u.middle_rows(0, first),
                        w.u.middle_rows(first, kda_tile), Store::subtract);
        solve_tile<T>(w.lower, first, w.u);
    }
}

/// w.read's first R rows become O, w.state becomes S'. (KDA-14)
template <class T, class Pairs>
void kda_chunk_outputs(KdaWork<T>& w, Pairs& pairs) {
    kda_chunk_solve(w, pairs, true);
    for (Index first = 0; first < w.rows; first += kda_tile) {
        block_nn<T>(w.pairs.middle_rows(first, kda_tile).middle_cols(0, first + kda_tile),
                    w.u.middle_rows(0, first + kda_tile), w.read.middle_rows(first, kda_tile), Store::add);
    }
    for (Index a = 0; a < w.key; ++a)
        for_lanes<T>(w.value, [&](auto at) { at.store(w.state.row(a), Lane<T>(at.load(w.state.row(a)) * w.end[a])); });
    block_tn<T>(w.bar, w.u, w.state, Store::add);
}

/// From U, dO and dS': dY below dO in w.grad. (KDA-17)
template <class T>
void kda_solve_backward(KdaWork<T>& w) {
    const Index r = w.rows;
    const MatrixView<T> d_o = w.grad.middle_rows(0, r), dy = w.grad.middle_rows(r, r);
    block_nn<T>(w.bar, w.dstate, dy, Store::set);
    for (Index first = r - kda_tile; first >= 0; first -= kda_tile) {
        const MatrixView<T> tile = dy.middle_rows(first, kda_tile);
        const Index after = first + kda_tile;
        block_tn<T>(w.pairs.middle_rows(first, r - first).middle_cols(first, kda_tile),
                    d_o.middle_rows(first, r - first), tile, Store::add);
        if (after < r)
            block_tn<T>(w.lower.middle_rows(after, r - after).middle_cols(first, kda_tile),
                        dy.middle_rows(after, r - after), tile, Store::subtract);
        solve_tile_transposed<T>(w.lower, first, dy);
    }
}

/// dP, dX and dbeta from dO, dY and U; dY becomes -beta dY. (KDA-18)
template <class T>
void kda_pairs_backward(KdaWork<T>& w) {
    const Index r = w.rows;
    transpose<T>(w.u, w.u_turned);
    for (Index first = 0; first < 2 * r; first += kda_tile) {
        const Index cols = first % r + kda_tile;
        block_nn<T>(w.grad.middle_rows(first, kda_tile), w.u_turned.middle_cols(0, cols),
                    w.dpairs.middle_rows(first, kda_tile).middle_cols(0, cols), Store::set);
    }
    for (Index i = 0; i < r; ++i) {
        T *dy = w.grad.row(r + i), *dp = w.dpairs.row(i), *dx = w.dpairs.row(r + i);
        const T beta = w.beta[i];
        T total = dot(dy, w.read.row(r + i), w.value);
        for (Index j = 0; j < i; ++j) total -= dx[j] * w.pairs(r + i, j);
        for (Index j = 0; j < i; ++j) dx[j] *= -beta;
        std::fill(dp + i + 1, dp + round_up(i + 1, kda_tile), T(0));
        std::fill(dx + i, dx + round_up(i + 1, kda_tile), T(0));
        w.dbeta[i] = total;
        for_lanes<T>(w.value, [&](auto at) { at.store(dy, Lane<T>(-beta * at.load(dy))); });
    }
}

/// The whole backward of a chunk: w.dqk = [dq; .], w.dcol = dk, w.grad's second half = -dv, w.c = dg, w.dbeta, and
/// w.dstate from dS' to dS. Reads the inputs, w.state = S and w.grad's first half = dO. dq is that of the scaled q.
template <class T, class Pairs>
void kda_chunk_gradients(KdaWork<T>& w, Pairs& pairs) {
    const Index r = w.rows;
    kda_chunk_solve(w, pairs, false);
    kda_solve_backward(w);
    kda_pairs_backward(w);
    // (KDA-19)
    transpose<T>(w.state, w.turned);
    block_nn<T>(w.grad, w.turned, w.dplus, Store::set);
    transpose<T>(w.dstate, w.turned);
    block_nn<T>(w.u, w.turned, w.dbar, Store::set);
    for (Index i = 0; i < r; ++i) {
        for_lanes<T>(w.key, [&](auto at) {
            const Lane<T> up = at.load(w.up.row(i));
            at.store(w.dqk.row(i), Lane<T>(at.load(w.dplus.row(i)) * up));
            at.store(w.dqk.row(r + i), Lane<T>(at.load(w.dplus.row(r + i)) * up));
            at.store(w.dcol.row(i), Lane<T>(at.load(w.dbar.row(i)) * at.load(w.down.row(i))));
        });
    }
    // (KDA-20)
    pairs.add_gradients(w);
    // (KDA-21)
    T* last = w.c.row(r - 1);
    for (Index i = 0; i < r; ++i) {
        for_lanes<T>(w.key, [&](auto at) {
            const Lane<T> row = at.load(w.dqk.row(r + i)), col = at.load(w.dcol.row(i)), k = at.load(w.qk.row(r + i));
            at.store(w.c.row(i), Lane<T>(at.load(w.qk.row(i)) * at.load(w.dqk.row(i)) + k * (row - col)));
            at.store(w.dcol.row(i), Lane<T>(row + col));
        });
    }
    for (Index i = 0; i < r; ++i)
        for_lanes<T>(w.key, [&](auto at) {
            at.store(last, Lane<T>(at.load(last) + at.load(w.bar.row(i)) * at.load(w.dbar.row(i))));
        });
    for (Index a = 0; a < w.key; ++a) {
        last[a] += w.end[a] * dot(w.state.row(a), w.dstate.row(a), w.value);
        for_lanes<T>(w.value,
                     [&](auto at) { at.store(w.dstate.row(a), Lane<T>(at.load(w.dstate.row(a)) * w.end[a])); });
    }
    sum_up(w.c);
    block_tn<T>(w.plus, w.grad, w.dstate, Store::add);
}

/// Rows of saved states before those of sequence s.
inline Index first_chunk(const Sequences& seq, Index s, Index chunk) {
    Index before = 0;
    for (Index earlier = 0; earlier < s; ++earlier) before += ceil_div(seq.length(earlier), chunk);
    return before;
}

/// One head of one sequence, chunk by chunk. load(w, row, count) fills the inputs, store(w, row, count) takes w.read.
template <class T, class Load, class Store, class Pairs>
void kda_head_forward(KdaWork<T>& w, Pairs& pairs, const KdaShape& shape, const Sequences& seq, Index s, Index h,
                      Index chunk, const T* from, T* kept, MatrixView<T> states, Load&& load, Store&& store) {
    pad_state(from, shape, w.state);
    Index row = first_chunk(seq, s, chunk);
    for (Index begin = seq.begin(s); begin < seq.end(s); begin += chunk, ++row) {
        const Index count = (std::min)(chunk, seq.end(s) - begin);
        if (states.rows != 0) unpad_state<T>(w.state, shape, head_state(states.row(row), shape, h));
        load(w, begin, count);
        kda_chunk_outputs(w, pairs);
        store(w, begin, count);
    }
    if (kept != nullptr) unpad_state<T>(w.state, shape, kept);
}

/// The reverse pass. load also fills w.grad's first half with dO; store takes the gradients.
template <class T, class Load, class Store, class Pairs>
void kda_head_backward(KdaWork<T>& w, Pairs& pairs, const KdaShape& shape, const Sequences& seq, Index s, Index h,
                       Index chunk, MatrixView<const T> states, const T* dfinal, T* dinitial, Load&& load,
                       Store&& store) {
    pad_state(dfinal, shape, w.dstate);
    const Index chunks = ceil_div(seq.length(s), chunk), first = first_chunk(seq, s, chunk);
    for (Index n = chunks; n-- > 0;) {
        const Index begin = seq.begin(s) + n * chunk, count = (std::min)(chunk, seq.end(s) - begin);
        pad_state(head_state(states.row(first + n), shape, h), shape, w.state);
        load(w, begin, count);
        kda_chunk_gradients(w, pairs);
        store(w, begin, count);
    }
    if (dinitial != nullptr) unpad_state<T>(w.dstate, shape, dinitial);
}

}  // namespace kimik3::detail
