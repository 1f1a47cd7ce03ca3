#pragma once
// The pair sums of KDA for a log-decay of at least -5 a token (spec 2.6): with r_J the sums c at the first row of tile
// J, e^(c_i - c_j) = [e^(c_i - r_J) 2^54] [e^(r_J - c_j) 2^-54], j in J, i in J or later. The power of two, exact,
// centres both factors within e^38, and their products with the masked pairs (i < j) stay below e^75, so every block
// column of P and X is a matrix product. The first row, unlike the middle one, keeps a row's bits independent of later
// tokens.

#include "kimik3/ops/cpu/kda_core.hpp"

namespace kimik3::detail {

template <class T>
struct FactoredPairs {
    MatrixView<T> rise, fall;    // [R, K] e^(c_i - r) 2^54, e^(r - c_i) 2^-54, r of the row's own tile
    MatrixView<T> between;       // [tiles, K] e^(r_I - r_J) of the block column at hand
    MatrixView<T> right;         // [R, K] k_j e^(r_J - c_j) 2^-54
    MatrixView<T> right_turned;  // [K, R]
    MatrixView<T> left;          // [2 R, K] q_i, k_i times e^(c_i - r_J) 2^54
    MatrixView<T> sum;           // [2 R, K]

    static FactoredPairs bind(Arena& arena, const KdaWork<T>& w) {
        const auto rows = [&](Index count) { return arena.matrix<T>(count, w.key); };
        FactoredPairs p{};
        p.rise = rows(w.rows), p.fall = rows(w.rows), p.between = rows(w.rows / kda_tile), p.right = rows(w.rows);
        p.right_turned = arena.matrix<T>(w.key, w.rows);
        p.left = rows(2 * w.rows), p.sum = rows(2 * w.rows);
        return p;
    }

    void prepare(KdaWork<T>& w) {
        const T* last = w.c.row(w.rows - 1);
        for_lanes<T>(w.key, [&](auto at) { at.store(w.end.data, Lane<T>(exp(at.load(last)))); });
        // (KDA-16)
        constexpr T centre = T(0x1p54);
        for (Index first = 0; first < w.rows; first += kda_tile) {
            const T* reference = w.c.row(first);
            for_lanes<T>(w.key, [&](auto at) {
                const Lane<T> r = at.load(reference), from_start = exp(r), to_end = exp(at.load(last) - r);
                for (Index i = first; i < first + kda_tile; ++i) {
                    const Lane<T> up = exp(at.load(w.c.row(i)) - r), down = T(1) / up;
                    const Lane<T> down_centred = down * (T(1) / centre);
                    at.store(rise.row(i), Lane<T>(up * centre));
                    at.store(fall.row(i), down_centred);
                    at.store(w.up.row(i), Lane<T>(up * from_start));
                    at.store(w.down.row(i), Lane<T>(down * to_end));
                    at.store(right.row(i), Lane<T>(at.load(w.qk.row(w.rows + i)) * down_centred));
                }
            });
        }
        transpose<T>(right, right_turned);
        for (Index first = 0; first < w.rows; first += kda_tile) {
            face(w, first);
            const Index later = w.rows - first;
            for (Index half : {Index{0}, w.rows})
                block_nn<T>(left.middle_rows(half + first, later), right_turned.middle_cols(first, kda_tile),
                            w.pairs.middle_rows(half + first, later).middle_cols(first, kda_tile), Store::set);
            for (Index i = first; i < first + kda_tile; ++i) {
                std::fill(w.pairs.row(i) + i + 1, w.pairs.row(i) + first + kda_tile, T(0));
                std::fill(w.pairs.row(w.rows + i) + i, w.pairs.row(w.rows + i) + first + kda_tile, T(0));
            }
        }
    }

    void add_gradients(KdaWork<T>& w) {
        const Index r = w.rows;
        for (Index first = 0; first < r; first += kda_tile) {
            face(w, first);
            const Index later = r - first;
            const auto dp = w.dpairs.middle_rows(first, later).middle_cols(first, kda_tile);
            const auto dx = w.dpairs.middle_rows(r + first, later).middle_cols(first, kda_tile);
            block_nn<T>(dp, right.middle_rows(first, kda_tile), sum.middle_rows(first, later), Store::set);
            block_nn<T>(dx, right.middle_rows(first, kda_tile), sum.middle_rows(r + first, later), Store::set);
            for (Index i = first; i < r; ++i) {
                for_lanes<T>(w.key, [&](auto at) {
                    const Lane<T> factor = at.load(rise.row(i)) * at.load(between.row(i / kda_tile));
                    at.store(w.dqk.row(i), Lane<T>(at.load(w.dqk.row(i)) + factor * at.load(sum.row(i))));
                    at.store(w.dqk.row(r + i), Lane<T>(at.load(w.dqk.row(r + i)) + factor * at.load(sum.row(r + i))));
                });
            }
            const auto columns = sum.middle_rows(0, kda_tile);
            block_tn<T>(dp, left.middle_rows(first, later), columns, Store::set);
            block_tn<T>(dx, left.middle_rows(r + first, later), columns, Store::add);
            for (Index j = 0; j < kda_tile; ++j) {
                T* to = w.dcol.row(first + j);
                for_lanes<T>(w.key, [&](auto at) {
                    at.store(to, Lane<T>(at.load(to) + at.load(fall.row(first + j)) * at.load(columns.row(j))));
                });
            }
        }
    }

private:
    /// between and left for the block column of the tile at row first.
    void face(KdaWork<T>& w, Index first) {
        const T* reference = w.c.row(first);
        for (Index tile = first; tile < w.rows; tile += kda_tile) {
            T* apart = between.row(tile / kda_tile);
            const T* own = w.c.row(tile);
            for_lanes<T>(w.key, [&](auto at) {
                const Lane<T> factor = tile == first ? lane(T(1)) : Lane<T>(exp(at.load(own) - at.load(reference)));
                at.store(apart, factor);
                for (Index i = tile; i < tile + kda_tile; ++i) {
                    const Lane<T> up = at.load(rise.row(i)) * factor;
                    at.store(left.row(i), Lane<T>(at.load(w.qk.row(i)) * up));
                    at.store(left.row(w.rows + i), Lane<T>(at.load(w.qk.row(w.rows + i)) * up));
                }
            });
        }
    }
};

}  // namespace kimik3::detail
