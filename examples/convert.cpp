// kimik3-convert: a checkpoint -> a GGUF file that llama.cpp runs.

#include <algorithm>
#include <filesystem>

#include "command_line.hpp"
#include "kimik3/io/checkpoint_files.hpp"
#include "kimik3/io/config_json.hpp"
#include "kimik3/io/gguf_model.hpp"
#include "kimik3/io/stored_weights.hpp"
#include "kimik3/model/runtime_parameters.hpp"

namespace fs = std::filesystem;
using namespace kimik3;

namespace {

struct Options {
    fs::path checkpoint, out;
    std::string type = "f16", tokenizer, pre, name;
    bool overwrite = false;
};

std::optional<Tokenizer> tokenizer_of(const Options& options, const fs::path& checkpoint) {
    if (options.tokenizer == "none") return std::nullopt;
    if (options.tokenizer == "bytes") return Tokenizer::bytes();
    if (!options.tokenizer.empty()) return load_any_tokenizer(options.tokenizer);
    for (const char* name : {"tokenizer.json", "tiktoken.model", "vocab.json"})
        if (fs::exists(checkpoint / name)) return load_any_tokenizer((checkpoint / name).string());
    fail("'{}' has no tokenizer.json, tiktoken.model or vocab.json: name one with --tokenizer (a file, bytes, or none)",
         checkpoint.string());
}

/// Every parameter, each at its offset.
std::vector<float> read_weights(const fs::path& checkpoint, const std::vector<ParameterInfo>& parameters) {
    Index size = 0;
    for (const ParameterInfo& tensor : parameters) size = (std::max)(size, tensor.offset + tensor.count);
    std::vector<float> weights(to_size(size));
    StoredWeights(checkpoint, parameters).read(weights.data());
    return weights;
}

GgufType type_of(const std::string& name) {
    for (const GgufType type : {GgufType::f32, GgufType::f16, GgufType::bf16, GgufType::q8_0})
        if (describe(type).name == name) return type;
    fail("--type is f32, f16, bf16 or q8_0, not '{}'", name);
}

void convert(const Options& options) {
    require(options.overwrite || !fs::exists(options.out), "--out: '{}' is there already; --overwrite replaces it",
            options.out.string());
    const fs::path checkpoint = find_checkpoint(options.checkpoint);
    const ModelConfig config = read_config_json((checkpoint / "config.json").string());
    check_gguf_config(config);
    GgufModelOptions model;
    model.type = type_of(options.type);
    model.tokenizer = tokenizer_of(options, checkpoint);
    model.pre = options.pre;
    model.name = options.name.empty() ? fs::absolute(options.out).stem().string() : options.name;
    model.progress = throw_if_interrupted;
    catch_interruption();
    const std::vector<ParameterInfo> parameters = parameters_of(config);
    const std::vector<float> weights = read_weights(checkpoint, parameters);
    const GgufModelReport report =
        write_gguf_model(options.out.string(), config, parameters, weights.data(), model);

    for (const std::string& warning : report.warnings) fmt::print(stderr, "kimik3-convert: warning: {}\n", warning);
    if (!report.as_f16.empty())
        fmt::print(stderr, "kimik3-convert: {} of the tensors are stored as f16, for their rows are no multiple of the "
                   "32 numbers of a q8_0 block; {} is the first\n", report.as_f16.size(), report.as_f16[0]);
    print_table({
        {"checkpoint", checkpoint.string()},
        {"tensors", fmt::format("{}, matrices as {}, {}B", report.tensors, options.type,
                                shown_amount(static_cast<double>(report.bytes)))},
        {"vocabulary", model.tokenizer ? fmt::format("{} tokens", model.tokenizer->vocab_size()) : "none"},
        {"file", options.out.string()},
    });
}

void declare(CLI::App& app, Options& options) {
    app.add_option("checkpoint", options.checkpoint,
                   "A checkpoint folder, or a run's folder, of which the newest is taken")
        ->required();
    app.add_option("-o,--out", options.out, "The GGUF file to write")->required();
    app.option_defaults()->always_capture_default();
    app.add_option("--type", options.type,
                   "How matrices are stored: f32, f16, bf16, or q8_0 (8 bits and a scale for 32 numbers);\n"
                   "norms, biases, convolutions and the router are f32 always")
        ->check(CLI::IsMember({"f32", "f16", "bf16", "q8_0"}));
    app.option_defaults()->always_capture_default(false);
    app.add_option("--tokenizer", options.tokenizer,
                   "The vocabulary to put in: tokenizer.json, another tokenizer file, also a GGUF file, bytes, or\n"
                   "none [what stands in the checkpoint]");
    app.add_option("--pre", options.pre,
                   "The name of llama.cpp's pre-tokenizer to write, where the tokenizer's pattern has none\n"
                   "[by pattern]");
    app.add_option("--name", options.name, "The model's name in the file [the file's name]");
    app.add_flag("--overwrite", options.overwrite, "Replace a file that is there");
    app.footer("llama.cpp runs a model whose KDA and MLA have equally many heads. Exit codes: 0 done, 1 failed,\n"
               "2 wrong usage, 130 interrupted; the file appears whole or not at all.");
    app.callback([&app, &options] {
        refuse_without_effect(app, "--pre", options.tokenizer == "none", "--tokenizer none writes no vocabulary");
    });
}

}  // namespace

int main(int argc, char** argv) {
    CLI::App app("Writes a checkpoint as a GGUF file, which llama.cpp runs.", "kimik3-convert");
    Options options;
    declare(app, options);
    return run_program(app, argc, argv, [&] {
        convert(options);
        return true;
    });
}
