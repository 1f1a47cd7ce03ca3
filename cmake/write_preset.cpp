// write_preset CONFIG_JSON NAME HEADER, for kimik3_add_preset: reads the config as a program would and writes it as the
// preset NAME. A header that is there and the same is left alone, so that nothing is compiled again.
#include <cstdio>

#include "kimik3/config/preset_code.hpp"
#include "kimik3/config/presets.hpp"
#include "kimik3/io/config_json.hpp"

namespace {

void write_preset(const std::string& config, const std::string& name, const std::filesystem::path& header) {
    for (const kimik3::presets::Named& preset : kimik3::presets::all)
        kimik3::require(preset.name != name, "'{}': kimik3 has a preset '{}' already; give another by NAME", config,
                        name);
    const std::string code = kimik3::format_preset(kimik3::read_config_json(config), name, config);
    constexpr kimik3::Index limit_bytes = 1 << 20;
    if (std::filesystem::exists(header) && kimik3::read_text_file(header.string(), limit_bytes) == code) return;
    kimik3::write_text_file(header, code);
}

}  // namespace

int main(int argc, char** argv) {
    try {
        kimik3::require(argc == 4, "write_preset CONFIG_JSON NAME HEADER");
        write_preset(argv[1], argv[2], argv[3]);
        return 0;
    } catch (const std::exception& problem) {
        std::fprintf(stderr, "%s\n", problem.what());
        return 1;
    }
}
