#pragma once
// Memory in bulk, the same calls on every backend: what a model does with numbers outside of operations.
//   clear(ctx, view)                        zeros
//   copy(ctx, from, to)                     within the backend
//   copy_from_host(ctx, from, to)           a span of host memory into a vector
//   on_host(ctx, view, memory)              the same elements where the host reads them: on the CPU the view, else
//                                           a dense copy in memory, complete on return
//   placed_in_memory(ctx, sequences, bound, memory)
//                                           sequences for work that is recorded: on the CPU as they are, else placed in
//                                           memory, the host seeing bound (Sequences::placed_at)
// In the order of the operations around them; from may be reused once copy_from_host has returned.

#include <algorithm>
#include <span>
#include <vector>

#include "kimik3/backend/cpu.hpp"
#include "kimik3/tensor/arena.hpp"
#include "kimik3/tensor/sequences.hpp"
#include "kimik3/tensor/view.hpp"

namespace kimik3 {

template <class T>
void clear(const Context<Cpu>&, MatrixView<T> m) {
    for (Index r = 0; r < m.rows; ++r) std::fill_n(m.row(r), m.cols, T{});
}
template <class T>
void clear(const Context<Cpu>&, VectorView<T> v) {
    std::fill(v.begin(), v.end(), T{});
}

template <class T>
void copy(const Context<Cpu>&, In<T> from, Out<T> to) {
    require_shape("copy: from", from, to.rows, to.cols);
    for (Index r = 0; r < to.rows; ++r) std::copy_n(from.row(r), to.cols, to.row(r));
}

template <class T>
void copy_from_host(const Context<Cpu>&, std::type_identity_t<std::span<const T>> from, VectorView<T> to) {
    require_size("copy_from_host: to", to, static_cast<Index>(from.size()));
    std::copy(from.begin(), from.end(), to.begin());
}

template <class T>
MatrixView<const T> on_host(const Context<Cpu>&, MatrixView<const T> m, std::vector<T>&) {
    return m;
}
template <class T>
VectorView<const T> on_host(const Context<Cpu>&, VectorView<const T> v, std::vector<T>&) {
    return v;
}

inline Sequences placed_in_memory(const Context<Cpu>&, const Sequences& seq, Index, Buffer<Index, Cpu>&) { return seq; }

}  // namespace kimik3
