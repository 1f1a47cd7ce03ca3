#pragma once
// SpikeGuard: refuses steps whose gradient norm stands far above its recent mean (source: spec 8, skip above 1.5 times
// the exponential mean). Off by default.

#include <algorithm>
#include <cmath>
#include <limits>

#include "kimik3/core/error.hpp"

namespace kimik3 {

struct SpikeGuardOptions {
    double factor = 0.0;   // a norm above factor times the mean is a spike; 0: none is
    double memory = 0.98;  // of the mean, a step
    Index warmup = 20;     // norms seen before one can be a spike
};

/// All that a guard remembers.
struct SpikeGuardState {
    double average = 0.0;
    Index seen = 0;
};

class SpikeGuard {
public:
    explicit SpikeGuard(const SpikeGuardOptions& options) : options_(options) {
        require(options.factor == 0.0 || (options.factor > 1.0 && std::isfinite(options.factor)),
                "the factor of a spike guard is above 1, or 0 to switch it off, got {}", options.factor);
        require(options.memory >= 0.0 && options.memory < 1.0, "the memory of a spike guard lies in [0, 1), got {}",
                options.memory);
        require(options.warmup >= 1, "a spike guard sees 1 norm or more before it judges, got {}", options.warmup);
    }

    /// The largest norm that is no spike; beside a mean of zero, from which it could never rise, none is.
    double norm_limit() const {
        const bool judges = options_.factor > 0.0 && state_.seen >= options_.warmup && state_.average > 0.0;
        return judges ? options_.factor * state_.average : std::numeric_limits<double>::infinity();
    }

    /// Takes in the norm of every step, a finite one. A spike counts as the limit, so the mean moves little, and yet
    /// follows when the new level persists.
    void see(double norm) {
        // (TRAIN-5)
        norm = (std::min)(norm, norm_limit());
        ++state_.seen;
        const double plain_mean = 1.0 / static_cast<double>(state_.seen);  // at first
        const double weight = (std::max)(1.0 - options_.memory, plain_mean);
        state_.average += weight * (norm - state_.average);
    }

    const SpikeGuardState& state() const { return state_; }
    void restore(const SpikeGuardState& state) {
        require(state.seen >= 0 && state.average >= 0.0 && std::isfinite(state.average),
                "a spike guard has seen 0 norms or more of a finite mean, got {} of {}", state.seen, state.average);
        state_ = state;
    }

private:
    SpikeGuardOptions options_;
    SpikeGuardState state_;
};

}  // namespace kimik3
