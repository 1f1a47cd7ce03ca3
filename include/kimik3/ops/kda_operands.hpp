#pragma once
// What the operations of Kimi Delta Attention read and write: N tokens, H heads of K key and V value channels, heads as
// blocks of columns. The state of a head is a matrix [K, V]; a row of a state matrix holds all heads, [H K V].

#include "kimik3/core/dtype.hpp"
#include "kimik3/tensor/sequences.hpp"
#include "kimik3/tensor/view.hpp"

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

}  // namespace kimik3
