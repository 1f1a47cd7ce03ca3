#include <boost/test/unit_test.hpp>

#include <limits>
#include <nlohmann/json.hpp>

#include "io/files.hpp"
#include "kimik3/io/config_json.hpp"
#include "support/config_walk.hpp"

using namespace kimik3;
using namespace kimik3::test;
using Json = nlohmann::json;

namespace {

Json as_json(const ModelConfig& config) { return Json::parse(format_config_json(config)); }

ModelConfig read(const Json& json) { return parse_config_json(json.dump(2)); }

std::string reading(const Json& json) {
    return refusal([&] { read(json); });
}

void check_every_field_survives(const ModelConfig& base) {
    BOOST_TEST((parse_config_json(format_config_json(base)) == base));
    for (const auto& [name, changed] : changed_configs(base)) {
        BOOST_TEST((changed != base), name << " did not change");
        BOOST_TEST((parse_config_json(format_config_json(changed)) == changed), name << " is lost");
    }
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
    check_every_field_survives(roomy_linear);
    for (const ModelConfig& base : {roomy, roomy_linear})
        for (const auto& [name, changed] : changed_configs(base)) check_every_field_survives(changed);
    for (const presets::Named& preset : presets::all)
        BOOST_TEST((parse_config_json(format_config_json(preset.config)) == preset.config), preset.name);
}

BOOST_AUTO_TEST_CASE(the_walk_over_the_fields_leaves_none_out) {
    std::vector<const void*> visited;
    visit_fields(roomy, [&](std::string_view, const auto& field) { visited.push_back(&field); });
    BOOST_TEST((visited == field_addresses(roomy)));
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

BOOST_AUTO_TEST_CASE(a_file_of_kimi_linear_is_read) {
    const Json file = Json::parse(R"({
        "architectures": ["KimiLinearForCausalLM"], "auto_map": {}, "bos_token_id": 163584, "dtype": "bfloat16",
        "eos_token_id": 163586, "first_k_dense_replace": 1, "head_dim": 72, "hidden_act": "silu", "hidden_size": 2304,
        "initializer_range": 0.02, "intermediate_size": 9216, "kv_lora_rank": 512, "linear_attn_config": {
        "full_attn_layers": [4, 8, 12, 16, 20, 24, 27], "head_dim": 128, "kda_layers": [1, 2, 3, 5, 6, 7, 9, 10, 11, 13,
        14, 15, 17, 18, 19, 21, 22, 23, 25, 26], "num_heads": 32, "short_conv_kernel_size": 4}, "mla_use_nope": true,
        "model_max_length": 1048576, "model_type": "kimi_linear", "moe_intermediate_size": 1024, "moe_layer_freq": 1,
        "moe_renormalize": true, "moe_router_activation_func": "sigmoid", "num_attention_heads": 32,
        "num_expert_group": 1, "num_experts": 256, "num_experts_per_token": 8, "num_hidden_layers": 27,
        "num_key_value_heads": 32, "num_nextn_predict_layers": 0, "num_shared_experts": 1, "pad_token_id": 163839,
        "q_lora_rank": null, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-05,
        "rope_scaling": null, "rope_theta": 10000.0, "routed_scaling_factor": 2.446, "tie_word_embeddings": false,
        "topk_group": 1, "transformers_version": "4.56.2", "use_cache": true, "use_grouped_topk": true,
        "v_head_dim": 128, "vocab_size": 163840})");
    BOOST_TEST((read(file) == presets::kimi_linear_48b));
    for (const char* key : {"hidden_act", "model_max_length", "num_experts"}) {
        Json less = file;
        less.erase(key);
        BOOST_TEST(reading(less) != "accepted", key);
    }
    Json situ = file;
    situ["hidden_act"] = "situ";  // then its betas are needed
    BOOST_TEST(contains(reading(situ), "has no 'activation_situ_beta'"));
    Json latent = file;
    latent["routed_expert_hidden_size"] = 1024;
    BOOST_TEST(contains(reading(latent), "has no 'latent_moe_use_norm'"));
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
    BOOST_TEST(contains(with("/text_config/hidden_act", "gelu"),
                        R"('hidden_act' must be "situ" or "silu", it is "gelu")"));
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
    BOOST_TEST(contains(with("/text_config/kimik3/kda_output_gate_rank", 8),
                        "use_full_rank_gate' is true, which contradicts 'kimik3.kda_output_gate_rank', 8"));
    BOOST_TEST(contains(with("/text_config/model_max_length", 64),
                        "'model_max_length' must be max_position_embeddings, 128, it is 64"));
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
    BOOST_TEST(contains(with("/text_config/kv_lora_rank", nullptr), "'kv_lora_rank' must be an integer"));
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
            } else if (entry.key() == "mla_use_output_gate") {
                BOOST_TEST(!read(json).mla_output_gate);
            } else if (entry.key() == "q_lora_rank") {
                BOOST_TEST(read(json).q_lora_rank == 0);
            } else if (entry.key() == "routed_expert_hidden_size") {
                BOOST_TEST(read(json).moe_latent_size == 0);
            } else if (entry.key() == "initializer_range") {
                BOOST_TEST(read(json).init_std == 0.02);
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
    BOOST_TEST(contains(parsing(std::string(100'000, '[')), "nests more than 64 deep"));
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
