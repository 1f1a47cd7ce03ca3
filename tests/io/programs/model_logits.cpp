// What gguf_python.py and gguf_llama_cpp.py ask of the library, of the preset tiny and of "plain", which is tiny with
// every switch that llama.cpp knows turned the other way:
//   model_logits config PRESET                     prints the preset's config.json
//   model_logits initial tiny|plain FOLDER         writes a checkpoint of the model as it is before training
//   model_logits greedy CHECKPOINT TOKENS PROMPT   takes the prompt and then, TOKENS times, the most likely token;
//       prints the prompt's ids (its bytes, where there is no tokenizer.json), then a line a token: its id, all logits
#include <algorithm>
#include <cstdio>

#include "kimik3/io/config_json.hpp"
#include "kimik3/io/safetensors.hpp"
#include "kimik3/io/safetensors_writer.hpp"
#include "kimik3/kimik3.hpp"
#include "kimik3/text/tokenizer_files.hpp"

namespace {

using namespace kimik3;

constexpr ModelConfig plain = [] {
    ModelConfig c = presets::tiny;
    c.attn_res = c.mla_output_gate = c.latent_norm = c.moe_renormalize = c.tie_embeddings = false;
    c.kda_gate = DecayGate::softplus;
    c.kda_implementation = KdaImplementation::chunkwise;
    c.init_std = 0.1;
    return c;
}();

template <ModelConfig config>
void initial(const std::string& folder) {
    const KimiK3<config> model(Context<Cpu>(1), 1);
    std::vector<TensorToWrite> tensors;
    for (const ParameterInfo& tensor : model.parameters())
        tensors.push_back(tensor_in_memory(tensor.name, tensor.shape, model.weights().data + tensor.offset));
    write_config_json(folder + "/config.json", config);
    write_safetensors(folder + "/model.safetensors", std::move(tensors));
}

template <ModelConfig config>
void greedy(const std::string& checkpoint, Index count, const std::string& prompt) {
    KimiK3<config> model(Context<Cpu>(1));
    const SafetensorsFile file(checkpoint + "/model.safetensors");
    for (const ParameterInfo& tensor : model.parameters())
        file.read(tensor.name, model.weights().data + tensor.offset, tensor.count);
    const bool has_tokenizer = std::filesystem::exists(checkpoint + "/tokenizer.json");
    auto fresh = (has_tokenizer ? load_tokenizer(checkpoint) : Tokenizer::bytes()).encode(prompt, Specials::as_text);
    for (const std::int32_t id : fresh) std::printf("%d ", id);
    std::printf("\n");
    auto state = model.new_state(1);
    for (Index n = 0; n < count; ++n) {
        const auto logits = model.step(state, fresh);
        const float* row = logits.row(0);
        fresh = {static_cast<std::int32_t>(std::max_element(row, row + logits.cols) - row)};
        std::printf("%d", fresh[0]);
        for (Index v = 0; v < logits.cols; ++v) std::printf(" %.9g", static_cast<double>(row[v]));
        std::printf("\n");
    }
}

bool run(const std::vector<std::string>& a) {
    if (a.size() == 3 && a[1] == "config") {
        std::puts(format_config_json(presets::find(a[2])).c_str());
    } else if (a.size() == 4 && a[1] == "initial") {
        a[2] == "plain" ? initial<plain>(a[3]) : initial<presets::tiny>(a[3]);
    } else if (a.size() == 5 && a[1] == "greedy") {
        const bool is_plain = read_config_json(a[2] + "/config.json") == plain;
        (is_plain ? greedy<plain> : greedy<presets::tiny>)(a[2], std::stol(a[3]), a[4]);
    } else {
        return false;
    }
    return true;
}

}  // namespace

int main(int count, char** arguments) {
    try {
        if (run({arguments, arguments + count})) return 0;
        std::fprintf(stderr, "see the first lines of model_logits.cpp\n");
    } catch (const std::exception& error) {
        std::fprintf(stderr, "model_logits: %s\n", error.what());
    }
    return 1;
}
