#pragma once
// Clipping by the global norm: every gradient is multiplied by min(1, max_norm / (norm + 1e-6)). (TRAIN-4)

#include <algorithm>
#include <cmath>

#include "kimik3/core/error.hpp"

namespace kimik3 {

/// max_norm of a clipping rule: positive; infinity and 0 both mean no clipping. NaN and negative values are refused.
inline void require_max_norm(double max_norm) {
    require(max_norm >= 0.0,
            "the norm that gradients are clipped to must be positive, or 0 or infinity for no clipping, got {}",
            max_norm);
}

/// What gradients of this norm, which is finite, are multiplied by.
inline double clip_scale(double norm, double max_norm) {
    require_max_norm(max_norm);
    if (max_norm == 0.0 || std::isinf(max_norm)) return 1.0;
    return (std::min)(1.0, max_norm / (norm + 1e-6));
}

}  // namespace kimik3
