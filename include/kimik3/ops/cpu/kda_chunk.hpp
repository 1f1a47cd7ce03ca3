#pragma once
// Chunked KDA on the CPU for any decay: a thread owns a head of a sequence.

#include <limits>
#include <numbers>

#include "kimik3/ops/cpu/kda_core.hpp"
#include "kimik3/ops/kda_chunk.hpp"

namespace kimik3 {
namespace detail {

/// Pair sums that are safe for any decay (spec 2.6): a tile I of 16 rows meets the rows before it at its first row,
/// where e^(c_i - r) and e^(r - c_j) are both at most 1; inside a tile every pair has its own exponent. (KDA-15)
template <class T>
struct ExactPairs {
    MatrixView<T> left;          // [32, K] q e^(c_i - r); k e^(c_i - r), rows of tile I
    MatrixView<T> right;         // [R, K] k e^(r - c_j), rows before it
    MatrixView<T> right_turned;  // [K, R]
    MatrixView<T> sum;           // [R, K]

    static ExactPairs bind(Arena& arena, const KdaWork<T>& w) {
        return {arena.matrix<T>(2 * kda_tile, w.key), arena.matrix<T>(w.rows, w.key), arena.matrix<T>(w.key, w.rows),
                arena.matrix<T>(w.rows, w.key)};
    }

    void prepare(KdaWork<T>& w) {
        const T* last = w.c.row(w.rows - 1);
        for (Index i = 0; i < w.rows; ++i) {
            for_lanes<T>(w.key, [&](auto at) {
                const Lane<T> c = at.load(w.c.row(i));
                at.store(w.up.row(i), Lane<T>(exp(c)));
                at.store(w.down.row(i), Lane<T>(exp(at.load(last) - c)));
            });
        }
        std::copy(w.up.row(w.rows - 1), w.up.row(w.rows - 1) + w.key, w.end.data);
        for (Index first = 0; first < w.rows; first += kda_tile) {
            if (first > 0) {
                meet(w, first);
                transpose<T>(right.middle_rows(0, first), right_turned.middle_cols(0, first));
                for (Index half : {Index{0}, Index{1}})
                    block_nn<T>(left.middle_rows(half * kda_tile, kda_tile), right_turned.middle_cols(0, first),
                                w.pairs.middle_rows(half * w.rows + first, kda_tile).middle_cols(0, first), Store::set);
            }
            for (Index i = first; i < first + kda_tile; ++i)
                for (Index j = first; j < first + kda_tile; ++j) pair(w, i, j);
        }
    }

    void add_gradients(KdaWork<T>& w) {
        const Index r = w.rows;
        for (Index first = 0; first < r; first += kda_tile) {
            if (first > 0) {
                meet(w, first);
                for (Index half : {Index{0}, Index{1}}) {
                    const auto dpairs = w.dpairs.middle_rows(half * r + first, kda_tile).middle_cols(0, first);
                    block_nn<T>(dpairs, right.middle_rows(0, first), sum.middle_rows(0, kda_tile), Store::set);
                    add_decayed(w, sum.middle_rows(0, kda_tile), first, w.dqk.middle_rows(half * r + first, kda_tile),
                                first, T(1));
                }
                for (Index half : {Index{0}, Index{1}})
                    block_tn<T>(w.dpairs.middle_rows(half * r + first, kda_tile).middle_cols(0, first),
                                left.middle_rows(half * kda_tile, kda_tile), sum.middle_rows(0, first),
                                half == 0 ? Store::set : Store::add);
                add_decayed(w, sum.middle_rows(0, first), 0, w.dcol.middle_rows(0, first), first, T(-1));
            }
            for (Index i = first; i < first + kda_tile; ++i)
                for (Index j = first; j <= i; ++j) add_pair_gradient(w, i, j);
        }
    }

private:
    /// left and right for the tile at row first.
    void meet(KdaWork<T>& w, Index first) {
        const T* reference = w.c.row(first);
        for (Index i = 0; i < first + kda_tile; ++i) {
            for_lanes<T>(w.key, [&](auto at) {
                const Lane<T> apart = at.load(w.c.row(i)) - at.load(reference), k = at.load(w.qk.row(w.rows + i));
                if (i < first) {
                    at.store(right.row(i), Lane<T>(k * exp(-apart)));
                } else {
                    const Lane<T> factor = exp(apart);
                    at.store(left.row(i - first), Lane<T>(at.load(w.qk.row(i)) * factor));
                    at.store(left.row(i - first + kda_tile), Lane<T>(k * factor));
                }
            });
        }
    }

    /// to_i += from_i e^(sign (c_i - r)) for the rows of c from begin on, r the row `reference` of c.
    static void add_decayed(KdaWork<T>& w, MatrixView<const T> from, Index begin, MatrixView<T> to, Index reference,
                            T sign) {
        for (Index i = 0; i < to.rows; ++i) {
            for_lanes<T>(w.key, [&](auto at) {
                const Lane<T> apart = at.load(w.c.row(begin + i)) - at.load(w.c.row(reference));
                at.store(to.row(i), Lane<T>(at.load(to.row(i)) + at.load(from.row(i)) * exp(sign * apart)));
            });
        }
    }

    void pair(KdaWork<T>& w, Index i, Index j) {
        Lane<T> p = lane(T(0)), x = p;
        if (j <= i) {
            for_lanes<T>(w.key, [&](auto at) {
                const Lane<T> right_side =
                    at.load(w.qk.row(w.rows + j)) * exp(at.load(w.c.row(i)) - at.load(w.c.row(j)));
                p += at.load(w.qk.row(i)) * right_side;
                x += at.load(w.qk.row(w.rows + i)) * right_side;
            });
        }
        w.pairs(i, j) = p.sum();
        w.pairs(w.rows + i, j) = j < i ? x.sum() : T(0);
    }

    void add_pair_gradient(KdaWork<T>& w, Index i, Index j) {
        const Index r = w.rows;
        const T dp = w.dpairs(i, j), dx = w.dpairs(r + i, j);
        for_lanes<T>(w.key, [&](auto at) {
            const Lane<T> decay = exp(at.load(w.c.row(i)) - at.load(w.c.row(j))),
                          right_side = at.load(w.qk.row(r + j)) * decay;
            at.store(w.dqk.row(i), Lane<T>(at.load(w.dqk.row(i)) + dp * right_side));
            at.store(w.dqk.row(r + i), Lane<T>(at.load(w.dqk.row(r + i)) + dx * right_side));
            at.store(w.dcol.row(j), Lane<T>(at.load(w.dcol.row(j)) +
                                            decay * (dp * at.load(w.qk.row(i)) + dx * at.load(w.qk.row(r + i)))));
        });
    }
};

/// Below this log-decay nothing is left of the state. It counts as this, since sums beside a larger one, let alone an
/// infinite one, would lose the decays of other tokens.
template <class T>
inline constexpr T least_log_decay = std::numeric_limits<T>::min_exponent * std::numbers::ln2_v<T>;

/// Loads the inputs of one head.
template <class T>
void load_chunk(const KdaInput<T>& in, const KdaShape& shape, Index h, Index row, Index count, KdaWork<T>& w) {
    load_rows<T>(in.q, row, count, h * shape.key, shape.key, w.qk.middle_rows(0, w.rows));
    load_rows<T>(in.k, row, count, h * shape.key, shape.key, w.qk.middle_rows(w.rows, w.rows));
    load_rows<T>(in.v, row, count, h * shape.value, shape.value, w.v);
    load_rows<T>(in.g, row, count, h * shape.key, shape.key, w.c);
    const T scale = T(1) / std::sqrt(static_cast<T>(shape.key));
    for (Index i = 0; i < w.rows; ++i) {
        w.beta[i] = i < count ? in.beta(row + i, h) : T(0);
        for_lanes<T>(w.key, [&](auto at) {
            at.store(w.qk.row(i), Lane<T>(at.load(w.qk.row(i)) * scale));
            at.store(w.c.row(i), larger(at.load(w.c.row(i)), lane(least_log_decay<T>)));
        });
    }
}

template <class T>
void store_chunk_gradients(const KdaWork<T>& w, const KdaInput<T>& in, const KdaShape& shape, Index h, Index row,
                           Index count, const KdaGradient<T>& to) {
    const T scale = T(1) / std::sqrt(static_cast<T>(shape.key));
    for (Index i = 0; i < count; ++i) {
        for (Index a = 0, col = h * shape.key; a < shape.key; ++a, ++col) {
            to.q(row + i, col) = scale * w.dqk(i, a);
            to.g(row + i, col) = in.g(row + i, col) < least_log_decay<T> ? T(0) : w.c(i, a);
        }
        for (Index b = 0; b < shape.value; ++b) to.v(row + i, h * shape.value + b) = -w.grad(w.rows + i, b);
        to.beta(row + i, h) = w.dbeta[i];
    }
    store_rows<T>(w.dcol, count, to.k, row, h * shape.key, shape.key);
}

/// A chunk is of whole tiles, and states, where kept, have a row a chunk.
template <class T>
void require_chunks(const Sequences& seq, Index chunk, const KdaShape& shape, In<accumulator_t<T>> states) {
    require(chunk >= kda_tile && chunk % kda_tile == 0, "kda: the chunk is a multiple of {}, got {}", kda_tile, chunk);
    if (states.rows != 0) require_shape("kda: states", states, kda_chunks(seq, chunk), shape.heads * shape.state());
}

}  // namespace detail

template <class T>
void kda_chunk_forward(const Context<Cpu>& ctx, const Sequences& seq, Index heads, Index chunk,
                       std::type_identity_t<KdaInput<T>> in, Out<T> o,
                       std::type_identity_t<Out<accumulator_t<T>>> final,
                       std::type_identity_t<Out<accumulator_t<T>>> states) {
    using namespace detail;
    const KdaShape shape = kda_shape<T>(seq, heads, in, o, final);
    require_chunks<T>(seq, chunk, shape, states);
    clear_rows_after(seq, o);
    for_sequence_heads(ctx, seq, heads, [&](Index s, Index h, int thread) {
        auto [w, pairs] = kda_work<T, ExactPairs<T>>(ctx, thread, shape, (std::min)(chunk, seq.length(s)), false);
        kda_head_forward<T>(
            w, pairs, shape, seq, s, h, chunk, head_state(carried_in<T>(seq, s, in.initial), shape, h),
            head_state(carried_out<T>(seq, s, in.initial, final), shape, h), states,
            [&](KdaWork<T>& work, Index row, Index count) { load_chunk<T>(in, shape, h, row, count, work); },
            [&](KdaWork<T>& work, Index row, Index count) {
                store_rows<T>(work.read, count, o, row, h * shape.value, shape.value);
            });
    });
}

template <class T>
void kda_chunk_backward(const Context<Cpu>& ctx, const Sequences& seq, Index heads, Index chunk,
                        std::type_identity_t<KdaInput<T>> in, In<accumulator_t<T>> states, In<T> d_o,
                        In<accumulator_t<T>> dfinal, const KdaGradient<T>& gradient) {
    using namespace detail;
    const KdaShape shape = kda_shape<T>(seq, heads, in, d_o, dfinal);
    require_chunks<T>(seq, chunk, shape, states);
    const MatrixView<T> written[] = {gradient.q, gradient.k, gradient.v, gradient.g, gradient.beta};
    for (const MatrixView<T>& m : written) clear_rows_after(seq, m);
    for_sequence_heads(ctx, seq, heads, [&](Index s, Index h, int thread) {
        auto [w, pairs] = kda_work<T, ExactPairs<T>>(ctx, thread, shape, (std::min)(chunk, seq.length(s)), true);
        kda_head_backward<T>(
            w, pairs, shape, seq, s, h, chunk, states,
            dfinal.rows == 0 ? nullptr : head_state(dfinal.row(seq.slot(s)), shape, h),
            gradient.initial.rows == 0 ? nullptr : head_state(gradient.initial.row(seq.slot(s)), shape, h),
            [&](KdaWork<T>& work, Index row, Index count) {
                load_chunk<T>(in, shape, h, row, count, work);
                load_rows<T>(d_o, row, count, h * shape.value, shape.value, work.grad.middle_rows(0, work.rows));
            },
            [&](KdaWork<T>& work, Index row, Index count) {
                store_chunk_gradients<T>(work, in, shape, h, row, count, gradient);
            });
    });
}

}  // namespace kimik3
