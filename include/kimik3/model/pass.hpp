#pragma once
// What goes into a pass and what comes out.

#include <span>

#include "kimik3/core/base.hpp"

namespace kimik3 {

using Tokens = std::span<const std::int32_t>;

/// What a pass over a batch gives: the mean loss over the counted targets, 0 when none is counted.
struct Loss {
    double loss = 0;
    Index counted = 0;  // targets that are not ignored

    operator double() const { return loss; }
};

}  // namespace kimik3
