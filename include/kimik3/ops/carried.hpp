#pragma once
// State carried from call to call, one row a slot: what both backends ask of it.

#include "kimik3/core/dtype.hpp"
#include "kimik3/tensor/sequences.hpp"
#include "kimik3/tensor/view.hpp"

namespace kimik3::detail {

/// A state has no rows, or a row for every slot.
template <class T>
void require_carried(const char* operation, const Sequences& seq, In<accumulator_t<T>> state, Index cols) {
    if (state.rows == 0) return;
    require(state.cols == cols, "{}: a row of the state has {} elements, got {}", operation, cols, state.cols);
    for (Index s = 0; s < seq.count(); ++s)
        require(seq.slot(s) >= 0 && seq.slot(s) < state.rows, "{}: a slot is below the {} rows of the state, got {}",
                operation, state.rows, seq.slot(s));
}

}  // namespace kimik3::detail
