// kimik3-embed: a model inside another program. It learns a sentence by heart, one token a letter, and says it.

#include <cstdio>
#include <kimik3/kimik3.hpp>
#include <string>
#include <vector>

using Model = kimik3::KimiK3<kimik3::presets::tiny>;  // the compiler checks the sizes and their rules

int main() {
    const std::string sentence = "the cat sat on the mat, and the dog lay on the sofa. ";
    std::vector<std::int32_t> ids;
    for (int copy = 0; copy < 40; ++copy) ids.insert(ids.end(), sentence.begin(), sentence.end());
    std::vector<kimik3::Shard> text;
    text.emplace_back("sentence", ids, Model::config.vocab_size);

    Model model(kimik3::Context<kimik3::Cpu>{}, 1);
    kimik3::TokenLoader batches(kimik3::TokenWindows(std::move(text), 64), 8, kimik3::Order::shuffled);
    kimik3::TrainingOptions options;
    options.schedule = {.max_lr = 4e-3, .total_steps = 30};
    kimik3::Trainer trainer(model, std::move(batches), options);
    for (int step = 1; step <= 30; ++step) {
        const double loss = trainer.step().loss;
        if (step % 10 == 0) std::printf("step %d  loss %.3f\n", step, loss);
    }

    const std::vector<std::int32_t> prompt(sentence.begin(), sentence.begin() + 11);
    std::printf("%s", sentence.substr(0, 11).c_str());
    for (const std::int32_t letter : kimik3::generate(model, prompt, {.temperature = 0.0, .max_tokens = 41}))
        std::putchar(letter);
    std::printf("\n");
}
