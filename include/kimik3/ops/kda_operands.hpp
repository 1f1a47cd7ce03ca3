#pragma once
// What the operations of Kimi Delta Attention read and write: N tokens, H heads of K key and V value channels, heads as
// blocks of columns. The state of a head is a matrix [K, V]; a row of a state matrix holds all heads, [H K V].

#include "kimik3/ops/carried.hpp"

namespace kimik3 {

/// Rows after the last sequence are not read.
template <class T>
struct KdaInput {
    MatrixView<const T> q, k;  // [N, H K], each head L2-normalised; q without the scale K^-1/2
    MatrixView<const T> v;     // [N, H V]
    MatrixView<const T> g;     // [N, H K] log-decay, <= 0
    MatrixView<const T> beta;  // [N, H]
    /// [slots, H K V], sequence s at row seq.slot(s). A sequence with seq.past(s) = 0, and every sequence when there
    /// are no rows, begins with zeros.
    MatrixView<const accumulator_t<T>> initial{};
};

/// Gradients of a KdaInput. All are overwritten, rows after the last sequence with zeros; initial may have no rows.
template <class T>
struct KdaGradient {
    MatrixView<T> q, k, v, g, beta;
    MatrixView<accumulator_t<T>> initial{};
};

/// Chunks of all sequences: the rows of the states that a forward pass keeps for its backward pass.
inline Index kda_chunks(const Sequences& seq, Index chunk) {
    require(chunk >= 1, "a chunk has at least one token, got {}", chunk);
    Index count = 0;
    for (Index s = 0; s < seq.count(); ++s) count += ceil_div(seq.length(s), chunk);
    return count;
}

namespace detail {

struct KdaShape {
    Index heads, key, value;

    KIMIK3_HOST_DEVICE Index state() const { return key * value; }
};

/// Checks the shapes of q, k, v, gate [N, H K] or [N, H V], beta [N, H] and of the states against the output.
template <class T>
KdaShape kda_shape(const Sequences& seq, Index heads, In<T> q, In<T> k, In<T> v, In<T> gate, In<T> beta, In<T> o,
                   In<accumulator_t<T>> initial, In<accumulator_t<T>> final) {
    require(heads >= 1 && q.cols % heads == 0 && v.cols % heads == 0,
            "kda: {} and {} columns are no multiples of {} heads", q.cols, v.cols, heads);
    const KdaShape shape{heads, q.cols / heads, v.cols / heads};
    require(shape.key >= 1 && shape.key <= 256, "kda: a head has 1 to 256 key channels, got {}", shape.key);
    require(shape.value >= 1, "kda: a head has at least one value channel, got {}", shape.value);
    require(seq.tokens() <= q.rows, "kda: {} tokens do not fit {} rows", seq.tokens(), q.rows);
    require_shape("kda: k", k, q.rows, q.cols);
    require_shape("kda: v", v, q.rows, v.cols);
    require_shape("kda: gate", gate, q.rows, q.cols);
    require_shape("kda: beta", beta, q.rows, heads);
    require_shape("kda: o", o, q.rows, v.cols);
    require_carried<T>("kda", seq, initial, heads * shape.state());
    require_carried<T>("kda", seq, final, heads * shape.state());
    return shape;
}

template <class T>
KdaShape kda_shape(const Sequences& seq, Index heads, const KdaInput<T>& in, In<T> o, In<accumulator_t<T>> final) {
    return kda_shape<T>(seq, heads, in.q, in.k, in.v, in.g, in.beta, o, in.initial, final);
}

}  // namespace detail
}  // namespace kimik3
