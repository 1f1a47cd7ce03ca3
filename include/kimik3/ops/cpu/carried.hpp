#pragma once
// Which row a sequence continues from, and which it leaves.

#include "kimik3/ops/carried.hpp"

namespace kimik3::detail {

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
