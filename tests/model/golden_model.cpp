#include <boost/test/unit_test.hpp>

#include <algorithm>

#include "support/conditioning.hpp"

using namespace kimik3;
using namespace kimik3::test;

namespace {

struct Reference {
    Golden file{"model"};
    std::vector<std::int32_t> tokens = file.ids("in.tokens"), targets = file.ids("in.targets");
    Index batch = file.shape("in.tokens").front();
};

template <class Model>
void check_loss_and_logits(Model& model, const Reference& golden, double of_loss, double of_logits) {
    const Loss loss = model.forward(golden.tokens, golden.targets, golden.batch);
    KIMIK3_CHECK_CLOSE(std::vector{loss.loss}, golden.file.values("out.loss"), of_loss);
    KIMIK3_CHECK_CLOSE(elements(model.logits()), golden.file.values("out.logits"), of_logits);
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
    check_loss_and_logits(model, golden, 1e-9, 1e-9);
    for (const ParameterInfo& tensor : model.parameters()) {
        if (!tensor.rule.trained) continue;
        KIMIK3_CHECK_CLOSE_NAMED(tensor.name, tensor_of(model.gradients(), tensor),
                                 golden.file.values("grad." + tensor.name), 1e-9);
    }
}

template <class Model>
void check_float() {
    const Reference golden;
    Model model(Context<Cpu>(2));
    load_parameters(model, golden.file, "param.");
    const Conditioning float32(golden.file);
    check_loss_and_logits(model, golden, float32.loss(), float32.logits());
    for (const ParameterInfo& tensor : model.parameters()) {
        if (!tensor.rule.trained) continue;
        const auto expected = golden.file.values("grad." + tensor.name);
        KIMIK3_CHECK_CLOSE_NAMED(tensor.name, tensor_of(model.gradients(), tensor), expected,
                                 float32.gradient(tensor, expected));
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
