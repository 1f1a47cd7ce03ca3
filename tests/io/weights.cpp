// Weights as other tools write and read them: formats, shards, prefixes, packed experts, padding, heads.
#include <boost/test/unit_test.hpp>

#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>

#include "io/files.hpp"
#include "support/file_size_limit.hpp"
#include "support/stored_model.hpp"

namespace fs = std::filesystem;
using namespace kimik3;
using namespace kimik3::test;

namespace {

constexpr ModelConfig tied = presets::golden;
constexpr ModelConfig untied = [] {
    ModelConfig c = tied;
    c.tie_embeddings = false;
    return c;
}();
constexpr ModelConfig packable = [] {
    ModelConfig c = tied;
    c.moe_latent_size = 32, c.moe_intermediate_size = 64, c.num_layers = 2, c.layer_types = "KM";
    return c;
}();

template <ModelConfig config, class T = float>
Stored<config, T> model_of(std::uint64_t seed) {
    return Stored<config, T>(seed);
}

template <class Model>
std::vector<typename Model::A> values(const Model& model) {
    return {model.weights().begin(), model.weights().end()};
}

/// The tensors of a model as a file would hold them, to be changed and written.
template <class Model>
std::map<std::string, TensorToWrite> tensors_of(const Model& model, const std::string& prefix = "") {
    std::map<std::string, TensorToWrite> all;
    for (const ParameterInfo& tensor : model.parameters())
        all[tensor.name] =
            tensor_in_memory(prefix + tensor.name, tensor.shape, model.weights().data + tensor.offset);
    return all;
}

void write(const std::string& path, const std::map<std::string, TensorToWrite>& tensors) {
    std::vector<TensorToWrite> list;
    for (const auto& entry : tensors) list.push_back(entry.second);
    write_safetensors(path, std::move(list));
}

template <class Model>
std::span<float> tensor_of(Model& model, std::string_view name) {
    for (const ParameterInfo& tensor : model.parameters())
        if (tensor.name == name) return {model.weights().data + tensor.offset, to_size(tensor.count)};
    fail("no parameter {}", name);
}

float as_stored(float value, DType dtype) {
    return dtype == DType::bf16 ? float{bf16(value)} : dtype == DType::f16 ? float{f16(value)} : value;
}

/// A sharded checkpoint of a model in folder/x.
struct Sharded {
    TemporaryFolder folder;
    fs::path path{folder / "x"};
    Stored<tied, float> source = model_of<tied>(1), target = model_of<tied>(2);

    Sharded() { write_weights(path, source, {.max_shard_bytes = 100000}); }

    nlohmann::json index() const { return nlohmann::json::parse(get((path / index_file).string())); }
    std::string file_of(const std::string& name) const { return index().at("weight_map").at(name); }

    /// Applies a change to the index and reads the folder.
    void refused(const std::function<void(nlohmann::json&)>& change, std::initializer_list<std::string_view> parts) {
        const std::string before = get((path / index_file).string());
        nlohmann::json changed = index();
        change(changed);
        put((path / index_file).string(), changed.dump());
        refused(parts);
        put((path / index_file).string(), before);
    }
    void refused(std::initializer_list<std::string_view> parts) {
        const std::vector<float> before = values(target);
        const std::string said = refusal([&] { load_model(path, target); });
        for (std::string_view part : parts) BOOST_TEST(contains(said, part), "'" << part << "' is not in: " << said);
        BOOST_TEST((values(target) == before));
    }
};

}  // namespace

BOOST_AUTO_TEST_SUITE(weights)

BOOST_AUTO_TEST_CASE(every_format_comes_back_in_one_file_and_in_many) {
    const TemporaryFolder folder;
    const auto source = model_of<tied>(1);
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
        for (const std::string prefix : {"", "language_model."}) {
            for (const Index limit : {Index{1} << 40, Index{40000}, Index{1}}) {
                const fs::path path = folder / "x";
                write_weights(path, source, {.dtype = dtype, .prefix = prefix, .max_shard_bytes = limit});
                BOOST_TEST(fs::exists(path / weights_file) == (limit > 40000));
                BOOST_TEST(fs::exists(path / index_file) == (limit <= 40000));
                BOOST_TEST(find_checkpoint(path) == path);
                auto loaded = model_of<tied>(2);
                load_model(path, loaded);
                const TensorFiles files(path);
                for (const ParameterInfo& tensor : source.parameters()) {
                    const DType kept = tensor.rule.float32 ? DType::f32 : dtype;
                    BOOST_TEST((files.find(prefix + tensor.name).dtype == kept), tensor.name);
                    for (Index e = tensor.offset; e < tensor.offset + tensor.count; ++e)
                        BOOST_REQUIRE_EQUAL(loaded.weights()[e], as_stored(source.weights()[e], kept));
                }
            }
        }
    }
    const nlohmann::json config = nlohmann::json::parse(get(folder / "x/config.json"));
    BOOST_TEST(config.at("dtype") == "float16");
}

BOOST_AUTO_TEST_CASE(shards_keep_to_their_size_and_are_named_as_others_expect) {
    Sharded s;
    const nlohmann::json map = s.index().at("weight_map");
    BOOST_TEST(map.size() == s.source.parameters().size());
    std::set<std::string> files;
    for (const auto& entry : map.items()) files.insert(entry.value());
    Index number = 0, total = 0;
    for (const std::string& name : files) {
        BOOST_TEST(name == fmt::format("model-{:05}-of-{:05}.safetensors", ++number, files.size()));
        const SafetensorsFile file((s.path / name).string());
        Index bytes = 0;
        for (const auto& entry : file.tensors()) bytes += entry.second.size_bytes;
        BOOST_TEST(bytes <= 100000);
        total += bytes;
    }
    BOOST_TEST(files.size() > 3);
    BOOST_TEST(s.index().at("metadata").at("total_size") == total);
    load_model(s.path, s.target);
    BOOST_TEST((values(s.target) == values(s.source)));
    auto index = s.index();
    index["metadata"]["total_size"] = static_cast<double>(total);  // as some tools write it
    put((s.path / index_file).string(), index.dump());
    load_model(s.path, s.target);
    KIMIK3_CHECK_REFUSED(write_weights(s.path, s.source, {.max_shard_bytes = 0}), "1 byte or more, got 0");
    KIMIK3_CHECK_REFUSED(write_weights(s.path, s.source, {.prefix = "model."}), "not with 'model.'");
    KIMIK3_CHECK_REFUSED(write_weights(s.path, s.source, {.dtype = DType::i8}), "float32, bfloat16 or float16");
}

BOOST_AUTO_TEST_CASE(an_index_that_lies_is_refused_with_the_tensor_and_the_model_stays_as_it_was) {
    Sharded s;
    const std::string name = "model.layers.2.self_attn.k_proj.weight", norm = "model.norm.weight";
    const std::string file = s.file_of(name), other = s.file_of("model.embed_tokens.weight");
    BOOST_REQUIRE(file != other);
    s.refused([&](auto& index) { index["weight_map"][name] = other; }, {name, "is in", file, "says it is in", other});
    s.refused([&](auto& index) { index["weight_map"].erase(name); }, {"has a tensor", name, "does not name"});
    s.refused([&](auto& index) { index["weight_map"]["more.weight"] = file; }, {"more.weight", "does not have it"});
    s.refused([&](auto& index) { index["weight_map"][name] = "absent.safetensors"; }, {"absent.safetensors", "open"});
    s.refused([&](auto& index) { index["weight_map"] = nlohmann::json::object(); }, {"they have 0"});
    s.refused([&](auto& index) { index["metadata"]["total_size"] = 17; }, {"have 17 bytes, they have"});
    for (const char* wrong : {"../x.safetensors", "/tmp/x.safetensors", "a/b.safetensors", "", ".safetensors",
                              "..", "model.bin", "a\\b.safetensors", "config.json"})
        s.refused([&](auto& index) { index["weight_map"][name] = wrong; },
                  {name, "must be the name of a .safetensors"});
    s.refused([&](auto& index) { index["weight_map"][name] = std::string("a.safetensors\0.safetensors", 26); }, {name});
    s.refused([&](auto& index) { index["weight_map"][name] = 7; }, {name, "it is 7"});
    s.refused([&](auto& index) { index.erase("weight_map"); }, {"'weight_map' must be there"});
    s.refused([&](auto& index) { index["weightmap"] = 1; }, {"unknown key 'weightmap'"});
    for (const double bytes : {-1.0, 0.5, 1e300, -1e300})
        s.refused([&](auto& index) { index["metadata"]["total_size"] = bytes; }, {"'metadata.total_size' must be"});
    s.refused([&](auto& index) { index["metadata"]["total_size"] = -1; }, {"'metadata.total_size' must be"});
    s.refused([&](auto& index) { index["metadata"] = 3; }, {"'metadata' must be an object"});
    put((s.path / index_file).string(), R"({"weight_map": {"a": "x.safetensors", "a": "y.safetensors"}})");
    s.refused({"has the key 'a' twice"});
    put((s.path / index_file).string(), "[]");
    s.refused({"must hold a JSON object"});
}

BOOST_AUTO_TEST_CASE(an_index_without_a_total_is_taken) {
    Sharded s;
    nlohmann::json index = s.index();
    index.erase("metadata");
    put((s.path / index_file).string(), index.dump());
    load_model(s.path, s.target);
    BOOST_TEST((values(s.target) == values(s.source)));
}

BOOST_AUTO_TEST_CASE(a_tensor_in_two_shards_is_refused_by_name) {
    Sharded s;
    const std::string name = "model.layers.2.self_attn.k_proj.weight";
    const std::string other = (s.path / s.file_of("model.embed_tokens.weight")).string();
    auto tensors = tensors_of(s.source);
    std::vector<TensorToWrite> more{tensors.at(name)};
    {
        const SafetensorsFile file(other);
        for (const auto& entry : file.tensors()) more.push_back(tensors.at(entry.first));
    }
    write_safetensors(other, more);
    s.refused({name, "is in", other, "says it is in"});
}

BOOST_AUTO_TEST_CASE(b59_a_shard_that_was_cut_or_is_missing_is_refused) {
    Sharded s;
    const std::string path = (s.path / s.file_of("model.norm.weight")).string(), whole = get(path);
    for (const std::size_t size : {whole.size() - 1, whole.size() / 2, std::size_t{9}, std::size_t{0}}) {
        put(path, whole.substr(0, size));
        s.refused({path});
    }
    fs::remove(path);
    s.refused({path});
    fs::create_directory(path);
    s.refused({path, "a directory"});
}

BOOST_AUTO_TEST_CASE(a_folder_with_one_file_and_an_index_of_others_is_refused) {
    Sharded s;
    write_safetensors((s.path / weights_file).string(), {});
    s.refused({"which of them are the weights"});
    fs::remove(s.path / weights_file);
    fs::remove(s.path / index_file);
    s.refused({"holds neither model.safetensors nor model.safetensors.index.json"});
}

BOOST_AUTO_TEST_CASE(a_log_may_be_padded_with_zeros_or_boxed) {
    const TemporaryFolder folder;
    const std::string path = folder / "model.safetensors", name = "model.layers.1.self_attn.A_log";
    auto source = model_of<tied>(1), model = model_of<tied>(2);
    for (float& number : tensor_of(source, name)) number = 0.25f;
    std::vector<float> padded(128, 0.0f);
    std::fill_n(padded.begin(), 3, 0.25f);
    auto tensors = tensors_of(source);
    for (const auto& shape : std::vector<std::vector<Index>>{{128}, {3}, {1, 1, 3, 1}, {1, 1, 128, 1}}) {
        tensors[name] = tensor_in_memory(name, shape, padded.data());
        write(path, tensors);
        model = model_of<tied>(2);
        load_weights(path, model);
        BOOST_TEST((values(model) == values(source)));
    }
    const std::vector<float> before = values(model);
    for (const auto& shape : std::vector<std::vector<Index>>{{2}, {3, 1}, {1, 3}, {1, 1, 2, 1}, {1, 1, 1, 3}, {}}) {
        tensors[name] = tensor_in_memory(name, shape, padded.data());
        write(path, tensors);
        KIMIK3_CHECK_REFUSED(load_weights(path, model), name + "' of");
    }
    padded[90] = 1e-3f;
    tensors[name] = tensor_in_memory(name, {128}, padded.data());
    write(path, tensors);
    KIMIK3_CHECK_REFUSED(load_weights(path, model), "behind the 3 heads of the model; padding is zero");
    BOOST_TEST((values(model) == before));
}

BOOST_AUTO_TEST_CASE(a_head_equal_to_the_embedding_goes_into_a_tied_model_and_another_is_refused) {
    const TemporaryFolder folder;
    auto two = model_of<untied>(1);
    auto one = model_of<tied>(2);
    const std::vector<float> before = values(one);
    write_weights(folder / "other", two);
    KIMIK3_CHECK_REFUSED(load_model(folder / "other", one), "'lm_head.weight' that differs from the embedding");
    std::ranges::copy(tensor_of(two, "model.embed_tokens.weight"), tensor_of(two, "lm_head.weight").begin());
    tensor_of(two, "lm_head.weight").back() += 1.0f;
    write_weights(folder / "last", two);
    KIMIK3_CHECK_REFUSED(load_model(folder / "last", one), "of token 66 first");
    BOOST_TEST((values(one) == before));
    tensor_of(two, "lm_head.weight").back() -= 1.0f;
    tensor_of(two, "lm_head.weight").back() = tensor_of(two, "model.embed_tokens.weight").back();
    for (const std::string prefix : {"", "language_model."}) {
        write_weights(folder / "same", two, {.dtype = DType::bf16, .prefix = prefix, .max_shard_bytes = 30000});
        one = model_of<tied>(2);
        load_model(folder / "same", one);
        BOOST_TEST(tensor_of(one, "model.norm.weight")[0] == 1.0f);
        BOOST_TEST(tensor_of(one, "model.embed_tokens.weight")[5] ==
                   as_stored(tensor_of(two, "model.embed_tokens.weight")[5], DType::bf16));
    }
}

BOOST_AUTO_TEST_CASE(a_tied_checkpoint_fills_both_matrices_of_an_untied_model_where_the_config_says_that_it_is_tied) {
    const TemporaryFolder folder;
    auto one = model_of<tied>(1);
    auto two = model_of<untied>(2);
    write_weights(folder / "tied", one);
    const std::vector<float> before = values(two);
    KIMIK3_CHECK_REFUSED(load_weights(folder / "tied", two), "has no tensor 'lm_head.weight'");
    BOOST_TEST((values(two) == before));
    load_model(folder / "tied", two);
    for (const char* name : {"lm_head.weight", "model.embed_tokens.weight"})
        BOOST_TEST(std::ranges::equal(tensor_of(two, name), tensor_of(one, "model.embed_tokens.weight")), name);
    write_config_json(folder / "tied/config.json", untied);
    KIMIK3_CHECK_REFUSED(load_model(folder / "tied", two), "has no tensor 'lm_head.weight'");
}

BOOST_AUTO_TEST_CASE(tensors_of_the_vision_part_are_left_alone_beside_prefixed_names_only) {
    const TemporaryFolder folder;
    const std::string path = folder / "model.safetensors";
    const auto source = model_of<tied>(1);
    auto model = model_of<tied>(2);
    const float number = 1;
    auto prefixed = tensors_of(source, "language_model."), bare = tensors_of(source);
    for (const char* name : {"vision_tower.patch_embed.proj.weight", "mm_projector.proj.0.weight"})
        prefixed[name] = bare[name] = tensor_in_memory(name, {1}, &number);
    write(path, prefixed);
    load_weights(path, model);
    BOOST_TEST((values(model) == values(source)));
    write(path, bare);
    KIMIK3_CHECK_REFUSED(load_weights(path, model), "'mm_projector.proj.0.weight' that the model has no place for");
    prefixed["x"] = tensor_in_memory("audio_tower.weight", {1}, &number);
    write(path, prefixed);
    KIMIK3_CHECK_REFUSED(load_weights(path, model), "'audio_tower.weight' that the model has no place for");
    auto mixed = tensors_of(source, "language_model.");
    mixed["model.norm.weight"].name = "model.norm.weight";
    write(path, mixed);
    KIMIK3_CHECK_REFUSED(load_weights(path, model), "has no tensor 'language_model.model.norm.weight'");
}

BOOST_AUTO_TEST_CASE(packed_experts_are_unpacked_and_what_is_wrong_with_them_is_refused_by_name) {
    const TemporaryFolder folder;
    const std::string path = folder / "model.safetensors";
    const auto source = model_of<packable>(1);
    auto model = model_of<packable>(2);
    auto tensors = tensors_of(source);
    std::map<std::string, std::vector<std::uint8_t>> bytes;
    std::vector<float> expected = values(source);
    Philox random(4);
    for (const ParameterInfo& tensor : source.parameters()) {
        if (tensor.experts == 0) continue;
        const Index rows = tensor.shape[0], cols = tensor.shape[1];
        auto &packed = bytes[tensor.name + "_packed"], &scales = bytes[tensor.name + "_scale"];
        for (Index b = 0; b < rows * cols / 2; ++b) packed.push_back(static_cast<std::uint8_t>(random.below(256)));
        for (Index g = 0; g < rows * cols / 32; ++g)
            scales.push_back(static_cast<std::uint8_t>(110 + random.below(20)));
        for (Index e = 0; e < tensor.count; ++e) {
            const unsigned both = packed[to_size(e / 2)], code = e % 2 == 0 ? both % 16 : both / 16;
            expected[to_size(tensor.offset + e)] = std::ldexp(e2m1_value(code), scales[to_size(e / 32)] - 127);
        }
        tensors.erase(tensor.name);
        tensors[tensor.name + "_packed"] = tensor_in_memory(tensor.name + "_packed", {rows, cols / 2}, packed.data());
        tensors[tensor.name + "_scale"] = tensor_in_memory(tensor.name + "_scale", {rows, cols / 32}, scales.data());
    }
    write(path, tensors);
    load_weights(path, model);
    BOOST_TEST((values(model) == expected));

    const std::string name = "model.layers.1.block_sparse_moe.experts.5.w2.weight";
    const auto refused = [&](std::function<void(std::map<std::string, TensorToWrite>&)> change, std::string_view part) {
        auto changed = tensors;
        change(changed);
        write(path, changed);
        KIMIK3_CHECK_REFUSED(load_weights(path, model), part);
        BOOST_TEST((values(model) == expected));
    };
    refused([&](auto& t) { t.erase(name + "_scale"); }, "has no tensor '" + name + "_scale'");
    refused([&](auto& t) { t.erase(name + "_packed"); }, "has no tensor '" + name + "'");
    refused([&](auto& t) { t[name + "_scale"].shape = {1, 64}; }, name + "_scale' of");
    refused([&](auto& t) { t[name + "_packed"].shape = {16, 64}; }, name + "_packed' of");
    refused([&](auto& t) { t[name + "_packed"].dtype = DType::boolean; }, name + "_packed' of");
    refused([&](auto& t) { t[name] = tensors_of(source).at(name); }, name + "_packed' that the model has no place for");
    bytes[name + "_scale"][3] = 255;
    refused([](auto&) {}, name + "_scale' of");
    refused([](auto&) {}, "has the scale 255 in row 1");
}

BOOST_AUTO_TEST_CASE(rows_that_do_not_divide_into_groups_are_not_packed) {
    const TemporaryFolder folder;
    const std::string path = folder / "model.safetensors", name = "model.layers.1.block_sparse_moe.experts.5.w1.weight";
    const auto source = model_of<tied>(1);
    auto model = model_of<tied>(2);
    auto tensors = tensors_of(source);
    const std::vector<std::uint8_t> bytes(20 * 12);
    tensors[name] = tensor_in_memory(name + "_packed", {20, 12}, bytes.data());
    write(path, tensors);
    KIMIK3_CHECK_REFUSED(load_weights(path, model), "whose rows are a multiple of 32 long are packed: [20, 24] is not");
}

BOOST_AUTO_TEST_CASE(numbers_that_a_format_does_not_hold_are_refused_on_both_ways) {
    const TemporaryFolder folder;
    auto source = model_of<tied>(1);
    write_weights(folder / "x", source, {.dtype = DType::f16});
    const std::string before = get(folder / "x/model.safetensors");
    tensor_of(source, "model.layers.0.mlp.up_proj.weight")[7] = 70000.0f;
    KIMIK3_CHECK_REFUSED(write_weights(folder / "x", source, {.dtype = DType::f16}),
                         "element 7 of tensor 'model.layers.0.mlp.up_proj.weight' is 70000, which F16 does not hold");
    BOOST_TEST((get(folder / "x/model.safetensors") == before));
    write_weights(folder / "x", source, {.dtype = DType::bf16});
    tensor_of(source, "model.layers.0.mlp.up_proj.weight")[7] = 3.4e38f;
    KIMIK3_CHECK_REFUSED(write_weights(folder / "x", source, {.dtype = DType::bf16}), "which BF16 does not hold");
    auto wide = model_of<tied, double>(1);
    wide.weights()[3] = 1e300;
    write_weights(folder / "wide", wide);
    BOOST_TEST((TensorFiles(folder / "wide").find("model.layers.0.self_attn.A_log").dtype == DType::f64));
    const std::vector<float> kept = values(source);
    KIMIK3_CHECK_REFUSED(load_model(folder / "wide", source), "is 1e+300, which F32 does not hold");
    BOOST_TEST((values(source) == kept));
}

BOOST_AUTO_TEST_CASE(b55_an_export_replaces_weights_only_and_a_failed_one_nothing) {
    const TemporaryFolder folder;
    const fs::path path = folder / "x";
    const auto first = model_of<tied>(1), second = model_of<tied>(2);
    auto loaded = model_of<tied>(3);
    write_weights(path, first, {.max_shard_bytes = 60000});
    for (const std::size_t size : {std::size_t{100}, std::size_t{30000}, std::size_t{59000}}) {
        const FileSizeLimit limit(size);
        KIMIK3_CHECK_REFUSED(write_weights(path, second, {.max_shard_bytes = 60000}), "File too large");
        BOOST_TEST(folder.size() == 1);
    }
    load_model(path, loaded);
    BOOST_TEST((values(loaded) == values(first)));
    put((path / "training.safetensors").string(), "a run");
    KIMIK3_CHECK_REFUSED(write_weights(path, second), "holds 'training.safetensors', which would be lost");
    BOOST_TEST(get((path / "training.safetensors").string()) == "a run");
    fs::remove(path / "training.safetensors");
    put(folder / "tokenizer.json", "{}");
    write_weights(path, second, {}, {folder / "tokenizer.json"});
    write_weights(path, second, {}, {folder / "tokenizer.json"});
    BOOST_TEST(!fs::exists(path / index_file));
    BOOST_TEST(get((path / "tokenizer.json").string()) == "{}");
    KIMIK3_CHECK_REFUSED(write_weights(path, second), "holds 'tokenizer.json', which would be lost");
}

BOOST_AUTO_TEST_SUITE_END()
