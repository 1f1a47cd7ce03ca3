#pragma once
// The linear layers of a decoding step, which has one new token a sequence: several products of one input, which is
// read from the residuals or summed from the experts on the way, and what follows them (ops/attn_res.hpp, rms_norm.hpp,
// situ.hpp, router.hpp). For a backend on which a step waits for launches and not for arithmetic; others compose it of
// the operations named.
//   step_products(ctx, StepInput in, products, betas)
// A product is y = x w^T, y = residual + x w^T + x2 w2^T, y = SiTU(x gate^T, x up^T), or y = sigmoid(x w^T) in
// accumulator_t of the model's type. Sums are kept in accumulator_t; rounded to T are the mixed row, the normed row and
// y.

#include <initializer_list>
#include <type_traits>

#include "kimik3/ops/attn_res.hpp"
#include "kimik3/ops/situ.hpp"

namespace kimik3 {

/// The most rows that a step takes; more go through the operations one by one.
inline constexpr Index most_step_rows = 128;
/// Rows that every block of a kernel mixes and norms for itself; more are kept in between.
inline constexpr Index most_held_rows = 2;
/// The most candidates that a step mixes.
inline constexpr Index most_step_candidates = 32;

/// x [N, K]: rows as they are; or norm(mix of candidates), or norm(sum over j of weights[n, j] parts[n k + j]), where
/// the norm has a weight.
template <class T>
struct StepInput {
    using A = accumulator_t<T>;

    MatrixView<const T> rows;          // as they are
    Candidates<const T> candidates;    // [N, K] each; one is not mixed
    VectorView<const A> gamma, pi;     // [K] where there are more than one
    MatrixView<const T> parts;         // [N k, K]
    MatrixView<const A> weights;       // [N, k]
    VectorView<const A> norm;          // [K], or empty
    double mix_eps = 0, eps = 0;
    MatrixView<T> normed;              // [N, K] where x is kept; needed for more than most_held_rows

    /// Widths of x and of the second rows that a step takes, unless x is rows as they are.
    static constexpr bool fits(Index width, Index second = 0) {
        return ceil_div(width, 32) + ceil_div(second, 32) <= 32;
    }
    static StepInput plain(MatrixView<const T> rows) { return {.rows = rows}; }
    static StepInput norm_of(MatrixView<const T> x, VectorView<const A> norm, double eps, MatrixView<T> normed) {
        StepInput in{.norm = norm, .eps = eps, .normed = normed};
        in.candidates.add(x);
        return in;
    }
};

template <class T>
struct StepProduct {
    using A = accumulator_t<T>;

    MatrixView<const T> w, up;       // [out, K]; up: of SiTU
    MatrixView<const A> wide;        // [out, K] in place of w, of sigmoid
    MatrixView<T> y;                 // [N, out]
    MatrixView<A> scores;            // [N, out] in place of y, of sigmoid
    MatrixView<const T> residual;    // [N, out] or without rows
    MatrixView<const T> second, w2;  // [N, K2] and [out, K2], or without rows; of the first product only

    static StepProduct plain(MatrixView<const T> w, MatrixView<T> y, MatrixView<const T> residual = {}) {
        return {.w = w, .y = y, .residual = residual};
    }
    static StepProduct situ(MatrixView<const T> gate, MatrixView<const T> up, MatrixView<T> y) {
        return {.w = gate, .up = up, .y = y};
    }
    static StepProduct sigmoid(MatrixView<const A> w, MatrixView<A> scores) { return {.wide = w, .scores = scores}; }
};

template <class Backend>
void step_products(const Context<Backend>&, ...) {
    static_assert(missing_overload<Backend>,
                  "kimik3: step_products(ctx, input, products, betas) has no overload for these arguments");
}

}  // namespace kimik3
