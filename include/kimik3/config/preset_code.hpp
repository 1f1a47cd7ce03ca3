#pragma once
// A ModelConfig as code: the header that kimik3_add_preset (cmake/kimik3AddPreset.cmake) makes of a config.json. It
// names every field, and its static_assert says the sentence of a rule that a later kimik3 adds.

#include <fmt/format.h>

#include <string>

#include "kimik3/config/config_fields.hpp"
#include "kimik3/config/invariants.hpp"

namespace kimik3 {
namespace detail {

inline std::string code_of(DecayGate value) { return "DecayGate::" + shown(value); }
inline std::string code_of(KdaImplementation value) { return "KdaImplementation::" + shown(value); }
inline std::string code_of(Activation value) { return "Activation::" + shown(value); }
inline std::string code_of(const LayerPattern& value) { return "\"" + shown(value) + "\""; }
template <class Number>
std::string code_of(Number value) {
    return shown(value);  // the shortest form that reads back as the same number
}

}  // namespace detail

/// The text of a header that defines presets::name; source says where the config comes from. The config keeps the
/// invariants.
inline std::string format_preset(const ModelConfig& config, std::string_view name, std::string_view source) {
    check_invariants(config);
    std::string fields;
    visit_fields(config, [&](std::string_view field, const auto& value) {
        fields += fmt::format("    .{} = {},\n", field, detail::code_of(value));
    });
    return fmt::format("#pragma once\n// Written by kimik3_add_preset from {0}: change that, not this.\n\n"
                       "#include <kimik3/config/invariants.hpp>\n\nnamespace kimik3::presets {{\n\n"
                       "inline constexpr ModelConfig {1}{{\n{2}}};\nstatic_assert(valid<{1}>);\n\n"
                       "}}  // namespace kimik3::presets\n", source, name, fields);
}

}  // namespace kimik3
