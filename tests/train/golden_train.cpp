#include <boost/test/unit_test.hpp>

#include "kimik3/train/optimizer.hpp"
#include "support/models.hpp"

using namespace kimik3;
using namespace kimik3::test;

namespace {

/// Six steps of two micro-batches: losses, gradient norms, and every weight and balancing bias at the end.
template <class Model>
void check_run(const std::string& file, OptimizerKind kind, double tolerance) {
    const Golden golden(file);
    Model model(Context<Cpu>(2));
    load_parameters(model, golden, "before.");
    using A = typename Model::A;
    Optimizer<Cpu, A> optimizer(model.parameters(), model.weights().size, {.kind = kind});
    const auto ids = golden.ids("in.tokens");
    const auto shape = golden.shape("in.tokens");  // [steps, micro-batches, rows, length + 1]
    const Index steps = shape[0], micro_batches = shape[1], rows = shape[2], length = shape[3] - 1;

    std::vector<double> losses, norms;
    const std::int32_t* next = ids.data();
    for (Index step = 0; step < steps; ++step) {
        model.zero_gradients();
        double loss = 0;
        for (Index micro = 0; micro < micro_batches; ++micro) {
            std::vector<std::int32_t> tokens, targets;
            for (Index row = 0; row < rows; ++row, next += length + 1) {
                tokens.insert(tokens.end(), next, next + length);
                targets.insert(targets.end(), next + 1, next + length + 1);
            }
            const double share = 1.0 / static_cast<double>(micro_batches);
            loss += share * model.forward_backward(tokens, targets, rows, share);
        }
        const StepReport report = optimizer.step(model.context(), 3e-3, model.weights(), model.gradients());
        BOOST_CHECK(report.applied);
        model.update_balance();
        losses.push_back(loss);
        norms.push_back(report.gradient_norm);
    }
    KIMIK3_CHECK_CLOSE(losses, golden.values("out.loss"), tolerance);
    // The norm amplifies the last bits of the weights a thousandfold, and AdamW those of its smallest gradients before.
    KIMIK3_CHECK_CLOSE(norms, golden.values("out.grad_norm"), 100 * tolerance);
    for (const ParameterInfo& tensor : model.parameters())
        KIMIK3_CHECK_CLOSE_NAMED(tensor.name, tensor_of(model.weights(), tensor), golden.values("after." + tensor.name),
                                 tolerance);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(golden_train)

BOOST_AUTO_TEST_CASE(adamw_trajectory) {
    check_run<KimiK3<presets::golden, Cpu, double>>("train_adamw", OptimizerKind::adamw, 1e-7);
}
BOOST_AUTO_TEST_CASE(muon_trajectory) {
    check_run<KimiK3<presets::golden, Cpu, double>>("train_muon", OptimizerKind::muon, 1e-7);
}
BOOST_AUTO_TEST_CASE(muon_trajectory_chunkwise) {
    check_run<KimiK3<golden_chunkwise, Cpu, double>>("train_muon", OptimizerKind::muon, 1e-7);
}

BOOST_AUTO_TEST_SUITE_END()
