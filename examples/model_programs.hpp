#pragma once
// What kimik3-train and kimik3-generate ask of a model, free of any model's code. Each preset's code is one file of presets/,
// so that presets compile side by side and a change of a command line compiles none of them.

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "kimik3/config/presets.hpp"

namespace kimik3 {

struct TrainArguments {
    std::string preset = "tiny";
    std::filesystem::path data, out;
    Index steps = 1000, batch = 8, seq = 0, accumulation = 1;  // seq 0: 256, or the model's longest where that is less
    std::string optimizer = "muon", schedule = "cosine";
    double lr = 2e-3, min_lr_ratio = 0.1, weight_decay = 0.1, clip = 1.0, spike_factor = 0.0;
    std::optional<Index> warmup;  // left out: 2 % of the steps
    Index decay_steps = 0;
    std::uint64_t seed = 0;
    bool resume = false, sequential = false, recompute = false;
    Index eval_every = 100, eval_windows = 64, save_every = 500, keep = 2, log_every = 10;
    int threads = 0;
};

struct GenerateArguments {
    std::filesystem::path checkpoint, tokenizer;
    std::vector<std::string> prompts, stop;
    Index max_tokens = 128, context = 0;
    double temperature = 0.8, top_p = 1.0, min_p = 0.0, repetition_penalty = 1.0;
    Index top_k = 0;
    std::uint64_t seed = 0;
    bool ignore_end = false, specials = false, no_echo = false, quiet = false;
    int threads = 0;
};

/// The programs of one preset. Both throw Error; train returns false when it was interrupted.
template <ModelConfig config>
struct ModelPrograms {
    static bool train(const TrainArguments& arguments);
    static void generate(const GenerateArguments& arguments);
};

extern template struct ModelPrograms<presets::golden>;
extern template struct ModelPrograms<presets::tiny>;
extern template struct ModelPrograms<presets::small>;
extern template struct ModelPrograms<presets::k3_300m>;

/// Calls body with ModelPrograms<the preset that the config is>; a config that is none of them is an Error.
template <class Body>
auto with_preset(const ModelConfig& config, Body&& body) {
    if (config == presets::golden) return body(ModelPrograms<presets::golden>{});
    if (config == presets::tiny) return body(ModelPrograms<presets::tiny>{});
    if (config == presets::small) return body(ModelPrograms<presets::small>{});
    if (config == presets::k3_300m) return body(ModelPrograms<presets::k3_300m>{});
    fail("this program holds the presets golden, tiny, small and k3_300m; the model of the checkpoint is none of them");
}

}  // namespace kimik3
