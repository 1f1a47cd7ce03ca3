// libFuzzer target: any text as config.json. What is accepted must survive being written and read again.

#include <cstdlib>
#include <string>

#include "kimik3/io/config_json.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    kimik3::ModelConfig config;
    try {
        config = kimik3::parse_config_json(std::string(reinterpret_cast<const char*>(data), size));
    } catch (const kimik3::Error&) {
        return 0;
    }
    if (!(kimik3::parse_config_json(kimik3::format_config_json(config)) == config)) std::abort();
    return 0;
}
