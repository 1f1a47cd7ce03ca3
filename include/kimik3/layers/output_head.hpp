#pragma once
// The language-model head with its loss (spec 1.3): logits [N, V] = h [N, M] W[V, M]^T, loss = mean cross-entropy over
// the counted targets. Works on chunks of rows, so the logits of a whole batch never exist: scratch is [chunk, V].

#include <algorithm>
#include <span>

#include "kimik3/layers/linear.hpp"
#include "kimik3/ops/cross_entropy.hpp"
#include "kimik3/tensor/arena.hpp"

namespace kimik3 {

template <class Backend, class T>
struct OutputHead {
    using A = accumulator_t<T>;

    struct Scratch {
        MatrixView<T> logits;  // [chunk, V]
        VectorView<A> loss;    // [N]

        static Scratch bind(Arena& arena, Index tokens, Index vocab) {
            constexpr LogitsChunk most = logits_chunk<Backend>;
            const Index chunk = std::clamp(round_up(most.elements / vocab, 32), Index{32}, most.rows);
            return {arena.matrix<T>((std::min)(chunk, tokens), vocab), arena.vector<A>(tokens)};
        }
    };

    /// Fills scratch.loss with every row's loss, 0 where the target is ignored.
    static void loss(const Context<Backend>& ctx, MatrixView<const T> w, MatrixView<const T> h,
                     std::span<const std::int32_t> targets, Scratch& scratch) {
        for_chunks(h, scratch, [&](MatrixView<const T> rows, MatrixView<T> logits, Index first) {
            linear_forward(ctx, rows, w, logits);
            cross_entropy(ctx, logits, chunk_of(targets, first, rows.rows), loss_of(scratch, first, rows.rows));
        });
    }

    /// The same losses together with dh (overwritten) and dw (added to) of scale times their sum.
    static void loss_and_gradients(const Context<Backend>& ctx, MatrixView<const T> w, MatrixView<const T> h,
                                   std::span<const std::int32_t> targets, double scale, MatrixView<T> dh,
                                   MatrixView<A> dw, Scratch& scratch) {
        for_chunks(h, scratch, [&](MatrixView<const T> rows, MatrixView<T> logits, Index first) {
            linear_forward(ctx, rows, w, logits);
            cross_entropy_backward(ctx, logits, chunk_of(targets, first, rows.rows), scale,
                                   loss_of(scratch, first, rows.rows));
            linear_backward(ctx, logits, rows, w, dh.middle_rows(first, rows.rows), Add::no, dw);
        });
    }

private:
    template <class Body>
    static void for_chunks(MatrixView<const T> h, Scratch& scratch, Body&& body) {
        for (Index first = 0; first < h.rows; first += scratch.logits.rows) {
            const Index rows = (std::min)(scratch.logits.rows, h.rows - first);
            body(h.middle_rows(first, rows), scratch.logits.middle_rows(0, rows), first);
        }
    }
    static std::span<const std::int32_t> chunk_of(std::span<const std::int32_t> targets, Index first, Index rows) {
        return targets.subspan(to_size(first), to_size(rows));
    }
    static VectorView<A> loss_of(Scratch& scratch, Index first, Index rows) {
        return {scratch.loss.data + first, rows};
    }
};

}  // namespace kimik3
