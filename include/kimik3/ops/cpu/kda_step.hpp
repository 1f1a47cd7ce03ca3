#pragma once
// One token of one head of KDA on one thread, and what the KDA operations share: places of heads.

#include <algorithm>

#include "kimik3/backend/cpu.hpp"
#include "kimik3/ops/cpu/carried.hpp"
#include "kimik3/ops/cpu/lanes.hpp"
#include "kimik3/ops/kda_operands.hpp"

namespace kimik3::detail {

/// The state of head h in a row of states; nullptr stays nullptr.
template <class T>
T* head_state(T* row, const KdaShape& shape, Index h) {
    return row == nullptr ? nullptr : row + h * shape.state();
}

/// body(sequence, head, thread) for all, shared out to the threads.
template <class Body>
void for_sequence_heads(const Context<Cpu>& ctx, const Sequences& seq, Index heads, Body&& body) {
    ctx.parallel_tasks(seq.count() * heads, [&](Index task, int thread) { body(task / heads, task % heads, thread); });
}

/// Zeros in the rows after the last sequence.
template <class T>
void clear_rows_after(const Sequences& seq, MatrixView<T> m) {
    for (Index n = seq.tokens(); n < m.rows; ++n) std::fill(m.row(n), m.row(n) + m.cols, T(0));
}

/// A token's q (with the scale), k, decay e^g and room for the decayed q and k, [K] each.
template <class T>
struct KdaToken {
    T *q, *decay, *decayed_q, *decayed_k;

    static constexpr Index arrays = 4;
    static KdaToken at(T* memory, Index key) { return {memory, memory + key, memory + 2 * key, memory + 3 * key}; }
};

/// state [K, V] takes in one token; o [V] = state^T q. The state is read from `from`, which may be `state` or nullptr
/// (zeros). A lane of columns stays in cache between the read, which meets k and q with the decayed state, and the
/// write. Even and odd channels are summed apart, so that one addition need not wait for the last.
template <class T>
void kda_step(const KdaShape& shape, const KdaToken<T>& token, const T* k, const T* v, T beta, const T* from, T* state,
              T* o) {
    const Index key = shape.key, value = shape.value;
    // (KDA-9), read as in (KDA-10)
    const T along = dot<T>(token.q, k, key);
    for_lanes<T>(key, [&](auto at) {
        const Lane<T> decay = at.load(token.decay);
        at.store(token.decayed_q, Lane<T>(at.load(token.q) * decay));
        at.store(token.decayed_k, Lane<T>(at.load(k) * decay));
    });
    for_lanes<T>(value, [&](auto at) {
        Lane<T> predicted[2], read[2];
        for (int i : {0, 1}) predicted[i] = read[i] = lane(T(0));
        for (Index a = 0; from != nullptr && a < key; a += 2) {
            for (Index i = 0; i < (std::min)(Index{2}, key - a); ++i) {
                const Lane<T> row = at.load(from + (a + i) * value);
                predicted[i] += row * token.decayed_k[a + i];
                read[i] += row * token.decayed_q[a + i];
            }
        }
        const Lane<T> u = beta * (at.load(v) - (predicted[0] + predicted[1]));
        for (Index a = 0; a < key; ++a) {
            const Lane<T> written = u * k[a];
            at.store(state + a * value,
                     from == nullptr ? written : Lane<T>(at.load(from + a * value) * token.decay[a] + written));
        }
        at.store(o, Lane<T>(read[0] + read[1] + along * u));
    });
}

}  // namespace kimik3::detail
