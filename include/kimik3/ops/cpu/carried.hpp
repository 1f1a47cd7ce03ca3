#pragma once
// State carried from call to call, one row a slot: which row a sequence continues from, and which it leaves.

#include "kimik3/core/dtype.hpp"
#include "kimik3/tensor/sequences.hpp"
#include "kimik3/tensor/view.hpp"

namespace kimik3::detail {

/// A state has no rows, or a row for every slot.
template <class T>
void require_carried(const char* operation, const Sequences& seq, In<accumulator_t<T>> state, Index cols) {
    if (state.rows == 0) return;
    require(state.cols == cols, "{}: a row of the state has {} elements, got {}", operation, cols, state.cols);
    for (Index s = 0; s < seq.count(); ++s) {
        require(seq.slot(s) >= 0 && seq.slot(s) < state.rows, "{}: a slot is below the {} rows of the state, got {}",
                operation, state.rows, seq.slot(s));
    }
}

/// Where sequence s continues, or nullptr where it begins with zeros.
template <class T>
const accumulator_t<T>* carried_in(const Sequences& seq, Index s, In<accumulator_t<T>> initial) {
    return initial.rows == 0 || seq.past(s) == 0 ? nullptr : initial.row(seq.slot(s));
}

/// Where sequence s leaves its state, or nullptr where nothing is kept or nothing changes.
template <class T>
accumulator_t<T>* carried_out(const Sequences& seq, Index s, In<accumulator_t<T>> initial,
                              std::type_identity_t<Out<accumulator_t<T>>> final) {
    const bool unchanged = seq.length(s) == 0 && final.data == initial.data;
    return final.rows == 0 || unchanged ? nullptr : final.row(seq.slot(s));
}

}  // namespace kimik3::detail
