#include <boost/test/unit_test.hpp>

#include <limits>
#include <nlohmann/json.hpp>
#include <tuple>

#include "io/files.hpp"
#include "kimik3/config/presets.hpp"
#include "kimik3/io/config_json.hpp"

using namespace kimik3;
using namespace kimik3::test;
using Json = nlohmann::json;

namespace {

/// A config that stays legal when any one field changes.
constexpr ModelConfig roomy = [] {
    ModelConfig config = presets::golden;
    config.layer_types = "KKKMM";
    config.kda_implementation = KdaImplementation::chunkwise;
    config.kda_lower_bound = -4.5;
    return config;
}();

Json as_json(const ModelConfig& config) { return Json::parse(format_config_json(config)); }

ModelConfig read(const Json& json) { return parse_config_json(json.dump(2)); }

std::string reading(const Json& json) {
    return refusal([&] { read(json); });
}

void change(int& field) { ++field; }
void change(double& field) { field *= 0.9; }
void change(bool& field) { field = !field; }
void change(DecayGate& field) { field = field == DecayGate::bounded ? DecayGate::softplus : DecayGate::bounded; }
void change(KdaImplementation& field) {
    field = field == KdaImplementation::fused ? KdaImplementation::chunkwise : KdaImplementation::fused;
}
void change(LayerPattern& field) { std::swap(field.letters[1], field.letters[3]); }

/// References to all fields; a field that is added must be added here.
auto fields_of(ModelConfig& config) {
    auto& [a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, b0, b1, b2, b3, b4, b5, b6, b7, b8, b9, c0, c1, c2, c3, c4, c5, c6,
           c7, c8, c9, d0, d1, d2, d3, d4, d5, d6, d7, d8] = config;
    return std::tie(a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, b0, b1, b2, b3, b4, b5, b6, b7, b8, b9, c0, c1, c2, c3, c4,
                    c5, c6, c7, c8, c9, d0, d1, d2, d3, d4, d5, d6, d7, d8);
}

/// base with the field at that position changed to another legal value.
template <std::size_t position>
ModelConfig with_changed_field(ModelConfig base) {
    auto& field = std::get<position>(fields_of(base));
    change(field);
    if (static_cast<void*>(&field) == &base.num_layers) base.layer_types = "KKKMMK";
    if (static_cast<void*>(&field) == &base.kda_chunk_size) base.kda_chunk_size = 64;
    if (static_cast<void*>(&field) == &base.kda_implementation && base.kda_gate == DecayGate::softplus)
        base.kda_gate = DecayGate::bounded;
    return base;
}

void check_every_field_survives(const ModelConfig& base) {
    constexpr std::size_t count = std::tuple_size_v<decltype(fields_of(std::declval<ModelConfig&>()))>;
    BOOST_TEST((parse_config_json(format_config_json(base)) == base));
    [&]<std::size_t... position>(std::index_sequence<position...>) {
        const auto check = [&](std::size_t at, const ModelConfig& changed) {
            BOOST_TEST((changed != base), "field " << at << " did not change");
            BOOST_TEST((parse_config_json(format_config_json(changed)) == changed), "field " << at << " is lost");
        };
        (check(position, with_changed_field<position>(base)), ...);
    }(std::make_index_sequence<count>{});
}

/// A file of the released form: text_config inside, the keys that every Hugging Face config carries, nothing of ours.
Json released() {
    Json text = as_json(roomy);
    text.erase("kimik3");
    text.update(Json::parse(R"({
        "_name_or_path": "", "add_cross_attention": false, "bos_token_id": 163584, "eos_token_id": 163586,
        "pad_token_id": 163839, "id2label": {"0": "LABEL_0"}, "pruned_heads": {}, "temperature": 1.0,
        "auto_map": {"AutoConfig": "configuration_kimi_k3.KimiLinearConfig"}, "transformers_version": "4.56.2",
        "use_grouped_topk": true, "use_cache": true, "rope_theta": 10000.0, "rope_scaling": null,
        "quantization_config": {"format": "mxfp4-pack-quantized"}, "dtype": "bfloat16"})"));
    return {{"architectures", {"KimiK3ForConditionalGeneration"}},
            {"model_type", "kimi_k3"},
            {"text_config", text},
            {"tie_word_embeddings", text.at("tie_word_embeddings")},
            {"vision_config", {{"patch_size", 14}}},
            {"ignore_index", -100},
            {"dtype", "bfloat16"}};
}

}  // namespace

BOOST_AUTO_TEST_SUITE(config_json)

BOOST_AUTO_TEST_CASE(every_field_survives_the_round_trip) {
    check_every_field_survives(roomy);
    ModelConfig off = roomy;
    off.kda_gate = DecayGate::softplus;
    off.attn_res = off.tie_embeddings = off.kda_output_gate = off.mla_output_gate = off.latent_norm = false;
    check_every_field_survives(off);
    for (const presets::Named& preset : presets::all)
        BOOST_TEST((parse_config_json(format_config_json(preset.config)) == preset.config), preset.name);
}

BOOST_AUTO_TEST_CASE(numbers_survive_to_the_last_bit) {
    ModelConfig config = roomy;
    config.rms_norm_eps = 0x1.123456789abcdp-17;
    config.situ_beta = 0.1 + 0.2;
    config.routed_scaling_factor = std::numeric_limits<double>::max();
    config.init_std = std::numeric_limits<double>::denorm_min();
    BOOST_TEST((parse_config_json(format_config_json(config)) == config));
}

BOOST_AUTO_TEST_CASE(the_file_has_the_released_keys) {
    const Json json = as_json(roomy);
    BOOST_TEST(json.at("num_hidden_layers") == 5);
    BOOST_TEST(json.at("hidden_act") == "situ");
    BOOST_TEST(json.at("routed_expert_hidden_size") == roomy.moe_latent_size);
    BOOST_TEST(json.at("model_type") == "kimi_linear");
    BOOST_TEST(json.at("dtype") == "float32");
    BOOST_TEST((Json::parse(format_config_json(roomy, DType::bf16)).at("dtype") == "bfloat16"));
    const Json& linear = json.at("linear_attn_config");
    BOOST_TEST((linear.at("kda_layers") == Json{1, 2, 3}));
    BOOST_TEST((linear.at("full_attn_layers") == Json{4, 5}));
    BOOST_TEST(linear.at("gate_lower_bound") == -4.5);
    KIMIK3_CHECK_REFUSED(format_config_json(roomy, DType::i64), "float64, float32, bfloat16 or float16");
}

BOOST_AUTO_TEST_CASE(the_released_form_is_read) {
    ModelConfig expected = roomy;
    expected.kda_implementation = KdaImplementation::fused;
    BOOST_TEST((read(released()) == expected));
    Json flat = released().at("text_config");
    BOOST_TEST((read(flat) == expected));

    flat["linear_attn_config"].erase("gate_lower_bound");  // the reference's way to say softplus
    flat["attn_res_block_size"] = nullptr;                 // and plain residuals
    expected.kda_gate = DecayGate::softplus;
    expected.kda_lower_bound = ModelConfig{}.kda_lower_bound;
    expected.kda_implementation = KdaImplementation::chunkwise;
    expected.attn_res = false;
    BOOST_TEST((read(flat) == expected));
}

BOOST_AUTO_TEST_CASE(b16_an_unknown_key_is_refused_with_the_nearest) {
    const auto with = [](const char* pointer) {
        Json json = released();
        json[Json::json_pointer(pointer)] = 1;
        return reading(json);
    };
    BOOST_TEST(contains(with("/text_config/hiden_size"), "unknown key 'hiden_size'; did you mean 'hidden_size'?"));
    BOOST_TEST(contains(with("/text_config/linear_attn_config/num_head"),
                        "unknown key 'linear_attn_config.num_head'; did you mean 'linear_attn_config.num_heads'?"));
    BOOST_TEST(contains(with("/text_config/kimik3/kda_chunksize"), "did you mean 'kimik3.kda_chunk_size'?"));
    BOOST_TEST(contains(with("/visionconfig"), "did you mean 'vision_config'?"));
    BOOST_TEST(contains(with("/text_config/allow_neg_eigval"),
                        "unknown key 'allow_neg_eigval'; valid here are vocab_size,"));
    BOOST_TEST(contains(with("/text_config/kimik3/beta"), "valid here are mla_lora_norm_eps, kda_gate_rank,"));
}

BOOST_AUTO_TEST_CASE(b23_an_unknown_word_is_refused_with_the_valid_ones) {
    const auto with = [](const char* pointer, Json value) {
        Json json = released();
        json[Json::json_pointer(pointer)] = std::move(value);
        return reading(json);
    };
    BOOST_TEST(contains(with("/text_config/kimik3/kda_implementation", "fussed"),
                        R"('kimik3.kda_implementation' must be "chunkwise" or "fused", it is "fussed")"));
    BOOST_TEST(contains(with("/text_config/hidden_act", "silu"),
                        R"('hidden_act' must be one of ["situ"], it is "silu")"));
    BOOST_TEST(contains(with("/text_config/dtype", "bf16"), R"(["float32","bfloat16","float16","float64"])"));
    BOOST_TEST(contains(with("/text_config/moe_router_activation_func", "softmax"), R"(one of ["sigmoid"])"));
    BOOST_TEST(contains(with("/text_config/model_type", "kimi_k2"), R"(one of ["kimi_linear"])"));
    BOOST_TEST(contains(with("/model_type", "llama"), R"(one of ["kimi_k3"])"));
    BOOST_TEST(contains(with("/architectures", {"LlamaForCausalLM"}), "KimiK3ForConditionalGeneration"));
}

BOOST_AUTO_TEST_CASE(b23_what_the_architecture_does_not_do_is_refused) {
    const auto with = [](const char* pointer, Json value) {
        Json json = released();
        json[Json::json_pointer(pointer)] = std::move(value);
        return reading(json);
    };
    BOOST_TEST(contains(with("/text_config/mla_use_nope", false), "'mla_use_nope' must be one of [true], it is false"));
    BOOST_TEST(contains(with("/text_config/linear_attn_config/use_full_rank_gate", false), "must be one of [true]"));
    BOOST_TEST(contains(with("/text_config/num_nextn_predict_layers", 1), "must be one of [0], it is 1"));
    BOOST_TEST(contains(with("/text_config/num_expert_group", 2), "must be one of [1], it is 2"));
    BOOST_TEST(contains(with("/text_config/num_key_value_heads", 1), "must be num_attention_heads, 3, it is 1"));
    BOOST_TEST(contains(with("/tie_word_embeddings", false), "must be that of the text_config, true, it is false"));
    BOOST_TEST(contains(with("/text_config/rope_scaling", {{"type", "yarn"}, {"factor", 4.0}}),
                        "'rope_scaling' must be"));
    BOOST_TEST(contains(with("/text_config/rope_scaling", 2), "'rope_scaling' must be"));
    BOOST_TEST(with("/text_config/rope_parameters", {{"rope_theta", 1e4}, {"rope_type", "default"}}) == "accepted");
    BOOST_TEST(contains(with("/text_config/kimik3/gate_lower_bound", -4.0),
                        "'linear_attn_config.gate_lower_bound' and 'kimik3.gate_lower_bound' cannot both be given"));
    BOOST_TEST(contains(with("/text_config/num_experts_per_token", 8), "a token goes to at least one expert"));
    BOOST_TEST(contains(with("/text_config/linear_attn_config/gate_lower_bound", -6.0), "lies in [-5, 0)"));
    BOOST_TEST(contains(with("/text_config/q_lora_rank", nullptr), "'q_lora_rank' must be an integer"));
}

BOOST_AUTO_TEST_CASE(every_key_may_only_be_missing_where_its_absence_means_its_value) {
    const std::vector<std::string_view> optional{"architectures", "moe_layer_freq", "moe_router_activation_func",
                                                 "topk_method", "num_expert_group", "topk_group", "dtype",
                                                 "num_nextn_predict_layers", "num_key_value_heads", "kimik3"};
    const Json whole = as_json(presets::golden);
    for (const char* section : {"", "/linear_attn_config"}) {
        for (const auto& entry : whole.at(Json::json_pointer(section)).items()) {
            Json json = whole;
            json.at(Json::json_pointer(section)).erase(entry.key());
            if (std::ranges::find(optional, entry.key()) != optional.end()) {
                BOOST_TEST((read(json) == presets::golden), entry.key());
            } else if (entry.key() == "attn_res_block_size") {
                BOOST_TEST(!read(json).attn_res);
            } else if (entry.key() == "gate_lower_bound") {
                BOOST_TEST(contains(reading(json), "the fused KDA needs the bounded decay gate"));
            } else {
                BOOST_TEST(contains(reading(json), entry.key()), entry.key());
            }
        }
    }
    for (const auto& entry : whole.at("kimik3").items()) {
        Json json = whole;
        json.at("kimik3").erase(entry.key());
        BOOST_TEST((read(json) == presets::golden), entry.key());
    }
}

BOOST_AUTO_TEST_CASE(a_value_of_another_type_or_size_is_refused_by_its_key) {
    const Json whole = as_json(roomy), numbers = Json::parse(R"([2147483648, -2147483648, 9223372036854775808,
        18446744073709551615, 18446744073709551616, 1e30, 2.5, 3.0])");
    for (const char* section : {"", "/linear_attn_config", "/kimik3"}) {
        for (const auto& entry : whole.at(Json::json_pointer(section)).items()) {
            const auto with = [&](const Json& value) {
                Json json = whole;
                json.at(Json::json_pointer(section)).at(entry.key()) = value;
                return reading(json);
            };
            std::vector<Json> wrong{"text", Json::array({1, 2}), Json::object({{"a", 1}}), Json::array()};
            if (!entry.value().is_boolean()) wrong.insert(wrong.end(), {true, false});
            else wrong.insert(wrong.end(), {0, 1, nullptr});
            if (entry.value().is_number_integer()) wrong.insert(wrong.end(), numbers.begin(), numbers.end());
            for (const Json& value : wrong)
                BOOST_TEST(contains(with(value), entry.key()), entry.key() << " = " << value << ": " << with(value));
        }
    }
}

BOOST_AUTO_TEST_CASE(layers_are_numbered_from_one_and_named_once) {
    const auto with = [](Json kda, Json mla) {
        Json json = as_json(roomy);
        json["linear_attn_config"]["kda_layers"] = std::move(kda);
        json["linear_attn_config"]["full_attn_layers"] = std::move(mla);
        return reading(json);
    };
    BOOST_TEST(with({5, 1, 3}, {4, 2}) == "accepted");
    BOOST_TEST(with({1, 2, 3, 4, 5}, Json::array()) == "accepted");
    BOOST_TEST(contains(with({0, 1, 2}, {3, 4}), "names layer 0, layers are 1 to 5"));
    BOOST_TEST(contains(with({1, 2, 3}, {4, 6}), "names layer 6, layers are 1 to 5"));
    BOOST_TEST(contains(with({1, 2, 3}, {3, 5}), "layer 3 is named twice"));
    BOOST_TEST(contains(with({1, 2, 3}, {4}), "must name each of the 5 layers once, they have 3 and 1 entries"));
    BOOST_TEST(contains(with({1, 2, 3}, {4, 5, 5}), "they have 3 and 3 entries"));
    BOOST_TEST(contains(with({1, 2, "3"}, {4, 5}), "'linear_attn_config.kda_layers' must be an integer"));
    BOOST_TEST(contains(with({1, 2, 3.5}, {4, 5}), "must be an integer"));
    Json huge = as_json(roomy);
    huge["num_hidden_layers"] = 2147483647;
    BOOST_TEST(contains(reading(huge), "each of the 2147483647 layers once"));
    Json deep = as_json(roomy);
    deep["num_hidden_layers"] = 191;
    for (int layer = 6; layer <= 191; ++layer) deep["linear_attn_config"]["kda_layers"].push_back(layer);
    BOOST_TEST(contains(reading(deep), "a model has 1 to 190 layers"));
}

BOOST_AUTO_TEST_CASE(what_is_no_json_object_is_refused) {
    const auto parsing = [](const std::string& text) {
        return refusal([&] { parse_config_json(text); });
    };
    BOOST_TEST(contains(parsing(""), "'config.json' is not valid JSON"));
    BOOST_TEST(contains(parsing("{\"vocab_size\": 5,\n\"hidden_size\" 7}"), "line 2, column 15"));
    BOOST_TEST(contains(parsing("[]"), "must hold a JSON object"));
    BOOST_TEST(contains(parsing("{}"), "'linear_attn_config' must be there as an object"));
    BOOST_TEST(contains(parsing(R"({"text_config": 5})"), "'text_config' must be an object"));
    BOOST_TEST(contains(parsing(R"({"linear_attn_config": {}, "kimik3": []})"), "'kimik3' must be an object"));
    BOOST_TEST(contains(parsing(R"({"vocab_size": 5, "vocab_size": 5})"), "has the key 'vocab_size' twice"));
    BOOST_TEST(contains(parsing(R"({"vocab_size": 5, "vocab\u005fsize": 5})"), "has the key 'vocab_size' twice"));
    BOOST_TEST(contains(parsing("{\"\xff\": 5}"), "is not valid JSON"));
    BOOST_TEST(contains(parsing(R"({"rms_norm_eps": 1e999})"), "is not valid JSON"));
    BOOST_TEST(contains(parsing(R"({"rms_norm_eps": NaN})"), "is not valid JSON"));
    BOOST_TEST(contains(parsing(std::string(100'000, '[')), "nests more than 32 deep"));
    BOOST_TEST(contains(parsing(format_config_json(roomy) + "x"), "is not valid JSON"));
    BOOST_TEST(contains(parsing(format_config_json(roomy) + std::string(1, '\0') + "x"), "has a zero byte"));
}

BOOST_AUTO_TEST_CASE(a_config_file_is_written_whole_and_names_itself_in_errors) {
    const TemporaryFolder folder;
    const std::string path = folder / "config.json";
    write_config_json(path, roomy);
    BOOST_TEST((read_config_json(path) == roomy));
    ModelConfig broken = roomy;
    broken.vocab_size = 0;
    KIMIK3_CHECK_REFUSED(write_config_json(path, broken), "vocab_size = 0");
    BOOST_TEST((read_config_json(path) == roomy));
    Json json = as_json(roomy);
    json["vocab_size"] = 0;
    put(path, json.dump());
    KIMIK3_CHECK_REFUSED(read_config_json(path), path);
    put(path, std::string(std::size_t{1} << 21, ' '));
    KIMIK3_CHECK_REFUSED(read_config_json(path), "has 2097152 bytes, a file of this kind has at most 1048576");
    KIMIK3_CHECK_REFUSED(read_config_json(folder / "."), "is a directory");
}

BOOST_AUTO_TEST_SUITE_END()
