#pragma once
// The configs that go through kimik3_add_preset: two that differ in every mechanism, each of their fields changed once,
// and numbers that take all their digits.

#include <map>
#include <string>

#include "support/config_walk.hpp"

namespace kimik3::test {

inline std::map<std::string, ModelConfig> walked_configs() {
    std::map<std::string, ModelConfig> all{{"roomy", roomy}, {"linear", roomy_linear}};
    for (const auto& [name, config] : changed_configs(roomy)) all.emplace("roomy_" + std::string(name), config);
    for (const auto& [name, config] : changed_configs(roomy_linear)) all.emplace("linear_" + std::string(name), config);
    ModelConfig& digits = all["digits"] = roomy;
    digits.rms_norm_eps = 0x1.123456789abcdp-17;
    digits.situ_beta = 0.1 + 0.2;
    digits.routed_scaling_factor = (std::numeric_limits<double>::max)();
    digits.init_std = (std::numeric_limits<double>::denorm_min)();
    return all;
}

}  // namespace kimik3::test
