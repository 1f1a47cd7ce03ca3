#pragma once
// The learning rate of a step, counted from 0, as a pure function. It rises in warmup_steps equal increments from
// min_ratio max_lr, the last of which reaches max_lr, so the first step is never idle; then it goes
//   constant  on at max_lr
//   linear    in a straight line to min_ratio max_lr at total_steps
//   cosine    along half a cosine to min_ratio max_lr at total_steps
//   wsd       on at max_lr, and in a straight line to min_ratio max_lr over the last decay_steps
// and stays there. Every value lies in [min_ratio max_lr, max_lr].

#include <cmath>
#include <numbers>
#include <string_view>

#include "kimik3/core/error.hpp"

namespace kimik3 {

enum class ScheduleKind : std::uint8_t { constant, linear, cosine, wsd };

constexpr std::string_view name_of(ScheduleKind kind) {
    constexpr std::string_view names[] = {"constant", "linear", "cosine", "wsd"};
    return names[static_cast<std::size_t>(kind)];
}

inline ScheduleKind schedule_from_name(std::string_view name) {
    using enum ScheduleKind;
    for (const ScheduleKind kind : {constant, linear, cosine, wsd}) {
        if (name == name_of(kind)) return kind;
    }
    fail("a schedule is one of constant, linear, cosine, wsd; got '{}'", name);
}

struct ScheduleOptions {
    ScheduleKind kind = ScheduleKind::cosine;
    double max_lr = 1e-3, min_ratio = 0.1;
    Index warmup_steps = 0, total_steps = 1;
    Index decay_steps = 0;  // of wsd alone
};

class Schedule {
public:
    explicit Schedule(const ScheduleOptions& options) : options_(options) {
        const ScheduleOptions& o = options_;
        require(o.max_lr > 0.0 && std::isfinite(o.max_lr),
                "the highest learning rate must be positive and finite, got {}", o.max_lr);
        require(o.min_ratio >= 0.0 && o.min_ratio <= 1.0,
                "the lowest learning rate is a part in [0, 1] of the highest, got {}", o.min_ratio);
        require(o.total_steps >= 1, "a schedule has 1 step or more, got {}", o.total_steps);
        require(o.warmup_steps >= 0 && o.warmup_steps <= o.total_steps,
                "warm-up takes 0 to {} steps, all there are, got {}", o.total_steps, o.warmup_steps);
        const Index most = o.kind == ScheduleKind::wsd ? o.total_steps - o.warmup_steps : 0;
        require(o.decay_steps >= 0 && o.decay_steps <= most, "decay_steps of the schedule {} lies in 0 to {}, got {}",
                name_of(o.kind), most, o.decay_steps);
    }

    const ScheduleOptions& options() const { return options_; }

    double lr(Index step) const {
        require(step >= 0, "steps are counted from 0, got {}", step);
        return options_.max_lr * (options_.min_ratio + (1.0 - options_.min_ratio) * height(step));
    }

private:
    /// The place between the lowest rate, 0, and the highest, 1.
    double height(Index step) const {
        const ScheduleOptions& o = options_;
        // (TRAIN-10)
        if (step < o.warmup_steps) return static_cast<double>(step + 1) / static_cast<double>(o.warmup_steps);
        if (o.kind == ScheduleKind::constant) return 1.0;
        if (step >= o.total_steps) return 0.0;
        const Index begin = o.kind == ScheduleKind::wsd ? o.total_steps - o.decay_steps : o.warmup_steps;
        if (step <= begin) return 1.0;
        const double left = static_cast<double>(o.total_steps - step) / static_cast<double>(o.total_steps - begin);
        return o.kind == ScheduleKind::cosine ? 0.5 - 0.5 * std::cos(std::numbers::pi * left) : left;
    }

    ScheduleOptions options_;
};

}  // namespace kimik3
