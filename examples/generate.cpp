// kimik3-generate: a checkpoint and a prompt -> text, streamed.

#include "checkpoint_programs.hpp"

namespace {

void describe(CLI::App& app, kimik3::GenerateArguments& a, std::string& prompt_file) {
    kimik3::describe_checkpoint(app, a);
    app.add_option("--prompt", a.prompts,
                   "Text to go on from [the beginning of a text]; several --prompt are generated side by side")
        ->allow_extra_args(false);
    app.add_option("--prompt-file", prompt_file, "A file whose text is the prompt; - is standard input");
    app.add_option("--stop", a.stop, "End before this text; may be given several times")->allow_extra_args(false);
    app.option_defaults()->always_capture_default();
    app.add_option("--max-tokens", a.max_tokens, "Tokens to generate at most")->check(kimik3::zero_or_above());
    app.add_option("--context", a.context, "Tokens kept of a sequence at most; 0: all that the model allows")
        ->check(kimik3::zero_or_above());
    app.add_flag("--ignore-end", a.ignore_end,
                 "Go on after the tokenizer's end token and those of a generation_config.json");
    app.add_flag("--specials", a.specials, "Special tokens written out in the prompt are those tokens, not text");

    app.option_defaults()->group("Drawing a token, in this order");
    app.add_option("--repetition-penalty", a.repetition_penalty, "Above 1: tokens seen before are less likely")
        ->check(kimik3::above_zero());
    app.add_option("--temperature", a.temperature, "0: always the most likely token, whatever the next three say")
        ->check(kimik3::zero_or_above());
    app.add_option("--top-k", a.top_k, "Only the k most likely tokens; 0: all")->check(kimik3::zero_or_above());
    app.add_option("--top-p", a.top_p, "Only the most likely tokens that together have this probability")
        ->check(kimik3::number_rule("ABOVE 0 TO 1", "a number above 0 and not above 1 is wanted",
                                    [](double x) { return 0 < x && x <= 1; }));
    app.add_option("--min-p", a.min_p, "Only tokens of at least this part of the highest probability")
        ->check(kimik3::number_from(0, 1));
    app.add_option("--seed", a.seed, "Of the draws")->check(kimik3::zero_or_above());

    app.option_defaults()->group("Run");
    app.add_flag("--no-echo", a.no_echo, "Leave the prompt out of the output");
    app.add_flag("--quiet", a.quiet, "No statistics on standard error");
    app.add_option("--device", a.device, "cpu, or cuda: the first NVIDIA GPU")->check(CLI::IsMember({"cpu", "cuda"}));
    app.add_option("--dtype", a.dtype, "What the model computes in: f32, or on cuda bf16 [cpu: f32, cuda: bf16]")
        ->check(CLI::IsMember({"f32", "bf16"}));
    kimik3::describe_run(app, a);
    app.footer("Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted.");
}

}  // namespace

int main(int argc, char** argv) {
    kimik3::GenerateArguments arguments;
    std::string prompt_file;
    CLI::App app("Generates text from a checkpoint.", "kimik3-generate");
    describe(app, arguments, prompt_file);
    return kimik3::run_on_checkpoint(app, argc, argv, arguments, [&](auto programs) {
        if (!prompt_file.empty()) arguments.prompts.push_back(kimik3::read_input(prompt_file, "--prompt-file"));
        if (arguments.prompts.empty()) arguments.prompts.emplace_back();
        return programs.generate(arguments);
    });
}
