#pragma once
// What goes into a pass and what comes out.

#include <span>

#include "kimik3/tensor/sequences.hpp"
#include "kimik3/tensor/transfer.hpp"

namespace kimik3 {

using Tokens = std::span<const std::int32_t>;

inline Sequences equal_sequences(Tokens tokens, Index batch) {
    const Index count = static_cast<Index>(tokens.size());
    require(batch >= 1 && count % batch == 0, "{} tokens do not make {} sequences of equal length", count, batch);
    return Sequences::uniform(batch, count / batch);
}

/// What a pass over a batch gives: the mean loss over the counted targets, 0 when none is counted.
struct Loss {
    double loss = 0;
    Index counted = 0;  // targets that are not ignored

    operator double() const { return loss; }
};

/// Of those who may look at a pass's layers, the one who does not.
struct Unobserved {
    void operator()(auto) const {}
};

/// The row of every sequence's last new token out of x [N, M], gathered in memory, which grows where it must; that of
/// an empty sequence is undefined.
template <class Backend, class T>
MatrixView<const T> last_rows(const Context<Backend>& ctx, const Sequences& seq, In<T> x, Buffer<T, Backend>& memory) {
    if (memory.size() < seq.count() * x.cols) memory = Buffer<T, Backend>(seq.count() * x.cols);
    const MatrixView<T> last(memory.data(), seq.count(), x.cols);
    for (Index s = 0; s < seq.count(); ++s) {
        if (seq.length(s) > 0) copy(ctx, x.middle_rows(seq.end(s) - 1, 1), last.middle_rows(s, 1));
    }
    return last;
}

}  // namespace kimik3
