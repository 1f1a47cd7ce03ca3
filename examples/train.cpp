// kimik3-train: token shards -> a trained model, with checkpoints to resume from and a log.

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>

#include "model_programs.hpp"

namespace {

void describe(CLI::App& app, kimik3::TrainArguments& a) {
    app.add_option("--preset", a.preset, "Model: " + kimik3::program_presets())->capture_default_str();
    app.add_option("--data", a.data, "Folder with train_*.bin, val_*.bin and tokenizer.json, as kimik3-prepare writes it")->required();
    app.add_option("--out", a.out, "Folder of the run: checkpoints step-*, best, metrics.csv")->required();
    app.add_flag("--resume", a.resume, "Go on from the newest checkpoint in --out, bit for bit");

    auto* length = app.add_option_group("How long");
    length->add_option("--steps", a.steps, "Optimizer steps")->capture_default_str();
    length->add_option("--batch", a.batch, "Sequences a micro-batch")->capture_default_str();
    length->add_option("--seq", a.seq, "Tokens a sequence; 0: 256, or the model's longest where that is less")->capture_default_str();
    length->add_option("--accumulate", a.accumulation, "Micro-batches a step")->capture_default_str();

    auto* rule = app.add_option_group("Optimizer");
    rule->add_option("--optimizer", a.optimizer, "muon (matrices by Muon, the rest by AdamW) or adamw")->capture_default_str();
    rule->add_option("--lr", a.lr, "Highest learning rate")->capture_default_str();
    rule->add_option("--schedule", a.schedule, "constant, linear, cosine or wsd (stable, then a straight decay)")->capture_default_str();
    rule->add_option("--warmup", a.warmup, "Steps of linear warm-up [2 % of the steps]");
    rule->add_option("--decay-steps", a.decay_steps, "Last steps in which wsd decays")->capture_default_str();
    rule->add_option("--min-lr-ratio", a.min_lr_ratio, "Lowest learning rate as a part of the highest")->capture_default_str();
    rule->add_option("--weight-decay", a.weight_decay, "Decoupled decay of matrices")->capture_default_str();
    rule->add_option("--clip", a.clip, "Largest gradient norm; 0: no clipping")->capture_default_str();
    rule->add_option("--spike-factor", a.spike_factor, "Skip steps whose norm exceeds this many times its mean; 0: none")->capture_default_str();

    auto* run = app.add_option_group("Run");
    run->add_option("--seed", a.seed, "Of the weights and of the order of the data")->capture_default_str();
    run->add_flag("--sequential", a.sequential, "Take the data in order instead of shuffled");
    run->add_flag("--recompute", a.recompute, "Compute activations again in backward: less memory, more time");
    run->add_option("--eval-every", a.eval_every, "Steps between validations; 0: at the end only")->capture_default_str();
    run->add_option("--eval-windows", a.eval_windows, "Sequences a validation takes at most; 0: all")->capture_default_str();
    run->add_option("--save-every", a.save_every, "Steps between checkpoints; 0: at the end only")->capture_default_str();
    run->add_option("--keep", a.keep, "Checkpoints kept, the newest; best is kept beside them")->capture_default_str();
    run->add_option("--log-every", a.log_every, "Steps between progress lines where output is no terminal")->capture_default_str();
    run->add_option("--threads", a.threads, "Threads; 0: one a processor")->capture_default_str();
}

}  // namespace

int main(int argc, char** argv) {
    kimik3::TrainArguments arguments;
    CLI::App app("Trains a Kimi K3 model on token shards.\n\n"
                 "Exit code: 0 done, 1 failed, 2 wrong usage, 130 interrupted (a checkpoint is saved).");
    describe(app, arguments);
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& problem) {
        return app.exit(problem) == 0 ? 0 : 2;
    }
    try {
        const bool whole = kimik3::with_preset(kimik3::presets::find(arguments.preset),
                                               [&](auto programs) { return programs.train(arguments); });
        return whole ? 0 : 130;
    } catch (const std::exception& problem) {
        std::fprintf(stderr, "kimik3-train: %s\n", problem.what());
        return 1;
    }
}
