#pragma once
// Trainer: the loop body of training. One step is accumulation micro-batches forward and backward, each weighing the
// same, then clip and optimizer, then quantile balancing. A step that cannot be taken (a loss or gradient that is not
// finite, a spike) leaves weights, moments and balancing as they were. Everything that the next step depends on is in
// the model's weights, the optimizer's state and TrainingPosition, so a saved run goes on bit for bit.

#include <limits>

#include "kimik3/data/loader.hpp"
#include "kimik3/model/kimi_k3.hpp"
#include "kimik3/train/optimizer.hpp"
#include "kimik3/train/schedule.hpp"
#include "kimik3/train/spike_guard.hpp"

namespace kimik3 {

struct TrainingOptions {
    Index accumulation = 1;  // micro-batches a step
    OptimizerOptions optimizer{};
    ScheduleOptions schedule{};
    SpikeGuardOptions spike_guard{};
    bool recorded = true;  // a backend that can, records a step's work once and starts it as a whole: the same bits
};

/// What a step did.
struct TrainingStep {
    Index step = 0;  // counted from 0
    double loss = 0, lr = 0, gradient_norm = 0;
    Index tokens = 0;
    bool applied = false;  // false: a spike was skipped
};

/// Where a run stands, beside weights and moments.
struct TrainingPosition {
    Index step = 0;             // steps taken, skipped ones among them
    Index optimizer_steps = 0;  // of them applied
    Index tokens = 0;
    LoaderState data{};
    SpikeGuardState spike_guard{};
};

/// Mean loss over all windows, or over the first max_windows of them; touches nothing of training.
template <class Model>
Loss evaluate(Model& model, const TokenWindows& windows, Index batch,
              Index max_windows = (std::numeric_limits<Index>::max)()) {
    double sum = 0;
    Index counted = 0;
    const auto add = [&](const Batch& b) {
        const Loss loss = model.evaluate(b.tokens, b.targets, b.batch);
        sum += loss.loss * static_cast<double>(loss.counted);
        counted += loss.counted;
    };
    windows.for_each_batch(batch, add, max_windows);
    return {counted == 0 ? 0.0 : sum / static_cast<double>(counted), counted};
}

template <class Model>
class Trainer {
public:
    using A = typename Model::A;
    using ModelOptimizer = Optimizer<typename Model::BackendTag, A>;

    Trainer(Model& model, TokenLoader loader, const TrainingOptions& options)
        : model_(&model), loader_(std::move(loader)), options_(options), schedule_(options.schedule),
          optimizer_(model, options.optimizer), guard_(options.spike_guard) {
        require(options.accumulation >= 1, "a step has at least one micro-batch, not {}", options.accumulation);
        model_->zero_gradients();
    }

    Model& model() const { return *model_; }
    const TrainingOptions& options() const { return options_; }
    const Schedule& schedule() const { return schedule_; }
    ModelOptimizer& optimizer() { return optimizer_; }
    const ModelOptimizer& optimizer() const { return optimizer_; }

    TrainingPosition position() const { return {step_, optimizer_.steps(), tokens_, loader_.state(), guard_.state()}; }

    /// Goes on from a saved position; the weights and the optimizer's state are restored beside it.
    void restore(const TrainingPosition& saved) {
        require(saved.step >= 0 && saved.tokens >= 0, "a run has taken 0 steps and tokens or more, got {} and {}",
                saved.step, saved.tokens);
        SpikeGuard guard = guard_;
        guard.restore(saved.spike_guard);
        loader_.restore(saved.data);
        guard_ = guard;
        step_ = saved.step;
        tokens_ = saved.tokens;
    }

    /// One step. Throws when the loss or a gradient is not finite, naming the step and the tensor; then the weights,
    /// moments and balancing are those before the step.
    TrainingStep step() {
        TrainingStep report{.step = step_, .lr = schedule_.lr(step_)};
        const double share = 1.0 / static_cast<double>(options_.accumulation);
        for (Index micro = 0; micro < options_.accumulation; ++micro) {
            loader_.next(batch_);
            report.loss += share * loss_of_batch(share);
            report.tokens += static_cast<Index>(batch_.tokens.size());
        }
        const StepReport update = update_of(report.lr);
        report.gradient_norm = update.gradient_norm;
        report.applied = update.applied;
        if (!update.not_finite.empty()) refuse(fmt::format("the gradient of '{}' is not finite", update.not_finite));
        guard_.see(update.gradient_norm);
        ++step_;
        tokens_ += report.tokens;
        return report;
    }

private:
    double loss_of_batch(double share) {
        try {
            if (!options_.recorded)
                return model_->forward_backward(batch_.tokens, batch_.targets, batch_.batch, share);
            model_->load(batch_.tokens, batch_.targets, batch_.batch);
            pass_.run(model_->context(), model_->pass_shape(), [&] { model_->training_pass(share); });
            return model_->mean_loss();
        } catch (const Error& error) {
            refuse(error.what());
        }
    }

    StepReport update_of(double lr) {
        try {
            if (!options_.recorded) return optimizer_.step(*model_, lr, guard_.norm_limit());
            return optimizer_.step(*model_, lr, guard_.norm_limit(), update_);
        } catch (const Error& error) {
            refuse(error.what());
        }
    }

    /// Ends a step that cannot be taken; a weight that is not finite is the likely cause and is named.
    [[noreturn]] void refuse(const std::string& reason) {
        std::string cause;
        try {
            model_->zero_gradients();
            model_->clear_balance();
            cause = broken_weight();
        } catch (const Error&) {  // of a device that does nothing more: the reason is all there is to say
        }
        fail("step {}: {}{}", step_, reason, cause);
    }
    std::string broken_weight() const {
        std::vector<A> memory;
        const auto weights = on_host(model_->context(), VectorView<const A>(model_->weights()), memory);
        for (const ParameterInfo& tensor : model_->parameters()) {
            for (const A value : VectorView<const A>(weights.data + tensor.offset, tensor.count))
                if (!std::isfinite(value)) return fmt::format("; the weight '{}' holds {}", tensor.name, value);
        }
        return {};
    }

    Model* model_;
    TokenLoader loader_;
    TrainingOptions options_;
    Schedule schedule_;
    ModelOptimizer optimizer_;
    SpikeGuard guard_;
    Batch batch_;
    Index step_ = 0, tokens_ = 0;
    Repeated<typename Model::BackendTag> pass_, update_;
};

}  // namespace kimik3
