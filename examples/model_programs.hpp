#pragma once
// What the programs ask of a model, free of any model's code. Each preset's code is a file of its
// own (written by CMake), so that presets compile side by side and a change of a command line compiles none of them.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "kimik3/config/presets.hpp"
#include "kimik3/core/dtype.hpp"
#include "program_preset_headers.hpp"

namespace kimik3 {

enum class Device : std::uint8_t { cpu, cuda };

struct TrainArguments {
    std::string preset = "tiny", device = "cpu", dtype;  // dtype left out: f32 on the CPU, bf16 on a GPU
    std::filesystem::path data, out;
    Index steps = 1000, batch = 8, seq = 0, accumulation = 1;  // seq 0: 256, or the model's longest where that is less
    std::string optimizer = "muon", schedule = "cosine";
    double lr = 2e-3, min_lr_ratio = 0.1, weight_decay = 0.1, clip = 1.0, spike_factor = 0.0;
    std::optional<Index> warmup, decay_steps;  // left out: 2 % of the steps, and 20 % for wsd
    std::uint64_t seed = 0;
    bool resume = false, sequential = false, recompute = false, eager = false;
    Index save_every = 500, keep = 2, log_every = 10;
    std::optional<Index> report_every, eval_every, eval_windows;  // left out: 2 % of the steps, 100, 64
    int threads = 0;
    std::string command;  // as it was typed
};

struct CheckpointArguments {
    std::filesystem::path checkpoint, tokenizer;
    std::string device = "cpu", dtype;  // as in training
    bool specials = false;
    int threads = 0;
};

struct GenerateArguments : CheckpointArguments {
    std::vector<std::string> prompts, stop;
    Index max_tokens = 128, context = 0;
    double temperature = 0.8, top_p = 1.0, min_p = 0.0, repetition_penalty = 1.0;
    Index top_k = 0;
    std::uint64_t seed = 0;
    bool ignore_end = false, no_echo = false, quiet = false;
};

struct InspectArguments : CheckpointArguments {
    std::filesystem::path text, out = "inspect.html";
    std::optional<std::string> prompt;
    Index seq = 0, batch = 8, max_tokens = 16384;  // seq as in training
    std::string command;
};

struct EvalArguments : CheckpointArguments {
    std::vector<std::filesystem::path> texts;
    std::filesystem::path choices;
    Index window = 0, stride = 0, batch = 8;  // window as seq in training; stride 0: half of it
    bool json = false;
};

/// The programs of one preset on one device, whose model computes in Number. All throw Error, and return false when
/// they were interrupted.
template <ModelConfig config, Device device, class Number = float>
struct ModelPrograms {
    static bool train(const TrainArguments& arguments);
    static bool generate(const GenerateArguments& arguments);
    static bool inspect(const InspectArguments& arguments);
    static bool evaluate(const EvalArguments& arguments);
};

#define KIMIK3_PROGRAM_PRESET(name)                                    \
    extern template struct ModelPrograms<presets::name, Device::cpu>;  \
    extern template struct ModelPrograms<presets::name, Device::cuda>; \
    extern template struct ModelPrograms<presets::name, Device::cuda, bf16>;
#include "program_presets.inc"
#undef KIMIK3_PROGRAM_PRESET

/// The names of the presets that these programs hold.
inline std::string program_presets() {
    std::string names;
#define KIMIK3_PROGRAM_PRESET(name) names += names.empty() ? #name : ", " #name;
#include "program_presets.inc"
#undef KIMIK3_PROGRAM_PRESET
    return names;
}

/// The preset of that name that these programs hold, or Error with their names.
inline const ModelConfig& program_preset(std::string_view wanted) {
#define KIMIK3_PROGRAM_PRESET(name) \
    if (wanted == #name) return presets::name;
#include "program_presets.inc"
#undef KIMIK3_PROGRAM_PRESET
    fail("the presets of this program are {}; there is none named \"{}\"; CMake's KIMIK3_PROGRAM_PRESETS names them",
         program_presets(), wanted);
}

template <ModelConfig config, class Body>
auto with_device(const std::string& device, const std::string& dtype, Body&& body) {
    if (device == "cpu") {
        require(dtype != "bf16", "--dtype bf16: a model computes in bf16 on a GPU only; the CPU takes f32");
        return body(ModelPrograms<config, Device::cpu>{});
    }
#ifdef KIMIK3_PROGRAMS_HAVE_CUDA
    if (dtype == "f32") return body(ModelPrograms<config, Device::cuda>{});
    return body(ModelPrograms<config, Device::cuda, bf16>{});
#else
    fail("--device {}: this program was built without CUDA; build it where CMake finds the CUDA toolkit's nvcc, with "
         "KIMIK3_CUDA=ON", device);
#endif
}

/// Calls body with ModelPrograms<the preset that the config is, the device, the type that dtype names>; a config that
/// is none of them is an Error, which calls it source, names the nearest preset and, where the path of a config.json is
/// given, says how it becomes one.
template <class Body>
auto with_preset(const ModelConfig& config, const std::string& device, const std::string& dtype,
                 const std::string& source, Body&& body, const std::filesystem::path& config_json = {}) {
#define KIMIK3_PROGRAM_PRESET(name) \
    if (config == presets::name) return with_device<presets::name>(device, dtype, body);
#include "program_presets.inc"
#undef KIMIK3_PROGRAM_PRESET
    std::string advice = "CMake's KIMIK3_PROGRAM_PRESETS names them";
    if (!config_json.empty()) {
        const std::string path = std::filesystem::absolute(config_json).string();
        advice = fmt::format("add to examples/CMakeLists.txt\n    {}\nand build again",
                             presets::add_preset_line("kimik3_programs", path));
    }
    fail("{} is none of the presets that this program was built with ({}); the nearest preset is {}; {}", source,
         program_presets(), presets::nearest(config).name, advice);
}

}  // namespace kimik3
