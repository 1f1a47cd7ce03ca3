#pragma once
// Rounding to another format on the CPU.

#include <algorithm>

#include "kimik3/backend/cpu.hpp"
#include "kimik3/ops/convert.hpp"

namespace kimik3 {

template <class From, class To>
void convert(const Context<Cpu>&, VectorView<const From> from, VectorView<To> to) {
    require_size("convert: from", from, to.size);
    std::transform(from.begin(), from.end(), to.begin(), [](From value) { return static_cast<To>(value); });
}

}  // namespace kimik3
