// The golden model in bf16 on the GPU: how far it strays from float64, and that its copy of the weights follows them.
#include <boost/test/unit_test.hpp>

#include <cmath>
#include <map>

#include "conformance/golden_model.hpp"
#include "kimik3/train/trainer.hpp"
#include "support/models.hpp"

using namespace kimik3;
using namespace kimik3::test;

namespace {

using Model = KimiK3<presets::golden, Cuda, bf16>;

/// ||found - expected|| / ||expected||
template <class Found>
double error_by_norm(const Found& found, const std::vector<double>& expected) {
    double error = 0, size = 1e-300;
    for (std::size_t i = 0; i < expected.size(); ++i) {
        const double apart = static_cast<double>(found[i]) - expected[i];
        error += apart * apart, size += expected[i] * expected[i];
    }
    return std::sqrt(error / size);
}

/// What changing every weight by 2^-8 of itself at random, up or down, does in float64, the largest of three draws:
/// bf16 rounds weights and every activation by up to that.
struct Shaken {
    double loss = 0, logits = 0;
    std::map<std::string, double> gradients;

    Shaken(const Golden& golden, Tokens tokens, Tokens targets, Index batch) {
        for (std::uint64_t draw = 0; draw < 3; ++draw) {
            KimiK3<presets::golden, Cpu, double> model(cpu());
            load_parameters(model, golden, "param.");
            Philox random(draw);
            for (double& w : model.weights()) w *= random.below(2) == 0 ? 1 + 0x1p-8 : 1 - 0x1p-8;
            const double found = model.forward_backward(tokens, targets, batch).loss;
            loss = std::max(loss, std::abs(found / golden.values("out.loss")[0] - 1));
            logits = std::max(logits, error_by_norm(elements(model.logits()), golden.values("out.logits")));
            for (const ParameterInfo& tensor : model.parameters()) {
                if (!tensor.rule.trained) continue;
                double& error = gradients[tensor.name];
                error = std::max(error, error_by_norm(tensor_of(model.gradients(), tensor),
                                                      golden.values("grad." + tensor.name)));
            }
        }
    }
};

struct GoldenBatch {
    const Golden golden{"model"};
    const std::vector<std::int32_t> tokens = golden.ids("in.tokens"), targets = golden.ids("in.targets");
    const Index batch = golden.shape("in.tokens").front();
};

std::vector<float> gradients_of(Model& model) { return elements_of(cuda(), model.gradients()); }

}  // namespace

BOOST_AUTO_TEST_SUITE(conformance_half)

BOOST_AUTO_TEST_CASE(golden_model) {
    const GoldenBatch data;
    const Shaken shaken(data.golden, data.tokens, data.targets, data.batch);
    for (const Keep keep : {Keep::activations, Keep::sums}) {
        Model model(cuda());
        model.keep(keep);
        load(model, data.golden, "param.");
        const Loss loss = model.forward(data.tokens, data.targets, data.batch);
        const double loss_error = std::abs(loss.loss / data.golden.values("out.loss")[0] - 1);
        std::vector<bf16> memory;
        const double logits_error =
            error_by_norm(elements(on_host(cuda(), model.logits(), memory)), data.golden.values("out.logits"));
        BOOST_CHECK_LE(loss_error, std::max(2e-3, 2 * shaken.loss));
        BOOST_CHECK_LE(logits_error, std::max(1e-2, 2 * shaken.logits));
        model.backward();
        const auto gradients = gradients_of(model);
        model.zero_gradients();
        BOOST_CHECK_EQUAL(double{model.forward_backward(data.tokens, data.targets, data.batch)}, loss.loss);
        BOOST_CHECK(gradients == gradients_of(model));
        double worst = 0;
        std::string worst_name;
        for (const ParameterInfo& tensor : model.parameters()) {
            if (!tensor.rule.trained) continue;
            const std::span<const float> found(gradients.data() + tensor.offset, to_size(tensor.count));
            const double error = error_by_norm(found, data.golden.values("grad." + tensor.name)),
                         by_shaking = shaken.gradients.at(tensor.name);
            BOOST_CHECK_MESSAGE(error <= std::max(2e-2, 3 * by_shaking),
                                tensor.name << ": " << error << ", shaken weights " << by_shaking);
            if (error / by_shaking > worst) worst = error / by_shaking, worst_name = tensor.name;
        }
        BOOST_TEST_MESSAGE("loss off by " << loss_error << " (shaken " << shaken.loss << "), logits by "
                                          << logits_error << " (" << shaken.logits
                                          << "), gradients by at most " << worst << " of shaken, in " << worst_name);
    }
}

BOOST_AUTO_TEST_CASE(the_copy_of_the_weights_follows_them) {
    const GoldenBatch data;
    poison_workspaces(cuda());  // in which Muon's products work
    const auto loss_of = [&](Model& model) { return model.evaluate(data.tokens, data.targets, data.batch).loss; };
    Model a(cuda(), 3), b(cuda(), 4);
    const double before = loss_of(b);
    BOOST_CHECK_NE(loss_of(a), before);
    copy(cuda(), MatrixView<float>(a.weights().data, 1, a.weights().size),
         MatrixView<float>(b.weights().data, 1, b.weights().size));
    BOOST_CHECK_EQUAL(loss_of(b), loss_of(a));

    // a step that writes the copy itself, and one after which it is made anew, with both rules and twice
    for (const OptimizerKind kind : {OptimizerKind::adamw, OptimizerKind::muon}) {
        Optimizer<Cuda, float> of_a(a, {.kind = kind}), of_b(b, {.kind = kind});
        for (int step = 0; step < 2; ++step) {
            for (Model* model : {&a, &b}) model->forward_backward(data.tokens, data.targets, data.batch);
            BOOST_CHECK(of_a.step(a, 1e-2).applied);
            BOOST_CHECK(of_b.step(cuda(), 1e-2, b.stepped_weights(), b.gradients()).applied);
            b.zero_gradients(), b.update_balance();
            b.weights();  // now the copy is made of the weights
            BOOST_CHECK_EQUAL(loss_of(a), loss_of(b));
        }
    }
}

BOOST_AUTO_TEST_CASE(decoding_follows_the_whole_pass) {
    const GoldenBatch data;
    Model model(cuda());
    load(model, data.golden, "param.");
    settle_choices(model);
    const Index length = static_cast<Index>(data.tokens.size()) / data.batch;
    const Tokens text = Tokens(data.tokens).first(to_size(length));
    model.evaluate(text, text);
    std::vector<bf16> memory;
    const auto all = elements(on_host(cuda(), model.logits(), memory));
    const std::vector<double> whole(all.begin(), all.end());
    Model::State state = model.new_state(1);
    std::vector<double> found;
    for (Index t = 0; t < length; ++t) {
        const auto row = on_host(cuda(), model.step(state, text.subspan(to_size(t), 1)), memory);
        for (Index c = 0; c < row.cols; ++c) found.push_back(static_cast<double>(row(0, c)));
    }
    const double error = error_by_norm(found, whole);
    BOOST_TEST_MESSAGE("one by one against all at once: " << error);
    BOOST_CHECK_LE(error, 0.1);
}

BOOST_AUTO_TEST_CASE(a_model_of_another_gpu_is_the_same_to_the_bit, *boost::unit_test::precondition(two_gpus)) {
    const GoldenBatch b;
    Model first(cuda(), 1), second(Context<Cuda>(1), 1);
    KIMIK3_CUDA(cudaSetDevice(0));
    const double expected = first.forward_backward(b.tokens, b.targets, b.batch);
    KIMIK3_CUDA(cudaSetDevice(0));
    BOOST_CHECK_EQUAL(second.forward_backward(b.tokens, b.targets, b.batch).loss, expected);
    BOOST_TEST((elements_of(second.context(), second.gradients()) == gradients_of(first)));
    KIMIK3_CUDA(cudaSetDevice(0));
}

BOOST_AUTO_TEST_SUITE_END()
