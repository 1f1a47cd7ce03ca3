// What gguf_python.py and gguf_llama_cpp.py ask of the library:
//   model_logits config PRESET                       prints the preset's config.json
//   model_logits initial FOLDER                      writes a checkpoint of the preset tiny as it is before training
//   model_logits greedy CHECKPOINT TOKENS PROMPT     loads a checkpoint of the preset tiny, takes the prompt and then,
//       TOKENS times, the most likely token; prints the ids of the prompt, then a line a token: its id, all the logits
#include <algorithm>
#include <cstdio>

#include "kimik3/io/config_json.hpp"
#include "kimik3/io/safetensors.hpp"
#include "kimik3/io/safetensors_writer.hpp"
#include "kimik3/kimik3.hpp"
#include "kimik3/text/tokenizer_files.hpp"

namespace {

using namespace kimik3;

void initial(const std::string& folder) {
    const KimiK3<presets::tiny> model(Context<Cpu>(1), 1);
    std::vector<TensorToWrite> tensors;
    for (const ParameterInfo& tensor : model.parameters())
        tensors.push_back(tensor_in_memory(tensor.name, tensor.shape, model.weights().data + tensor.offset));
    write_config_json(folder + "/config.json", presets::tiny);
    write_safetensors(folder + "/model.safetensors", std::move(tensors));
}

void greedy(const std::string& checkpoint, Index count, const std::string& prompt) {
    KimiK3<presets::tiny> model(Context<Cpu>(1));
    const SafetensorsFile file(checkpoint + "/model.safetensors");
    for (const ParameterInfo& tensor : model.parameters())
        file.read(tensor.name, model.weights().data + tensor.offset, tensor.count);
    auto fresh = load_tokenizer(checkpoint + "/tokenizer.json").encode(prompt, Specials::as_text);
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

}  // namespace

int main(int count, char** arguments) {
    const std::vector<std::string> a(arguments, arguments + count);
    try {
        if (count == 3 && a[1] == "config") return std::puts(format_config_json(presets::find(a[2])).c_str()), 0;
        if (count == 3 && a[1] == "initial") return initial(a[2]), 0;
        if (count == 5 && a[1] == "greedy") return greedy(a[2], std::stol(a[3]), a[4]), 0;
        std::fprintf(stderr, "see the first lines of model_logits.cpp\n");
    } catch (const std::exception& error) {
        std::fprintf(stderr, "model_logits: %s\n", error.what());
    }
    return 1;
}
