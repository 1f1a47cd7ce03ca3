// Every preset that CMake made is the config that its file was written from, and none is missing.
#include <cstdio>

#include "presets.hpp"
#include "presets/configs.hpp"

int main() {
    auto expected = kimik3::test::walked_configs();
    int wrong = 0;
    const auto check = [&](const char* name, const kimik3::ModelConfig& preset) {
        const auto found = expected.find(name);
        if (found == expected.end() || !(found->second == preset)) std::printf("%s is another config\n", name), ++wrong;
        else expected.erase(found);
    };
#define PRESET(name) check(#name, kimik3::presets::name);
#include "presets.inc"
    for (const auto& missing : expected) std::printf("%s is missing\n", missing.first.c_str()), ++wrong;
    return wrong;
}
