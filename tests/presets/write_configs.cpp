// write_configs FOLDER: every walked config as FOLDER/<name>.json.
#include "kimik3/io/config_json.hpp"
#include "presets/configs.hpp"

int main(int, char** argv) {
    for (const auto& [name, config] : kimik3::test::walked_configs())
        kimik3::write_config_json(std::string(argv[1]) + "/" + name + ".json", config);
}
