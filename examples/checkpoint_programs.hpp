#pragma once
// What the command lines of programs that open a checkpoint share.

#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>

#include "command_line.hpp"
#include "kimik3/io/checkpoint_files.hpp"
#include "kimik3/io/config_json.hpp"
#include "model_programs.hpp"

namespace kimik3 {

inline void describe_checkpoint(CLI::App& app, CheckpointArguments& a) {
    app.add_option("--checkpoint", a.checkpoint, "A checkpoint folder, or a run's folder, of which the newest is taken")
        ->required();
    app.add_option("--tokenizer", a.tokenizer,
                   "tokenizer.json or another tokenizer file, also a GGUF file, or bytes [tokenizer.json of the\n"
                   "checkpoint]");
}

inline void describe_run(CLI::App& app, CheckpointArguments& a) {
    app.add_option("--threads", a.threads, "Threads of the CPU; 0: one a processor")->check(zero_or_above());
}

/// The text of a file, or of standard input where the path is -; option names it in messages.
inline std::string read_input(const std::string& path, const std::string& option) {
    if (path == "-") {
        const std::string text{std::istreambuf_iterator<char>(std::cin), {}};
        require(std::ferror(stdin) == 0, "{}: standard input cannot be read", option);
        return text;
    }
    std::ifstream file(path, std::ios::binary);
    require(file.is_open() && !std::filesystem::is_directory(path), "{}: '{}' cannot be read", option, path);
    return {std::istreambuf_iterator<char>(file), {}};
}

/// Parses the command line and calls body with the programs of the checkpoint's preset; returns the exit code.
template <class Body>
int run_on_checkpoint(CLI::App& app, int argc, char** argv, const CheckpointArguments& a, Body&& body) {
    return run_program(app, argc, argv, [&] {
        const std::string config = (find_checkpoint(a.checkpoint) / "config.json").string();
        const std::string source = "the model of '" + config + "'";
        return with_preset(read_config_json(config), a.device, a.dtype, source, body, config);
    });
}

}  // namespace kimik3
