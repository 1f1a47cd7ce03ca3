// The golden files on the GPU in float32, and what must hold of whole runs.
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <functional>

#include "conformance/golden_model.hpp"
#include "support/conditioning.hpp"

using namespace kimik3;
using namespace kimik3::test;

namespace {

using Fused = KimiK3<presets::golden, Cuda, float>;
using Chunkwise = KimiK3<golden_chunkwise, Cuda, float>;

template <class Model>
void check_model(Keep keep) {
    const Golden golden("model");
    const auto tokens = golden.ids("in.tokens"), targets = golden.ids("in.targets");
    const Index batch = golden.shape("in.tokens").front();
    Model model(cuda());
    model.keep(keep);
    load(model, golden, "param.");
    const Conditioning float32(golden);
    const Loss loss = model.forward(tokens, targets, batch);
    KIMIK3_CHECK_CLOSE(std::vector{loss.loss}, golden.values("out.loss"), float32.loss());
    std::vector<float> memory;
    KIMIK3_CHECK_CLOSE(elements(on_host(cuda(), model.logits(), memory)), golden.values("out.logits"),
                       float32.logits());
    model.backward();
    const auto gradients = elements_of(cuda(), model.gradients());
    model.zero_gradients();
    BOOST_CHECK_EQUAL(double{model.forward_backward(tokens, targets, batch)}, loss.loss);
    BOOST_CHECK(gradients == elements_of(cuda(), model.gradients()));

    double worst = 0;
    for (const ParameterInfo& tensor : model.parameters()) {
        if (!tensor.rule.trained) continue;
        const auto expected = golden.values("grad." + tensor.name);
        const std::span<const float> found(gradients.data() + tensor.offset, to_size(tensor.count));
        worst = std::max(worst, relative_error(found, expected));
        KIMIK3_CHECK_CLOSE_NAMED(tensor.name, found, expected, float32.gradient(tensor, expected));
    }
    BOOST_TEST_MESSAGE("loss " << loss.loss << ", largest relative error of a gradient " << worst);
}

struct Run {
    std::vector<double> losses, norms;
    std::vector<double> weights;
};

/// The golden steps of two micro-batches.
template <class Model>
Run train(const Golden& golden, const Context<typename Model::BackendTag>& ctx, OptimizerKind kind,
          const std::function<void(Model&)>& change = {}) {
    using A = typename Model::A;
    Model model(ctx);
    load(model, golden, "before.");
    if (change) change(model);
    Optimizer<typename Model::BackendTag, A> optimizer(model.parameters(), model.weights().size, {.kind = kind});
    const auto ids = golden.ids("in.tokens");
    const auto shape = golden.shape("in.tokens");  // [steps, micro-batches, rows, length + 1]
    Run run;
    const std::int32_t* next = ids.data();
    for (Index step = 0; step < shape[0]; ++step) {
        model.zero_gradients();
        double loss = 0;
        for (Index micro = 0; micro < shape[1]; ++micro) {
            std::vector<std::int32_t> tokens, targets;
            for (Index row = 0; row < shape[2]; ++row, next += shape[3]) {
                tokens.insert(tokens.end(), next, next + shape[3] - 1);
                targets.insert(targets.end(), next + 1, next + shape[3]);
            }
            const double share = 1.0 / static_cast<double>(shape[1]);
            loss += share * model.forward_backward(tokens, targets, shape[2], share);
        }
        const StepReport report = optimizer.step(model.context(), 3e-3, model.weights(), model.gradients());
        BOOST_CHECK(report.applied);
        model.update_balance();
        run.losses.push_back(loss);
        run.norms.push_back(report.gradient_norm);
    }
    for (const A weight : elements_of(ctx, model.weights())) run.weights.push_back(static_cast<double>(weight));
    return run;
}

/// What float32 may stray from the golden run, since a run amplifies rounding from step to step: 1e-4, or ten times
/// what moving every first weight by 1e-7 of itself, up or down at random, does in float64.
struct Allowed {
    double losses = 1e-4, norms = 1e-4;

    Allowed(const Golden& golden, OptimizerKind kind) {
        for (std::uint64_t draw = 0; draw < 2; ++draw) {
            const Run moved = train<KimiK3<presets::golden, Cpu, double>>(golden, cpu(), kind, [&](auto& model) {
                Philox random(draw);
                for (double& w : model.weights()) w *= random.below(2) == 0 ? 1 + 1e-7 : 1 - 1e-7;
            });
            losses = std::max(losses, 10 * relative_error(moved.losses, golden.values("out.loss")));
            norms = std::max(norms, 10 * relative_error(moved.norms, golden.values("out.grad_norm")));
        }
    }
};

void check_training(const std::string& file, OptimizerKind kind) {
    const Golden golden(file);
    const Run found = train<Fused>(golden, cuda(), kind), again = train<Fused>(golden, cuda(), kind);
    const auto losses = golden.values("out.loss"), norms = golden.values("out.grad_norm");
    const Allowed allowed(golden, kind);
    BOOST_TEST_MESSAGE(file << " in float32: relative error of losses " << relative_error(found.losses, losses)
                            << " (allowed " << allowed.losses << "), of norms " << relative_error(found.norms, norms)
                            << " (allowed " << allowed.norms << ")");
    BOOST_CHECK_SMALL(found.losses.front() / losses.front() - 1, 1e-4);
    KIMIK3_CHECK_CLOSE(found.losses, losses, allowed.losses);
    KIMIK3_CHECK_CLOSE(found.norms, norms, allowed.norms);
    BOOST_CHECK_MESSAGE(again.losses == found.losses && again.norms == found.norms && again.weights == found.weights,
                        "two runs differ");
}

/// The same operations in float64 follow the golden run as the CPU does: what float32 strays is rounding.
void check_training_in_double(const std::string& file, OptimizerKind kind) {
    const Golden golden(file);
    const Run found = train<KimiK3<presets::golden, Cuda, double>>(golden, cuda(), kind);
    const auto losses = golden.values("out.loss"), norms = golden.values("out.grad_norm");
    BOOST_TEST_MESSAGE(file << " in float64: relative error of losses " << relative_error(found.losses, losses)
                            << ", of norms " << relative_error(found.norms, norms));
    KIMIK3_CHECK_CLOSE(found.losses, losses, 1e-7);
    KIMIK3_CHECK_CLOSE(found.norms, norms, 1e-7);
}

template <class Model>
void check_generation() {
    const Golden parameters("model"), golden("generate");
    Model model(cuda());
    load(model, parameters, "param.");
    for (const std::string& name : golden.names("prompt")) {
        const std::string length = name.substr(6);
        auto tokens = golden.ids(name);
        const auto expected = golden.ids("greedy" + length);
        typename Model::State state = model.new_state(1);
        Tokens fresh = tokens;
        std::vector<double> found;
        std::vector<float> memory;
        while (tokens.size() < expected.size()) {
            const auto last = on_host(cuda(), model.step(state, fresh), memory);
            found.insert(found.end(), last.row(0), last.row(0) + last.cols);
            tokens.push_back(
                static_cast<std::int32_t>(std::max_element(last.row(0), last.row(0) + last.cols) - last.row(0)));
            fresh = Tokens(tokens).last(1);
        }
        BOOST_TEST(tokens == expected, name << boost::test_tools::per_element());
        KIMIK3_CHECK_CLOSE_NAMED(name, found, golden.values("logits" + length), 1e-4);
    }
}

}  // namespace

BOOST_AUTO_TEST_SUITE(conformance_golden)

BOOST_AUTO_TEST_CASE(model_fused) { check_model<Fused>(Keep::activations); }
BOOST_AUTO_TEST_CASE(model_fused_recomputed) { check_model<Fused>(Keep::sums); }
BOOST_AUTO_TEST_CASE(model_chunkwise) { check_model<Chunkwise>(Keep::activations); }
BOOST_AUTO_TEST_CASE(adamw_trajectory_twice_to_the_bit) { check_training("train_adamw", OptimizerKind::adamw); }
BOOST_AUTO_TEST_CASE(muon_trajectory_twice_to_the_bit) { check_training("train_muon", OptimizerKind::muon); }
BOOST_AUTO_TEST_CASE(adamw_trajectory_in_double) { check_training_in_double("train_adamw", OptimizerKind::adamw); }
BOOST_AUTO_TEST_CASE(muon_trajectory_in_double) { check_training_in_double("train_muon", OptimizerKind::muon); }
BOOST_AUTO_TEST_CASE(generation_fused) { check_generation<Fused>(); }
BOOST_AUTO_TEST_CASE(generation_chunkwise) { check_generation<Chunkwise>(); }

BOOST_AUTO_TEST_CASE(a_batch_of_prompts_generates_what_each_would_alone) {
    Fused model(cuda(), 5);
    const std::vector<std::vector<std::int32_t>> prompts{{1, 2, 3}, {7}, {9, 8, 7, 6, 5, 4}};
    BatchGeneration batch(model, prompts, {.temperature = 0.0, .max_tokens = 12, .prefill_chunk = 2});
    while (batch.next()) {
    }
    for (std::size_t s = 0; s < prompts.size(); ++s) {
        Generation alone(model, prompts[s], {.temperature = 0.0, .max_tokens = 12});
        while (alone.next()) {
        }
        const Tokens a = batch.tokens(static_cast<Index>(s)), b = alone.tokens();
        BOOST_CHECK(std::equal(a.begin(), a.end(), b.begin(), b.end()));
    }
}

BOOST_AUTO_TEST_CASE(copies_and_branches_of_a_state_go_on_alike) {
    Fused model(cuda(), 5);
    const std::vector<std::int32_t> prompt{1, 2, 3, 4}, more{5};
    auto state = model.new_state(2);
    model.step(state, prompt);
    state.copy_slot(0, 1);
    auto copy = state;
    const Index one = 1;
    const auto logits_of_slot = [&](Fused::State& from, Index slot) {
        std::vector<float> memory;
        on_host(cuda(), model.step(from, more, {&one, 1}, {&slot, 1}), memory);
        return memory;
    };
    const auto first = logits_of_slot(state, 0);
    BOOST_CHECK(first == logits_of_slot(state, 1));
    BOOST_CHECK(first == logits_of_slot(copy, 0));
}

BOOST_AUTO_TEST_SUITE_END()
