// kimik3-eval: a checkpoint and texts -> loss, perplexity and bits per byte; questions -> accuracy.

#include "checkpoint_programs.hpp"

namespace {

void describe(CLI::App& app, kimik3::EvalArguments& a) {
    auto* texts = app.add_option(
        "texts", a.texts,
        "Text files; token shards (*.bin); folders of kimik3-prepare, whose val_*.bin are taken");
    kimik3::describe_checkpoint(app, a);
    app.add_option("--choices", a.choices,
                   "Questions in HellaSwag's form, a JSON object a line with ctx, endings and label: how often\n"
                   "the right ending has the highest log-likelihood, by its sum, by token and by byte");
    app.option_defaults()->always_capture_default();
    app.add_flag("--specials", a.specials, "Special tokens written out in a text are those tokens, not text");
    app.add_flag("--json", a.json, "Print one JSON object instead of tables");

    app.option_defaults()->group("How texts are cut");
    app.add_option("--window", a.window,
                   "Tokens that the model sees at once; 0: 256, or the model's longest where that is less")
        ->check(kimik3::zero_or_above())
        ->needs(texts);
    app.add_option("--stride", a.stride, "Tokens from one window to the next; 0: half a window")
        ->check(kimik3::zero_or_above())
        ->needs(texts);

    app.option_defaults()->group("Run");
    app.add_option("--batch", a.batch, "Windows or endings side by side; changes no result")
        ->check(kimik3::above_zero());
    kimik3::describe_run(app, a);
    app.footer("Every token counts once: those of the first window with all before them, every later one with at least\n"
               "window - stride tokens before it. Before the first token of a text stands the tokenizer's token that\n"
               "begins texts, or else the one that ends them; without either the first token does not count.\n"
               "Exit codes: 0 done, 1 failed, 2 wrong usage.");
}

}  // namespace

int main(int argc, char** argv) {
    kimik3::EvalArguments arguments;
    CLI::App app("Evaluates a model on texts and on multiple choice.", "kimik3-eval");
    describe(app, arguments);
    return kimik3::run_on_checkpoint(app, argc, argv, arguments, [&](auto programs) {
        kimik3::require(!arguments.texts.empty() || !arguments.choices.empty(),
                        "there is nothing to evaluate: give texts or --choices");
        return programs.evaluate(arguments);
    });
}
