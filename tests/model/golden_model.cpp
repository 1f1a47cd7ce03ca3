#include <boost/test/unit_test.hpp>

#include <algorithm>

#include "support/models.hpp"

using namespace kimik3;
using namespace kimik3::test;

namespace {

struct Reference {
    Golden file{"model"};
    std::vector<std::int32_t> tokens = file.ids("in.tokens"), targets = file.ids("in.targets");
    Index batch = file.shape("in.tokens").front();
};

template <class Model>
void check_loss_and_logits(Model& model, const Reference& golden, double tolerance) {
    const Loss loss = model.forward(golden.tokens, golden.targets, golden.batch);
    KIMIK3_CHECK_CLOSE(std::vector{loss.loss}, golden.file.values("out.loss"), tolerance);
    KIMIK3_CHECK_CLOSE(elements(model.logits()), golden.file.values("out.logits"), tolerance);
    model.backward();

    const std::vector gradients(model.gradients().begin(), model.gradients().end());
    model.zero_gradients();
    BOOST_CHECK_EQUAL(double{model.forward_backward(golden.tokens, golden.targets, golden.batch)}, loss.loss);
    BOOST_CHECK(std::ranges::equal(gradients, model.gradients()));
}

template <class Model>
void check_double(Keep keep) {
    const Reference golden;
    Model model(Context<Cpu>(2));
    load_parameters(model, golden.file, "param.");
    model.keep(keep);
    check_loss_and_logits(model, golden, 1e-9);
    for (const ParameterInfo& tensor : model.parameters()) {
        if (!tensor.rule.trained) continue;
        KIMIK3_CHECK_CLOSE_NAMED(tensor.name, tensor_of(model.gradients(), tensor),
                                 golden.file.values("grad." + tensor.name), 1e-9);
    }
}

/// The gradients of this model amplify the rounding of its weights several thousandfold, so float cannot keep 1e-4 in
/// all of them, however it computes. The law: within 1e-4, or ten times what moving every weight by 1e-7 of itself, up
/// or down at random, does in double.
class Conditioning {
public:
    explicit Conditioning(const Reference& golden) : model_(Context<Cpu>(2)) {
        for (std::uint64_t draw = 0; draw < 4; ++draw) {
            load_parameters(model_, golden.file, "param.");
            Philox random(draw);
            for (double& w : model_.weights()) w *= random.below(2) == 0 ? 1 + 1e-7 : 1 - 1e-7;
            model_.zero_gradients();
            model_.forward_backward(golden.tokens, golden.targets, golden.batch);
            moved_.emplace_back(model_.gradients().begin(), model_.gradients().end());
        }
    }

    double allowed(const ParameterInfo& tensor, const std::vector<double>& expected) const {
        double most = 1e-4;
        for (const std::vector<double>& gradients : moved_) {
            const std::span part = std::span(gradients).subspan(to_size(tensor.offset), to_size(tensor.count));
            most = std::max(most, 10 * relative_error(part, expected));
        }
        return most;
    }

private:
    KimiK3<presets::golden, Cpu, double> model_;
    std::vector<std::vector<double>> moved_;
};

template <class Model>
void check_float() {
    const Reference golden;
    Model model(Context<Cpu>(2));
    load_parameters(model, golden.file, "param.");
    check_loss_and_logits(model, golden, 1e-4);
    const Conditioning conditioning(golden);
    for (const ParameterInfo& tensor : model.parameters()) {
        if (!tensor.rule.trained) continue;
        const auto expected = golden.file.values("grad." + tensor.name);
        KIMIK3_CHECK_CLOSE_NAMED(tensor.name, tensor_of(model.gradients(), tensor), expected,
                                 conditioning.allowed(tensor, expected));
    }
}

}  // namespace

BOOST_AUTO_TEST_SUITE(golden_model)

BOOST_AUTO_TEST_CASE(every_golden_tensor_is_a_parameter_or_a_gradient) {
    const Golden golden("model");
    KimiK3<presets::golden> model(Context<Cpu>(1));
    std::size_t trained = 0;
    for (const ParameterInfo& tensor : model.parameters()) {
        trained += tensor.rule.trained ? 1 : 0;
        BOOST_TEST(tensor.shape == golden.shape("param." + tensor.name), tensor.name);
    }
    BOOST_CHECK_EQUAL(golden.names("param.").size(), model.parameters().size());
    BOOST_CHECK_EQUAL(golden.names("grad.").size(), trained);
}

using Fused = KimiK3<presets::golden, Cpu, double>;
using Chunkwise = KimiK3<golden_chunkwise, Cpu, double>;

BOOST_AUTO_TEST_CASE(double_fused) { check_double<Fused>(Keep::activations); }
BOOST_AUTO_TEST_CASE(double_fused_recomputed) { check_double<Fused>(Keep::sums); }
BOOST_AUTO_TEST_CASE(double_chunkwise) { check_double<Chunkwise>(Keep::activations); }
BOOST_AUTO_TEST_CASE(float_fused) { check_float<KimiK3<presets::golden, Cpu, float>>(); }
BOOST_AUTO_TEST_CASE(float_chunkwise) { check_float<KimiK3<golden_chunkwise, Cpu, float>>(); }

BOOST_AUTO_TEST_SUITE_END()
