// A whole model in forty lines: it learns a sequence by heart and continues it. Its compile time is a benchmark
// (run.sh).

#include <cstdio>

#include "kimik3/kimik3.hpp"

#ifndef KIMIK3_PRESET
#define KIMIK3_PRESET tiny
#endif

using namespace kimik3;

int main() {
    using Model = KimiK3<presets::KIMIK3_PRESET>;
    Model model(Context<Cpu>{}, 1);
    Optimizer<Cpu, float> optimizer(model.parameters(), model.weights().size, OptimizerOptions{});

    constexpr Index batch = 4, length = 32;
    std::vector<std::int32_t> tokens, targets;
    for (Index s = 0; s < batch; ++s) {
        for (Index t = 0; t < length; ++t) {
            const Index place = t + 3 * s;
            tokens.push_back(static_cast<std::int32_t>(place % 11));
            targets.push_back(static_cast<std::int32_t>((place + 1) % 11));
        }
    }

    for (int step = 0; step < 20; ++step) {
        model.zero_gradients();
        const double loss = model.forward_backward(tokens, targets, batch);
        optimizer.step(model.context(), 5e-3, model.weights(), model.gradients());
        model.update_balance();
        if (step % 5 == 4) std::printf("step %2d  loss %.4f\n", step + 1, loss);
    }

    const std::vector<std::int32_t> prompt{0, 1, 2, 3};
    for (const std::int32_t token : generate(model, prompt, {.temperature = 0.0, .max_tokens = 8}))
        std::printf(" %d", token);
    std::printf("\n");
}
