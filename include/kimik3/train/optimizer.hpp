#pragma once
// The optimizer of a flat parameter array: Muon (ops/muon.hpp) for the matrices whose rule names Muon blocks, AdamW
// (ops/adamw.hpp) for every other trained tensor, after clipping by the global norm; decoupled weight decay where the
// rule says so. A tied tensor is one entry of the table and is stepped once. With kind adamw all tensors take AdamW.
// A step whose gradients are not finite changes nothing. Source: spec 8.2.

#include <algorithm>
#include <limits>

#include "kimik3/ops/adamw.hpp"
#include "kimik3/ops/gradient_norm.hpp"
#include "kimik3/ops/muon.hpp"
#include "kimik3/ops/step_decision.hpp"
#include "kimik3/tensor/arena.hpp"
#include "kimik3/tensor/transfer.hpp"
#include "kimik3/train/clip.hpp"
#include "kimik3/train/parameter_groups.hpp"

namespace kimik3 {

struct OptimizerOptions {
    OptimizerKind kind = OptimizerKind::muon;
    double beta1 = 0.9, beta2 = 0.95, eps = 1e-8;  // of AdamW
    double momentum = 0.95;                        // of Muon
    Index newton_schulz_steps = 5;
    double weight_decay = 0.1;
    double clip_norm = 1.0;  // 0 or infinity: no clipping
};

/// What a step did. not_finite names the first tensor whose gradient is NaN or infinite, or too large for its square to
/// be kept; it is empty when the step was applied, or refused by the norm limit.
struct StepReport {
    double gradient_norm = 0.0;  // before clipping
    bool applied = false;
    std::string not_finite{};
};

/// One tensor of the optimizer's state, as checkpoints keep it.
template <class A>
struct StateTensor {
    std::string name;  // "adamw.exp_avg.", "adamw.exp_avg_sq." or "muon.momentum." and the parameter's name
    std::vector<Index> shape;
    VectorView<A> values;
};

template <class Backend, class A>
class Optimizer {
public:
    /// elements: the length of the flat arrays that the table speaks of.
    Optimizer(std::vector<ParameterInfo> parameters, Index elements, OptimizerOptions options)
        : options_(options),
          groups_(parameter_groups(parameters, options.kind)),
          parameters_(std::move(parameters)),
          first_(elements) {
        check_options();
        Index end = 0, second = 0;
        for (std::size_t p = 0; p < parameters_.size(); ++p) {
            const ParameterInfo& info = parameters_[p];
            require(info.offset >= end && info.count >= 0 && info.offset + info.count <= elements,
                    "parameter '{}' at [{}, +{}) must follow the one before, which ends at {}, within {} elements",
                    info.name, info.offset, info.count, end, elements);
            end = info.offset + info.count;
            second = add_work(p, second);
        }
        const auto more_work = [](const MuonBlock& a, const MuonBlock& b) {
            if (work(a) != work(b)) return work(a) > work(b);
            return a.rows != b.rows ? a.rows > b.rows : a.offset < b.offset;  // those of one shape together
        };
        std::sort(muon_.begin(), muon_.end(), more_work);
        second_ = Buffer<A, Backend>(second);
        sums_ = Buffer<double, Backend>(static_cast<Index>(pieces_.size()));
    }

    /// The optimizer of a model's parameters.
    template <class Model>
    explicit Optimizer(const Model& model, OptimizerOptions options = {})
        : Optimizer((model.context().make_current(), model.parameters()), model.weights().size, options) {}

    const OptimizerOptions& options() const { return options_; }
    /// One entry a parameter, in the order of the table.
    const std::vector<ParameterGroup>& groups() const { return groups_; }
    /// Newton-Schulz iterations of one step.
    Index newton_schulz_blocks() const { return static_cast<Index>(muon_.size()); }
    /// Steps applied so far.
    Index steps() const { return steps_; }

    /// Updates the weights from the gradients, which stay as they are. With a gradient that is not finite, or a norm
    /// above norm_limit, nothing is changed: neither weights nor moments nor the step counter.
    StepReport step(const Context<Backend>& ctx, double lr, VectorView<A> weights, VectorView<const A> gradients,
                    double norm_limit = std::numeric_limits<double>::infinity()) {
        return step(ctx, lr, SteppedWeights<A>{weights}, gradients, norm_limit);
    }
    /// The same, and the copy follows the weights.
    StepReport step(const Context<Backend>& ctx, double lr, SteppedWeights<A> to, VectorView<const A> gradients,
                    double norm_limit = std::numeric_limits<double>::infinity()) {
        require_step(lr, to.weights, gradients);
        if constexpr (decides_steps<Backend>) {
            prepare(ctx, lr, norm_limit);
            enqueue(ctx, to, gradients);
            return finish(ctx);
        } else {
            return decide_and_step(ctx, lr, to.weights, gradients, norm_limit);
        }
    }

    /// The same on a model, whose gradients are cleared for the next step; an applied step updates its balancing.
    template <class Model>
    StepReport step(Model& model, double lr, double norm_limit = std::numeric_limits<double>::infinity()) {
        return finish(model, step(model.context(), lr, model.stepped_weights(), model.gradients(), norm_limit));
    }

    /// The same; a backend that decides steps itself may record the work (backend/backend.hpp).
    template <class Model>
    StepReport step(Model& model, double lr, double norm_limit, Repeated<Backend>& work) {
        if constexpr (decides_steps<Backend>) {
            const Context<Backend>& ctx = model.context();
            const SteppedWeights<A> to = model.stepped_weights();
            require_step(lr, to.weights, model.gradients());
            prepare(ctx, lr, norm_limit);
            work.run(ctx, {}, [&] { enqueue(ctx, to, model.gradients()); });
            return finish(model, finish(ctx));
        } else {
            return step(model, lr, norm_limit);
        }
    }

    /// The whole state but steps(), as views of the optimizer's own memory.
    std::vector<StateTensor<A>> state() const {
        std::vector<StateTensor<A>> tensors;
        Index second = 0;
        for (std::size_t p = 0; p < parameters_.size(); ++p) {
            const ParameterInfo& info = parameters_[p];
            const VectorView<A> first(first_.data() + info.offset, info.count);
            if (groups_[p].kind == GroupKind::muon) {
                tensors.push_back({"muon.momentum." + info.name, info.shape, first});
            } else if (groups_[p].kind == GroupKind::adamw) {
                tensors.push_back({"adamw.exp_avg." + info.name, info.shape, first});
                tensors.push_back({"adamw.exp_avg_sq." + info.name, info.shape, {second_.data() + second, info.count}});
                second += round_up(info.count, alignment);
            }
        }
        return tensors;
    }

    /// Continues a run of so many steps. source: a SafetensorsFile, or whatever else has contains(name),
    /// find(name).shape and read(name, destination, count). All is checked and read before anything is replaced.
    template <class Source>
    void restore(const Context<Backend>& ctx, Index steps, const Source& source) {
        require(steps >= 0, "an optimizer has taken 0 steps or more, got {}", steps);
        const std::vector<StateTensor<A>> tensors = state();
        for (const StateTensor<A>& tensor : tensors) {
            require(source.contains(tensor.name),
                    "the saved optimizer state lacks '{}'; a run goes on with the kind of optimizer that it began with",
                    tensor.name);
            const std::vector<Index>& shape = source.find(tensor.name).shape;
            require(shape == tensor.shape, "the saved optimizer state '{}' must have the shape [{}], got [{}]",
                    tensor.name, detail::listed(tensor.shape), detail::listed(shape));
        }
        std::vector<std::vector<A>> values;
        for (const StateTensor<A>& tensor : tensors) {
            values.emplace_back(to_size(tensor.values.size));
            source.read(tensor.name, values.back().data(), tensor.values.size);
            for (const A value : values.back())
                require(std::isfinite(value), "the saved optimizer state '{}' holds {}", tensor.name, value);
        }
        for (std::size_t t = 0; t < tensors.size(); ++t) copy_from_host(ctx, values[t], tensors[t].values);
        steps_ = steps;
    }

private:
    void require_step(double lr, VectorView<const A> weights, VectorView<const A> gradients) const {
        require(lr >= 0.0 && std::isfinite(lr), "the learning rate must be finite and not negative, got {}", lr);
        require_size("the weights of an optimizer step", weights, first_.size());
        require_size("the gradients of an optimizer step", gradients, first_.size());
    }

    AdamwRule adamw_rule(double lr, double scale, Index step) const {
        return {lr, options_.beta1, options_.beta2, options_.eps, options_.weight_decay, scale, step};
    }
    MuonRule muon_rule(double lr, double scale) const {
        return {lr, options_.momentum, options_.weight_decay, scale, options_.newton_schulz_steps};
    }

    StepReport decide_and_step(const Context<Backend>& ctx, double lr, VectorView<A> weights,
                               VectorView<const A> gradients, double norm_limit) {
        gradient_square_sums(ctx, std::span<const ElementPiece>(pieces_), gradients, sums_.view());
        const VectorView<const double> sums = on_host(ctx, VectorView<const double>(sums_.view()), host_sums_);
        double total = 0.0;
        for (const double sum : sums) total += sum;
        StepReport report{.gradient_norm = std::sqrt(total)};
        const double scale = std::isfinite(total) ? clip_scale(report.gradient_norm, options_.clip_norm) : 1.0;
        report.not_finite = first_not_finite(sums, scale);
        if (!report.not_finite.empty() || !(report.gradient_norm <= norm_limit)) return report;

        ++steps_;
        adamw_step(ctx, std::span<const AdamwPiece>(adamw_), adamw_rule(lr, scale, steps_), gradients, weights,
                   first_.view(), second_.view());
        muon_step(ctx, std::span<const MuonBlock>(muon_), muon_rule(lr, scale), gradients, weights, first_.view());
        report.applied = true;
        return report;
    }

    // A step of a backend that decides by itself: the host's numbers, the work, and what came of it.
    void prepare(const Context<Backend>& ctx, double lr, double norm_limit) {
        StepNumbers numbers = StepNumbers::of(adamw_rule(lr, 1.0, steps_ + 1));
        numbers.clip_norm = options_.clip_norm;
        numbers.norm_limit = norm_limit;
        copy_from_host(ctx, std::span<const StepNumbers>(&numbers, 1), numbers_.view());
    }
    void enqueue(const Context<Backend>& ctx, SteppedWeights<A> to, VectorView<const A> gradients)
        requires(decides_steps<Backend>)
    {
        const StepNumbers* numbers = numbers_.data();
        gradient_square_sums(ctx, std::span<const ElementPiece>(pieces_), gradients, sums_.view());
        decide_step<A>(ctx, VectorView<const double>(sums_.view()), numbers_.data());
        adamw_step(ctx, std::span<const AdamwPiece>(adamw_), adamw_rule(0, 1, 1), numbers, gradients, to.weights,
                   first_.view(), second_.view(), to.copy);
        muon_step(ctx, std::span<const MuonBlock>(muon_), muon_rule(0, 1), numbers, gradients, to.weights,
                  first_.view(), to.copy);
    }
    StepReport finish(const Context<Backend>& ctx) {
        const StepNumbers numbers = on_host(ctx, VectorView<const StepNumbers>(numbers_.view()), host_numbers_)[0];
        StepReport report{numbers.norm, numbers.applied};
        if (numbers.not_finite >= 0)
            report.not_finite = parameters_[piece_parameter_[to_size(numbers.not_finite)]].name;
        steps_ += report.applied ? 1 : 0;
        return report;
    }
    template <class Model>
    StepReport finish(Model& model, StepReport report) {
        if (report.applied) model.update_balance();
        else model.clear_balance();
        model.zero_gradients();
        return report;
    }

    static constexpr Index piece_size = 16384, alignment = alignment_bytes / static_cast<Index>(sizeof(A));

    static Index work(const MuonBlock& block) { return block.rows * block.cols * (std::min)(block.rows, block.cols); }

    void check_options() const {
        const OptimizerOptions& o = options_;
        const auto check_rate = [](const char* name, double value) {
            require(value >= 0.0 && value < 1.0, "{} must lie in [0, 1), got {}", name, value);
        };
        check_rate("beta1", o.beta1);
        check_rate("beta2", o.beta2);
        check_rate("momentum", o.momentum);
        require(o.eps > 0.0 && std::isfinite(o.eps), "eps must be positive and finite, got {}", o.eps);
        require(o.weight_decay >= 0.0 && std::isfinite(o.weight_decay),
                "weight_decay must be finite and not negative, got {}", o.weight_decay);
        require(o.newton_schulz_steps >= 1, "newton_schulz_steps must be 1 or more, got {}", o.newton_schulz_steps);
        require_max_norm(o.clip_norm);
    }

    /// Lists the pieces and blocks of one parameter; second: where its second moments begin. Returns where the next
    /// ones do.
    Index add_work(std::size_t p, Index second) {
        const ParameterInfo& info = parameters_[p];
        const ParameterGroup& group = groups_[p];
        if (group.kind == GroupKind::none) return second;
        const bool adamw = group.kind == GroupKind::adamw;
        for (Index done = 0; done < info.count; done += piece_size) {
            const Index count = (std::min)(piece_size, info.count - done);
            pieces_.push_back({info.offset + done, count});
            piece_parameter_.push_back(p);
            if (adamw) adamw_.push_back({info.offset + done, second + done, count, group.decay});
        }
        if (adamw) return second + round_up(info.count, alignment);
        Index offset = info.offset;
        for (Index b = 0; b < group.blocks; ++b) {
            const Index rows = group.block_rows[to_size(b) % group.block_rows.size()];
            muon_.push_back({offset, rows, group.cols, group.decay});
            offset += rows * group.cols;
        }
        return second;
    }

    /// The first parameter at which the sum of the squares, scaled, leaves the finite numbers of A.
    std::string first_not_finite(VectorView<const double> sums, double scale) const {
        double total = 0.0;
        for (std::size_t p = 0; p < pieces_.size(); ++p) {
            total += sums[static_cast<Index>(p)];
            if (!std::isfinite(static_cast<A>(total * scale * scale))) return parameters_[piece_parameter_[p]].name;
        }
        return {};
    }

    OptimizerOptions options_;
    std::vector<ParameterGroup> groups_;
    std::vector<ParameterInfo> parameters_;
    std::vector<ElementPiece> pieces_;  // of all trained parameters
    std::vector<std::size_t> piece_parameter_;
    std::vector<AdamwPiece> adamw_;
    std::vector<MuonBlock> muon_;  // the most work first
    Buffer<A, Backend> first_;     // exp_avg, or momentum, laid out as the weights
    Buffer<A, Backend> second_;    // exp_avg_sq
    Buffer<double, Backend> sums_;
    std::vector<double> host_sums_;
    Buffer<StepNumbers, Backend> numbers_{1};
    std::vector<StepNumbers> host_numbers_;
    Index steps_ = 0;
};

template <class Model>
explicit Optimizer(const Model&, OptimizerOptions = {}) -> Optimizer<typename Model::BackendTag, typename Model::A>;

}  // namespace kimik3
