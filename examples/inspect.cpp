// kimik3-inspect: a checkpoint and a text or a prompt -> a page that shows what the model does with them.

#include "checkpoint_programs.hpp"
#include "terminal.hpp"

namespace {

void describe(CLI::App& app, kimik3::InspectArguments& a, std::string& prompt_file) {
    kimik3::describe_checkpoint(app, a);
    app.add_option("--text", a.text, "A text file: expert load, depth weights, decay and loss over it");
    app.add_option("--prompt", a.prompt, "A text to follow token by token, in the page and on standard output");
    app.add_option("--prompt-file", prompt_file, "A file whose text is the prompt; - is standard input")
        ->excludes("--prompt");
    app.option_defaults()->always_capture_default();
    app.add_option("--out", a.out, "The page: one HTML file that needs nothing else");
    app.add_flag("--specials", a.specials, "Special tokens written out in a text are those tokens, not text");

    app.option_defaults()->group("Run");
    app.add_option("--seq", a.seq, "Tokens a sequence of the text; 0: 256, or the model's longest where that is less")
        ->check(kimik3::zero_or_above())
        ->needs("--text");
    app.add_option("--max-tokens", a.max_tokens, "Tokens of the text that are looked at, its first")
        ->check(kimik3::above_zero())
        ->needs("--text");
    app.add_option("--batch", a.batch, "Sequences of the text side by side")
        ->check(kimik3::above_zero())
        ->needs("--text");
    kimik3::describe_run(app, a);
    app.footer("Exit codes: 0 done, 1 failed, 2 wrong usage.");
}

}  // namespace

int main(int argc, char** argv) {
    kimik3::InspectArguments arguments;
    arguments.command = kimik3::shown_command(argc, argv);
    std::string prompt_file;
    CLI::App app("Shows what a model does with a text.", "kimik3-inspect");
    describe(app, arguments, prompt_file);
    return kimik3::run_on_checkpoint(app, argc, argv, arguments, [&](auto programs) {
        if (!prompt_file.empty()) arguments.prompt = kimik3::read_input(prompt_file, "--prompt-file");
        kimik3::require(!arguments.text.empty() || arguments.prompt,
                        "there is nothing to look at: give --text or --prompt");
        return programs.inspect(arguments);
    });
}
