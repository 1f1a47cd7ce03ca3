// A model of the Kimi Linear family on the GPU against the CPU in double.
#include <boost/test/unit_test.hpp>

#include "conformance/device.hpp"
#include "kimik3/cuda.cuh"
#include "support/models.hpp"

using namespace kimik3;
using namespace kimik3::test;

BOOST_AUTO_TEST_SUITE(conformance_linear)

BOOST_AUTO_TEST_CASE(loss_logits_and_decoding_are_those_of_the_cpu) {
    constexpr Index vocab = presets::linear_tiny.vocab_size;
    std::vector<std::int32_t> tokens(37);
    Philox random(3);
    for (auto& token : tokens) token = static_cast<std::int32_t>(random.below(vocab));
    KimiK3<presets::linear_tiny, Cpu, double> exact(cpu(), 1);
    KimiK3<presets::linear_tiny, Cuda, float> model(cuda(), 1);
    const Loss expected = exact.forward(tokens, tokens), loss = model.forward(tokens, tokens);
    KIMIK3_CHECK_CLOSE(std::vector{loss.loss}, std::vector{expected.loss}, 1e-4);
    std::vector<float> memory, last;
    const auto logits = elements(on_host(cuda(), model.logits(), memory));
    KIMIK3_CHECK_CLOSE(logits, elements(exact.logits()), 1e-4);
    model.backward();

    auto state = model.new_state(1, 64);
    for (const std::int32_t token : tokens) {
        const auto row = elements(on_host(cuda(), model.step(state, std::span(&token, 1)), memory));
        last.assign(row.begin(), row.end());
    }
    const std::span<const double> all = elements(exact.logits());
    KIMIK3_CHECK_CLOSE(last, all.last(to_size(vocab)), 1e-4);
}

BOOST_AUTO_TEST_SUITE_END()
