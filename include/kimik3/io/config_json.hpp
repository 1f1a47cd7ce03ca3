#pragma once
// ModelConfig as config.json with the keys of the released K3 (io/config_keys.hpp); fields of ours that K3 has no key
// for stand in one object "kimik3". Reads the whole file with its "text_config" as well as the text config alone, which
// is what it writes, and the files of Kimi Linear. Nothing is guessed: a missing key, an unknown one, a value of
// another type or out of range and two keys that contradict each other are errors that name the key; only keys whose
// absence has a meaning to the reference may be missing. What was read keeps the rules of config/invariants.hpp.

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "kimik3/config/invariants.hpp"
#include "kimik3/core/atomic_file.hpp"
#include "kimik3/core/dtype.hpp"
#include "kimik3/io/config_keys.hpp"
#include "kimik3/io/input_file.hpp"
#include "kimik3/io/nearest_name.hpp"
#include "kimik3/text/json_object.hpp"

namespace kimik3 {

namespace detail {
inline std::string format_config(const ModelConfig& config, std::string_view dtype);
inline ModelConfig parse_config(const std::string& text, const std::string& source);
}  // namespace detail

/// The text of a config.json; dtype is the number format of the weights beside it.
inline std::string format_config_json(const ModelConfig& config, DType dtype = DType::f32) {
    check_invariants(config);
    switch (dtype) {
        case DType::f64: return detail::format_config(config, "float64");
        case DType::f32: return detail::format_config(config, "float32");
        case DType::bf16: return detail::format_config(config, "bfloat16");
        case DType::f16: return detail::format_config(config, "float16");
        default: fail("the weights of a model are float64, float32, bfloat16 or float16");
    }
}

/// The config in the text of a config.json; source is what messages call it.
inline ModelConfig parse_config_json(const std::string& text, const std::string& source = "config.json") {
    const ModelConfig config = detail::parse_config(text, source);
    try {
        check_invariants(config);
    } catch (const Error& broken) {
        fail("'{}': {}", source, broken.what());
    }
    return config;
}

inline ModelConfig read_config_json(const std::string& path) {
    constexpr Index limit_bytes = Index{1} << 20;
    return parse_config_json(read_text_file(path, limit_bytes), path);
}

inline void write_config_json(const std::string& path, const ModelConfig& config, DType dtype = DType::f32) {
    write_text_file(path, format_config_json(config, dtype));
}

namespace detail {

inline std::vector<std::string_view> known_keys(ConfigSection section);

/// Takes a config out of the parsed file.
class ConfigReader {
public:
    ConfigReader(const nlohmann::json& file, const std::string& source) : source_(source) {
        require(file.is_object(), "'{}' must hold a JSON object", source_);
        const bool has_outer = file.contains("text_config");
        outer_ = has_outer ? &file : nullptr;
        text_ = has_outer ? &file.at("text_config") : &file;
        require(text_->is_object(), "'{}': 'text_config' must be an object", source_);
        linear_ = text_->contains("linear_attn_config") ? &text_->at("linear_attn_config") : nullptr;
        require(linear_ != nullptr && linear_->is_object(), "'{}': 'linear_attn_config' must be there as an object",
                source_);
        ours_ = text_->contains("kimik3") ? &text_->at("kimik3") : nullptr;
        require(ours_ == nullptr || ours_->is_object(), "'{}': 'kimik3' must be an object", source_);
    }

    ModelConfig read() const {
        using enum ConfigSection;
        for (ConfigSection section : {outer, text, linear, ours}) check_keys(section);
        for (const ChoiceKey& choice : choice_keys) check_choice(choice);
        ModelConfig config;
        visit_switched_fields(config, [&](ConfigSection section, std::string_view key, bool& on, auto& number) {
            const nlohmann::json* value = find(section, key);
            on = value != nullptr && !value->is_null();
            if (on) take(section, key, *value, number);
            const nlohmann::json* kept = find(ours, key);
            require(!on || kept == nullptr, "'{}': '{}' and '{}' cannot both be given", source_, shown(section, key),
                    shown(ours, key));
            if (kept != nullptr) take(ours, key, *kept, number);
        });
        config.kda_implementation =
            config.kda_gate == DecayGate::bounded ? config.kda_implementation : KdaImplementation::chunkwise;
        config.mla_output_gate = false;  // without its key
        visit_config_fields(config, [&](ConfigSection section, std::string_view key, auto& field) {
            const nlohmann::json* value = find(section, key);
            require(value != nullptr || may_be_missing(section, key), "'{}' has no '{}'", source_,
                    shown(section, key));
            if (value != nullptr) take(section, key, *value, field);
        });
        visit_nullable_fields(config, [&](ConfigSection section, std::string_view key, int& number) {
            const nlohmann::json* value = find(section, key);
            if (value != nullptr && !value->is_null()) take(section, key, *value, number);
        });
        if (find(ours, "kda_gate_rank") == nullptr) config.kda_gate_rank = config.kda_head_dim;  // K3's rule
        read_output_gate(config);
        read_length(config);
        config.layer_types = read_layers(config.num_layers);
        check_agreement(config);
        return config;
    }

private:
    const nlohmann::json* object(ConfigSection section) const {
        switch (section) {
            case ConfigSection::outer: return outer_;
            case ConfigSection::text: return text_;
            case ConfigSection::linear: return linear_;
            default: return ours_;
        }
    }

    const nlohmann::json* find(ConfigSection section, std::string_view key) const {
        if (object(section) == nullptr) return nullptr;
        const auto found = object(section)->find(std::string(key));
        return found != object(section)->end() ? &*found : nullptr;
    }

    /// Keys whose absence means something to the reference: ours, a switch that is off, a default, or a key that says
    /// nothing about this model.
    bool may_be_missing(ConfigSection section, std::string_view key) const {
        using enum ConfigSection;
        const auto is_null = [](const nlohmann::json* value) { return value == nullptr || value->is_null(); };
        const nlohmann::json* activation = find(text, "hidden_act");
        if (section == ours || key == "mla_use_output_gate" || key == "initializer_range") return true;
        if (key == "max_position_embeddings") return find(text, "model_max_length") != nullptr;
        if (key == "latent_moe_use_norm") return is_null(find(text, "routed_expert_hidden_size"));
        return key.starts_with("activation_situ_") && activation != nullptr && *activation == name_of(Activation::silu);
    }

    static std::string shown(ConfigSection section, std::string_view key) {
        const std::string_view name = section_name(section);
        return name.empty() ? std::string(key) : fmt::format("{}.{}", name, key);
    }

    [[noreturn]] void refuse(ConfigSection section, std::string_view key, const nlohmann::json& value,
                             std::string_view rule) const {
        fail("'{}': '{}' must be {}, it is {}", source_, shown(section, key), rule, shown_name(value.dump()));
    }

    void take(ConfigSection section, std::string_view key, const nlohmann::json& value, int& field) const {
        constexpr Index limit = (std::numeric_limits<int>::max)();
        // A number above 2^63 - 1 would wrap to a negative Index.
        const bool fits = value.is_number_integer() && value.get<Index>() >= -limit && value.get<Index>() <= limit &&
                          (!value.is_number_unsigned() || value.get<std::uint64_t>() <= limit);
        if (!fits) refuse(section, key, value, "an integer below 2^31");
        field = value.get<int>();
    }

    void take(ConfigSection section, std::string_view key, const nlohmann::json& value, double& field) const {
        if (!value.is_number()) refuse(section, key, value, "a number");
        field = value.get<double>();
    }

    void take(ConfigSection section, std::string_view key, const nlohmann::json& value, bool& field) const {
        if (!value.is_boolean()) refuse(section, key, value, "true or false");
        field = value.get<bool>();
    }

    template <class Enum>
        requires std::is_enum_v<Enum>
    void take(ConfigSection section, std::string_view key, const nlohmann::json& value, Enum& field) const {
        std::string valid;
        for (int each = 0; !name_of(static_cast<Enum>(each)).empty(); ++each) {
            const std::string_view name = name_of(static_cast<Enum>(each));
            if (value == name) {
                field = static_cast<Enum>(each);
                return;
            }
            valid += fmt::format("{}\"{}\"", valid.empty() ? "" : " or ", name);
        }
        refuse(section, key, value, valid);
    }

    /// Every key of the section must be known.
    void check_keys(ConfigSection section) const {
        if (object(section) == nullptr) return;
        const std::vector<std::string_view> known = known_keys(section);
        for (const auto& entry : object(section)->items()) {
            if (std::ranges::find(known, std::string_view(entry.key())) != known.end()) continue;
            const std::string_view nearest = nearest_name(entry.key(), known);
            require(nearest.empty(), "'{}': unknown key '{}'; did you mean '{}'?", source_,
                    shown(section, shown_name(entry.key())), shown(section, nearest));
            fail("'{}': unknown key '{}'; valid here are {}", source_, shown(section, shown_name(entry.key())),
                 fmt::join(known, ", "));
        }
    }

    void check_choice(const ChoiceKey& choice) const {
        const nlohmann::json* value = find(choice.section, choice.key);
        require(value != nullptr || !choice.required, "'{}' has no '{}'", source_, shown(choice.section, choice.key));
        if (value == nullptr) return;
        const auto valid = nlohmann::json::parse(choice.valid);
        if (std::ranges::find(valid, *value) == valid.end())
            refuse(choice.section, choice.key, *value, "one of " + valid.dump());
    }

    /// use_full_rank_gate: off where it is missing; then the rank is ours, or the head size as in Kimi Linear.
    void read_output_gate(ModelConfig& config) const {
        using enum ConfigSection;
        bool full = false;
        if (const nlohmann::json* value = find(linear, "use_full_rank_gate"))
            take(linear, "use_full_rank_gate", *value, full);
        if (find(ours, "kda_output_gate_rank") == nullptr)
            config.kda_output_gate_rank = full ? 0 : config.kda_head_dim;
        require(full == (config.kda_output_gate_rank == 0),
                "'{}': '{}' is {}, which contradicts '{}', {} (0 is full rank)", source_,
                shown(linear, "use_full_rank_gate"), full, shown(ours, "kda_output_gate_rank"),
                config.kda_output_gate_rank);
    }

    /// Kimi Linear calls max_position_embeddings model_max_length.
    void read_length(ModelConfig& config) const {
        using enum ConfigSection;
        const nlohmann::json* value = find(text, "model_max_length");
        if (value == nullptr) return;
        int length = 0;
        take(text, "model_max_length", *value, length);
        if (find(text, "max_position_embeddings") == nullptr) config.max_seq_len = length;
        if (length != config.max_seq_len)
            refuse(text, "model_max_length", *value,
                   fmt::format("max_position_embeddings, {}", config.max_seq_len));
    }

    /// The schedule from the two lists of layer numbers, which count from 1.
    LayerPattern read_layers(Index num_layers) const {
        const auto& kda = layer_list("kda_layers");
        const auto& mla = layer_list("full_attn_layers");
        require(static_cast<Index>(kda.size() + mla.size()) == num_layers,
                "'{}': kda_layers and full_attn_layers must name each of the {} layers once, they have {} and {} "
                "entries", source_, num_layers, kda.size(), mla.size());
        std::string letters(kda.size() + mla.size(), ' ');
        const auto place = [&](std::string_view key, const nlohmann::json& list, char letter) {
            for (const auto& entry : list) {
                int layer = 0;
                take(ConfigSection::linear, key, entry, layer);
                require(layer >= 1 && layer <= num_layers, "'{}': '{}' names layer {}, layers are 1 to {}", source_,
                        shown(ConfigSection::linear, key), layer, num_layers);
                require(letters[to_size(layer - 1)] == ' ', "'{}': layer {} is named twice in kda_layers and "
                        "full_attn_layers", source_, layer);
                letters[to_size(layer - 1)] = letter;
            }
        };
        place("kda_layers", kda, 'K');
        place("full_attn_layers", mla, 'M');
        return LayerPattern(std::string_view(letters));
    }

    const nlohmann::json& layer_list(std::string_view key) const {
        const nlohmann::json* list = find(ConfigSection::linear, key);
        require(list != nullptr, "'{}' has no '{}'", source_, shown(ConfigSection::linear, key));
        if (!list->is_array()) refuse(ConfigSection::linear, key, *list, "a list of layer numbers");
        return *list;
    }

    /// Rules between keys.
    void check_agreement(const ModelConfig& config) const {
        using enum ConfigSection;
        if (const nlohmann::json* value = find(text, "num_key_value_heads")) {
            int heads = 0;
            take(text, "num_key_value_heads", *value, heads);
            if (heads != config.mla_heads)
                refuse(text, "num_key_value_heads", *value, fmt::format("num_attention_heads, {}", config.mla_heads));
        }
        const nlohmann::json* tied = find(outer, "tie_word_embeddings");
        if (tied != nullptr && *tied != config.tie_embeddings)
            refuse(outer, "tie_word_embeddings", *tied,
                   fmt::format("that of the text_config, {}", config.tie_embeddings));
        for (const char* key : {"rope_scaling", "rope_parameters"}) {
            const nlohmann::json* rope = find(text, key);
            if (rope == nullptr || rope->is_null()) continue;
            for (const auto& entry : rope->items())
                if (entry.key() != "rope_theta" && entry.value() != "default")
                    refuse(text, key, *rope, "null or of the type \"default\": nothing is rotated or scaled");
        }
    }

    const std::string& source_;
    const nlohmann::json *outer_ = nullptr, *text_ = nullptr, *linear_ = nullptr, *ours_ = nullptr;
};

/// The valid keys of a section, those with a field first.
inline std::vector<std::string_view> known_keys(ConfigSection section) {
    std::vector<std::string_view> keys;
    const auto add = [&](ConfigSection of, std::string_view key) {
        if (of == section) keys.push_back(key);
    };
    ModelConfig any;
    visit_config_fields(any, [&](ConfigSection of, std::string_view key, auto&) { add(of, key); });
    visit_nullable_fields(any, [&](ConfigSection of, std::string_view key, int&) { add(of, key); });
    visit_switched_fields(any, [&](ConfigSection of, std::string_view key, bool&, auto&) {
        add(of, key);
        add(ConfigSection::ours, key);
    });
    for (const ChoiceKey& choice : choice_keys) add(choice.section, choice.key);
    for (std::string_view key : {"kda_layers", "full_attn_layers", "use_full_rank_gate"})
        add(ConfigSection::linear, key);
    for (std::string_view key : {"linear_attn_config", "kimik3"}) add(ConfigSection::text, key);
    for (std::string_view key : {"text_config", "tie_word_embeddings"}) add(ConfigSection::outer, key);
    for (std::string_view key : ruled_text_keys) add(ConfigSection::text, key);
    for (std::string_view key : ignored_text_keys) add(ConfigSection::text, key);
    for (std::string_view key : ignored_outer_keys) add(ConfigSection::outer, key);
    return keys;
}

inline ModelConfig parse_config(const std::string& text, const std::string& source) {
    const nlohmann::json file = parse_json(text, "'" + source + "'");
    return ConfigReader(file, source).read();
}

inline std::string format_config(const ModelConfig& config, std::string_view dtype) {
    using nlohmann::ordered_json;
    ordered_json text, linear, ours;
    const auto object = [&](ConfigSection section) -> ordered_json& {
        return section == ConfigSection::linear ? linear : section == ConfigSection::ours ? ours : text;
    };
    for (const ChoiceKey& choice : choice_keys)
        if (choice.written) object(choice.section)[std::string(choice.key)] = ordered_json::parse(choice.valid).front();
    text["dtype"] = dtype;
    visit_config_fields(config, [&](ConfigSection section, std::string_view key, const auto& field) {
        ordered_json& value = object(section)[std::string(key)];
        if constexpr (std::is_enum_v<std::remove_cvref_t<decltype(field)>>) value = name_of(field);
        else value = field;
    });
    visit_nullable_fields(config, [&](ConfigSection section, std::string_view key, int number) {
        object(section)[std::string(key)] = number == 0 ? ordered_json() : ordered_json(number);
    });
    visit_switched_fields(config, [&](ConfigSection section, std::string_view key, bool on, const auto& number) {
        object(section)[std::string(key)] = nullptr;
        object(on ? section : ConfigSection::ours)[std::string(key)] = number;
    });
    linear["use_full_rank_gate"] = config.kda_output_gate_rank == 0;
    text["num_key_value_heads"] = config.mla_heads;
    linear["kda_layers"] = linear["full_attn_layers"] = ordered_json::array();
    for (int layer = 0; layer < config.num_layers; ++layer)
        linear[config.layer_types[layer] == 'K' ? "kda_layers" : "full_attn_layers"].push_back(layer + 1);
    text["linear_attn_config"] = std::move(linear);
    text["kimik3"] = std::move(ours);
    return text.dump(2) + "\n";
}

}  // namespace detail

}  // namespace kimik3
