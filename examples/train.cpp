// kimik3-train: token shards -> a trained model, with checkpoints to resume from and a log.

#include "command_line.hpp"
#include "kimik3/train/parameter_groups.hpp"
#include "kimik3/train/schedule.hpp"
#include "model_programs.hpp"

namespace {

/// A check of a name by the function that reads it, whose Error lists the names.
template <class Read>
CLI::Validator name_read_by(Read read) {
    const auto complaint = [read](std::string& name) -> std::string {
        try {
            read(name);
            return {};
        } catch (const kimik3::Error& error) {
            return error.what();
        }
    };
    return CLI::Validator(complaint, "");
}

void describe(CLI::App& app, kimik3::TrainArguments& a) {
    app.option_defaults()->always_capture_default();
    app.add_option("--data", a.data,
                   "Folder with train_*.bin, val_*.bin and tokenizer.json, as kimik3-prepare writes it")->required();
    app.add_option("--out", a.out, "Folder of the run: checkpoints step-*, best, metrics.csv, report.html")->required();
    app.add_option("--preset", a.preset, "Model: " + kimik3::program_presets())
        ->check(name_read_by(kimik3::program_preset));
    app.add_flag("--resume", a.resume, "Go on from the newest checkpoint in --out; with the same options bit for bit");

    app.option_defaults()->group("How long");
    app.add_option("--steps", a.steps, "Optimizer steps in all")->check(kimik3::above_zero());
    app.add_option("--batch", a.batch, "Sequences a micro-batch")->check(kimik3::above_zero());
    app.add_option("--seq", a.seq, "Tokens a sequence; 0: 256, or the model's longest where that is less")
        ->check(kimik3::zero_or_above());
    app.add_option("--accumulate", a.accumulation, "Micro-batches a step")->check(kimik3::above_zero());

    app.option_defaults()->group("Optimizer");
    app.add_option("--optimizer", a.optimizer, "muon (matrices by Muon, the rest by AdamW) or adamw")
        ->check(name_read_by(kimik3::optimizer_from_name));
    app.add_option("--lr", a.lr, "Highest learning rate")->check(kimik3::above_zero());
    app.add_option("--schedule", a.schedule, "constant, linear, cosine or wsd (stable, then a straight decay)")
        ->check(name_read_by(kimik3::schedule_from_name));
    app.add_option("--warmup", a.warmup, "Steps of linear warm-up [2 % of --steps]")->check(kimik3::zero_or_above());
    app.add_option("--decay-steps", a.decay_steps, "Last steps, in which wsd decays [20 % of --steps]")
        ->check(kimik3::zero_or_above());
    app.add_option("--min-lr-ratio", a.min_lr_ratio, "Lowest learning rate as a part of the highest")
        ->check(kimik3::number_from(0, 1));
    app.add_option("--weight-decay", a.weight_decay, "Decoupled decay of matrices")->check(kimik3::zero_or_above());
    app.add_option("--clip", a.clip, "Largest gradient norm; 0: no clipping")->check(kimik3::zero_or_above());
    app.add_option("--spike-factor", a.spike_factor, "Skip steps whose norm exceeds this many times its mean; 0: none")
        ->check(kimik3::zero_or_above());

    app.option_defaults()->group("Run");
    app.add_option("--seed", a.seed, "Of the weights and of the order of the data")->check(kimik3::zero_or_above());
    app.add_flag("--sequential", a.sequential, "Take the data in order instead of shuffled");
    app.add_flag("--recompute", a.recompute, "Compute activations again in backward: less memory, more time");
    app.add_flag("--eager", a.eager,
                 "cuda: start the kernels of every step one by one, instead of recording a step's work once\n"
                 "(CUDA graph); the same bits, slower");
    app.add_option("--eval-every", a.eval_every, "Steps between validations; 0: at the end only [100]")
        ->check(kimik3::zero_or_above());
    app.add_option("--eval-windows", a.eval_windows, "Sequences a validation takes at most; 0: all [64]")
        ->check(kimik3::zero_or_above());
    app.add_option("--save-every", a.save_every, "Steps between checkpoints; 0: at the end only")
        ->check(kimik3::zero_or_above());
    app.add_option("--keep", a.keep, "Checkpoints kept, the newest; best is kept beside them")
        ->check(kimik3::above_zero());
    app.add_option("--report-every", a.report_every,
                   "Steps between looks into the model, after which report.html is drawn anew; 0: at the end\n"
                   "only [2 % of --steps]")->check(kimik3::zero_or_above());
    app.add_option("--log-every", a.log_every,
                   "Steps between progress lines where output is no terminal; 0: first and last only")
        ->check(kimik3::zero_or_above());
    app.add_option("--device", a.device, "cpu, or cuda: the first NVIDIA GPU")->check(CLI::IsMember({"cpu", "cuda"}));
    app.add_option("--dtype", a.dtype,
                   "What the model computes in: f32, or on cuda bf16 (weights and optimizer stay f32)\n"
                   "[cpu: f32, cuda: bf16]")->check(CLI::IsMember({"f32", "bf16"}));
    app.add_option("--threads", a.threads, "Threads of the CPU; 0: one a processor")->check(kimik3::zero_or_above());
    app.footer("Ctrl-C ends the current step, saves and exits; a second one exits at once.\n"
               "Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted.");
    app.callback([&app, &a] {
        kimik3::refuse_without_effect(app, "--decay-steps", a.schedule != "wsd", "--schedule " + a.schedule +
                                      " has none; wsd has");
        kimik3::refuse_without_effect(app, "--eager", a.device == "cpu", "--device cpu records no step; cuda does");
    });
}

}  // namespace

int main(int argc, char** argv) {
    kimik3::TrainArguments arguments;
    CLI::App app("Trains a Kimi K3 model on token shards.", "kimik3-train");
    describe(app, arguments);
    arguments.command = kimik3::shown_command(argc, argv);
    return kimik3::run_program(app, argc, argv, [&] {
        return kimik3::with_preset(kimik3::program_preset(arguments.preset), arguments.device, arguments.dtype,
                                   "--preset " + arguments.preset,
                                   [&](auto programs) { return programs.train(arguments); });
    });
}
