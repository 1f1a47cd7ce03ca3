#include "kimik3/io/checkpoint.hpp"

#include <boost/test/unit_test.hpp>

#include <cstring>

#include "io/files.hpp"
#include "kimik3/kimik3.hpp"
#include "support/file_size_limit.hpp"
#include "support/german_numbers.hpp"

namespace fs = std::filesystem;
using namespace kimik3;
using namespace kimik3::test;

namespace {

constexpr const ModelConfig& config = presets::golden;
template <class T>
using ModelOf = KimiK3<config, Cpu, T>;
using Model = ModelOf<float>;

std::vector<Shard> some_shards(const char* second = "b", Index vocab = config.vocab_size) {
    Philox random(3);
    const auto ids = [&](std::size_t windows) {
        std::vector<std::int32_t> all(windows * 12 + 5);
        for (auto& id : all) id = static_cast<std::int32_t>(random.below(20));
        return all;
    };
    std::vector<Shard> shards;
    shards.emplace_back("a", ids(15), vocab);
    shards.emplace_back(second, ids(11), vocab);
    return shards;
}

/// 26 windows in shards of 15 and 11: in order, the border of the shards is in step 4, that of the epoch in step 7.
TokenLoader some_data(Order order, std::uint64_t seed = 5, std::vector<Shard> shards = some_shards(), Index seq = 12) {
    return TokenLoader(TokenWindows(std::move(shards), seq), 2, order, seed);
}

TrainingOptions some_options() {
    TrainingOptions options;
    options.accumulation = 2;
    options.schedule = {.kind = ScheduleKind::cosine, .max_lr = 1e-2, .warmup_steps = 7, .total_steps = 10};
    options.spike_guard = {.factor = 1.05, .memory = 0.5, .warmup = 2};  // skips some steps
    return options;
}

/// A model and its run.
template <class T>
struct Run {
    explicit Run(Order order = Order::shuffled, std::uint64_t seed = 1)
        : model(Context<Cpu>(1), seed), trainer(model, some_data(order), some_options()) {}

    ModelOf<T> model;
    Trainer<ModelOf<T>> trainer;
};

template <class View>
std::string bytes_of(const View& values) {
    return {reinterpret_cast<const char*>(values.data), to_size(values.size) * sizeof(*values.data)};
}

/// Everything that a run's next step depends on.
template <class T>
std::string everything(const Run<T>& run) {
    std::string all = bytes_of(run.model.weights()) + detail::position_json(run.trainer.position());
    for (const auto& tensor : run.trainer.optimizer().state()) all += tensor.name + bytes_of(tensor.values);
    return all;
}

std::string report_of(const TrainingStep& step) {
    return fmt::format("step {} loss {} lr {} norm {} tokens {} applied {}", step.step, step.loss, step.lr,
                       step.gradient_norm, step.tokens, step.applied);
}

template <class T>
void check_resume(Order order) {
    const TemporaryFolder folder;
    const fs::path saved = folder / "run/step-00000005";
    fs::create_directory(folder / "run");
    Run<T> whole(order);
    std::vector<std::string> reports;
    Index skipped = 0;
    for (int step = 0; step < 10; ++step) {
        const TrainingStep report = whole.trainer.step();
        reports.push_back(report_of(report));
        skipped += report.applied ? 0 : 1;
    }
    BOOST_TEST((0 < skipped && skipped < 10));
    {
        Run<T> first(order);
        for (int step = 0; step < 5; ++step) BOOST_TEST(report_of(first.trainer.step()) == reports[to_size(step)]);
        save_checkpoint(saved, first.model, &first.trainer);
        BOOST_TEST(report_of(first.trainer.step()) == reports[5]);  // saving disturbs nothing
    }
    Run<T> second(order, 99);  // other weights until they are loaded
    load_checkpoint(find_checkpoint(folder / "run"), second.trainer);
    for (int step = 5; step < 10; ++step) BOOST_TEST(report_of(second.trainer.step()) == reports[to_size(step)]);
    BOOST_TEST((everything(second) == everything(whole)));
}

/// The files of a folder, by name.
std::map<std::string, std::string> contents(const fs::path& folder) {
    std::map<std::string, std::string> files;
    for (const auto& entry : fs::directory_iterator(folder))
        files[entry.path().filename().string()] = get(entry.path().string());
    return files;
}

/// The tensors of a model, to be changed and written.
std::vector<TensorToWrite> tensors_of(const Model& model) {
    std::vector<TensorToWrite> tensors;
    for (const ParameterInfo& tensor : model.parameters())
        tensors.push_back(tensor_in_memory(tensor.name, tensor.shape, model.weights().data + tensor.offset));
    return tensors;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(checkpoint)

BOOST_AUTO_TEST_CASE(b53_a_resumed_run_is_the_uninterrupted_one_bit_for_bit) {
    check_resume<float>(Order::shuffled);
    check_resume<double>(Order::shuffled);
    check_resume<float>(Order::sequential);
}

BOOST_AUTO_TEST_CASE(b53_another_run_is_refused_and_the_trainer_stays_as_it_was) {
    const TemporaryFolder folder;
    const fs::path saved = folder / "step-00000002";
    Run<float> run;
    for (int step = 0; step < 2; ++step) run.trainer.step();
    save_checkpoint(saved, run.model, &run.trainer);

    const auto refused = [&](TokenLoader loader, const TrainingOptions& options, std::string_view reason) {
        Model model(Context<Cpu>(2), 7);
        Trainer trainer(model, std::move(loader), options);
        const std::string before = bytes_of(model.weights()) + detail::position_json(trainer.position());
        KIMIK3_CHECK_REFUSED(load_checkpoint(saved, trainer), reason);
        BOOST_TEST((bytes_of(model.weights()) + detail::position_json(trainer.position()) == before));
    };
    const TrainingOptions options = some_options();
    std::vector<Shard> one_shard = some_shards(), swapped = some_shards();
    one_shard.pop_back();
    std::swap(swapped[0], swapped[1]);
    refused(some_data(Order::shuffled, 5, some_shards("c")), options, "another list of shards");
    refused(some_data(Order::shuffled, 5, std::move(one_shard)), options, "another list of shards");
    refused(some_data(Order::shuffled, 5, std::move(swapped)), options, "another list of shards");
    refused(some_data(Order::sequential), options,
            "the saved position is of the shuffled order with seed 5, this is the sequential order with seed 5");
    refused(some_data(Order::shuffled, 6), options, "with seed 5, this is the shuffled order with seed 6");
    refused(some_data(Order::shuffled, 5, some_shards(), 6), options, "windows of 12 tokens, these have 6");
    TrainingOptions adamw = options;
    adamw.optimizer.kind = OptimizerKind::adamw;
    refused(some_data(Order::shuffled), adamw,
            "the saved optimizer state lacks 'adamw.exp_avg.model.layers.0.self_attn.q_proj.weight'; a run goes on with "
            "the kind of optimizer that it began with");
}

BOOST_AUTO_TEST_CASE(b53_another_model_is_refused_by_the_fields_that_differ) {
    static constexpr ModelConfig other = [] {
        ModelConfig c = config;
        c.vocab_size = 68;
        c.routed_scaling_factor = 2;  // no tensor's shape shows it
        return c;
    }();
    const TemporaryFolder folder;
    const Model model(Context<Cpu>(1), 1);
    save_model(folder / "x", model);
    KimiK3<other> another(Context<Cpu>(1), 2);
    const std::string before = bytes_of(another.weights());
    const std::string said = refusal([&] { load_model(folder / "x", another); });
    for (std::string_view part : {"config.json", "another model", "vocab_size", "routed_scaling_factor"})
        BOOST_TEST(contains(said, part), said);
    BOOST_TEST((bytes_of(another.weights()) == before));
}

BOOST_AUTO_TEST_CASE(how_kda_is_computed_does_not_make_another_model) {
    static constexpr ModelConfig chunkwise = [] {
        ModelConfig c = config;
        c.kda_implementation = KdaImplementation::chunkwise;
        c.kda_chunk_size = 16;
        return c;
    }();
    const TemporaryFolder folder;
    const Model model(Context<Cpu>(1), 1);
    save_model(folder / "x", model);
    KimiK3<chunkwise> another(Context<Cpu>(1), 2);
    load_model(folder / "x", another);
    BOOST_TEST((bytes_of(another.weights()) == bytes_of(model.weights())));
}

BOOST_AUTO_TEST_CASE(a_checkpoint_without_a_run_gives_weights_alone) {
    const TemporaryFolder folder;
    Run<float> run;
    save_model(folder / "x", run.model);
    Model model(Context<Cpu>(1), 2);
    load_model(folder / "x", model);
    BOOST_TEST((bytes_of(model.weights()) == bytes_of(run.model.weights())));
    KIMIK3_CHECK_REFUSED(load_checkpoint(folder / "x", run.trainer), "training.safetensors");
    KIMIK3_CHECK_REFUSED(load_model(folder / "absent", model), "config.json");
    save_checkpoint(folder / "y", run.model, &run.trainer);
    write_safetensors(folder / "y/training.safetensors", {});
    KIMIK3_CHECK_REFUSED(load_checkpoint(folder / "y", run.trainer), "does not hold the position of a run");
}

BOOST_AUTO_TEST_CASE(a_position_that_cannot_be_is_refused) {
    const TemporaryFolder folder;
    Run<float> run;
    run.trainer.step();
    const fs::path saved = folder / "x";
    save_checkpoint(saved, run.model, &run.trainer);
    std::vector<TensorToWrite> tensors;
    for (const auto& tensor : run.trainer.optimizer().state())
        tensors.push_back(tensor_in_memory(tensor.name, tensor.shape, tensor.values.data));
    const std::string good = detail::position_json(run.trainer.position()), before = everything(run);
    const auto refused = [&](std::string_view from, std::string_view to, std::string_view reason) {
        std::string text = good;
        BOOST_REQUIRE(contains(good, from));
        text.replace(text.find(from), from.size(), to);
        write_safetensors((saved / "training.safetensors").string(), tensors, {{"position", text}});
        KIMIK3_CHECK_REFUSED(load_checkpoint(saved, run.trainer), reason);
        BOOST_TEST((everything(run) == before), to);
    };
    refused("\"step\":1", "\"step\":-1", "0 steps");
    refused("\"step\":1", "\"step\":1.5", "position of a run");
    refused("\"step\":1", "\"step\":99999999999999999999", "position of a run");
    refused("\"step\":1", "\"step\":\"1\"", "position of a run");
    refused("\"step\":1", "\"stop\":1", "position of a run");
    refused("\"optimizer_steps\":1", "\"optimizer_steps\":-1", "0 steps or more, got -1");
    refused("\"window\":4", "\"window\":-4", "window -4");
    refused("\"window\":4", "\"window\":27", "window 27");
    refused("\"seed\":5", "\"seed\":5.5", "seed is no whole number");
    refused("\"seed\":5", "\"seed\":-5", "with seed 18446744073709551611");
    refused("\"order\":1", "\"order\":2", "unknown data order 2");
    refused("\"seen\":1", "\"seen\":-1", "spike guard");
    refused("{", "", "position of a run");
}

BOOST_AUTO_TEST_CASE(b55_a_failed_save_leaves_the_old_checkpoint) {
    const TemporaryFolder folder;
    const fs::path saved = folder / "x";
    Run<float> run;
    run.trainer.step();
    put(folder / "tokenizer.json", "{}");
    save_checkpoint(saved, run.model, &run.trainer, {folder / "tokenizer.json"});
    const std::string at_save = everything(run);
    const auto before = contents(saved);
    BOOST_TEST(before.size() == 4);
    std::vector<std::size_t> sizes;
    for (const auto& [name, bytes] : before)
        for (std::size_t percent : {0u, 1u, 50u, 99u}) sizes.push_back(bytes.size() * percent / 100);
    run.trainer.step();
    for (std::size_t size : sizes) {
        {
            const FileSizeLimit limit(size);
            KIMIK3_CHECK_REFUSED(save_checkpoint(saved, run.model, &run.trainer, {folder / "tokenizer.json"}),
                                 "File too large");
        }
        BOOST_TEST((contents(saved) == before));
        BOOST_TEST(folder.size() == 2);
    }
    load_checkpoint(saved, run.trainer);
    BOOST_TEST((everything(run) == at_save));
}

BOOST_AUTO_TEST_CASE(b55_a_file_that_cannot_be_copied_fails_the_save) {
    const TemporaryFolder folder;
    const Model model(Context<Cpu>(1), 1);
    put(folder / "config.json", "{}");
    KIMIK3_CHECK_REFUSED(save_model(folder / "x", model, {folder / "absent"}), "absent' cannot be copied");
    KIMIK3_CHECK_REFUSED(save_model(folder / "x", model, {folder / "config.json"}), "config.json' cannot be copied");
    KIMIK3_CHECK_REFUSED(save_model(folder / "absent/x", model), "No such file or directory");
    BOOST_TEST(folder.size() == 1);
}

BOOST_AUTO_TEST_CASE(b38_a_file_with_a_tensor_missing_extra_or_misshapen_is_refused_by_name) {
    const TemporaryFolder folder;
    const std::string path = folder / "model.safetensors";
    const Model source(Context<Cpu>(1), 1);
    Model model(Context<Cpu>(1), 2);
    const std::string before = bytes_of(model.weights());
    const auto refused = [&](std::vector<TensorToWrite> tensors, std::string_view name, std::string_view reason) {
        write_safetensors(path, std::move(tensors));
        const std::string said = refusal([&] { load_weights(path, model); });
        BOOST_TEST((contains(said, name) && contains(said, reason)), said);
        BOOST_TEST((bytes_of(model.weights()) == before), name);
    };
    const float extra[] = {1};
    for (std::size_t t = 0; t < source.parameters().size(); ++t) {
        const ParameterInfo& tensor = source.parameters()[t];
        if (contains(tensor.name, ".experts.") && !contains(tensor.name, ".experts.7."))
            continue;  // one of each kind will do
        auto missing = tensors_of(source), misshapen = missing, transposed = missing;
        missing.erase(missing.begin() + static_cast<std::ptrdiff_t>(t));
        refused(missing, tensor.name, "has no tensor");
        misshapen[t].shape.push_back(1);
        refused(misshapen, tensor.name, "must have the shape");
        if (tensor.shape.size() == 2 && tensor.shape[0] != tensor.shape[1]) {
            std::swap(transposed[t].shape[0], transposed[t].shape[1]);
            refused(transposed, tensor.name, "must have the shape");
        }
    }
    auto more = tensors_of(source);
    more.push_back(tensor_in_memory("lm_head.weight", {1}, extra));
    refused(more, "lm_head.weight", "no place for");
    more.back().name = "model.layers.1.block_sparse_moe.routed_expert_norm.weight2";
    refused(more, more.back().name, "no place for");
}

BOOST_AUTO_TEST_CASE(b38_names_are_the_released_ones_and_a_tied_head_is_stored_once) {
    const TemporaryFolder folder;
    static constexpr ModelConfig untied = [] {
        ModelConfig c = config;
        c.tie_embeddings = false;
        return c;
    }();
    save_model(folder / "tied", Model(Context<Cpu>(1), 1));
    save_model(folder / "untied", KimiK3<untied>(Context<Cpu>(1), 1));
    const SafetensorsFile tied(folder / "tied/model.safetensors"), two(folder / "untied/model.safetensors");
    BOOST_TEST(tied.tensors().size() + 1 == two.tensors().size());
    const auto same_place = [](const SafetensorsFile& file, std::string_view ending) {
        for (const auto& [name, tensor] : file.tensors())
            if (name.ends_with(ending)) return true;
        return false;
    };
    BOOST_TEST((same_place(tied, "embed_tokens.weight") && same_place(two, "embed_tokens.weight")));
    BOOST_TEST((!same_place(tied, "lm_head.weight") && same_place(two, "lm_head.weight")));
    for (std::string_view name :
         {"self_attn.q_proj.weight", "self_attn.A_log", "self_attn.dt_bias", "self_attn.q_conv1d.weight",
          "self_attn.kv_a_layernorm.weight", "input_layernorm.weight", "e_score_correction_bias", "experts.7.w2.weight",
          "model.norm.weight"})
        BOOST_TEST(same_place(tied, name), name);
}

BOOST_AUTO_TEST_CASE(a_float_file_goes_into_a_double_model_and_back) {
    const TemporaryFolder folder;
    const Model model(Context<Cpu>(1), 1);
    save_model(folder / "x", model);
    ModelOf<double> wide(Context<Cpu>(1), 2);
    load_model(folder / "x", wide);
    for (Index w = 0; w < wide.weights().size; ++w) BOOST_REQUIRE_EQUAL(wide.weights()[w], double{model.weights()[w]});
    save_model(folder / "y", wide);
    Model back(Context<Cpu>(1), 3);
    load_model(folder / "y", back);
    BOOST_TEST((bytes_of(back.weights()) == bytes_of(model.weights())));
}

BOOST_AUTO_TEST_CASE(b31_near_biases_stay_distinct_through_save_and_load) {
    const TemporaryFolder folder;
    Model model(Context<Cpu>(1), 1), loaded(Context<Cpu>(1), 2);
    std::vector<Index> biases;
    for (const ParameterInfo& tensor : model.parameters())
        if (tensor.name.ends_with("e_score_correction_bias")) biases.push_back(tensor.offset);
    BOOST_TEST(biases.size() == 4);
    for (Index at : biases) {
        model.weights()[at] = 6.817f;
        model.weights()[at + 1] = 6.8175f;
    }
    save_model(folder / "x", model);
    load_model(folder / "x", loaded);
    for (Index at : biases) {
        BOOST_TEST(loaded.weights()[at] == 6.817f);
        BOOST_TEST(loaded.weights()[at + 1] == 6.8175f);
    }
}

BOOST_AUTO_TEST_CASE(the_config_stands_beside_the_weights) {
    const TemporaryFolder folder;
    put(folder / "tokenizer.json", "{\"of\":\"the run\"}");
    save_model(folder / "x", Model(Context<Cpu>(1), 1), {folder / "tokenizer.json"});
    BOOST_TEST((read_config_json(folder / "x/config.json") == config));
    BOOST_TEST(get(folder / "x/tokenizer.json") == "{\"of\":\"the run\"}");
    BOOST_TEST(contents(folder / "x").size() == 3);
}

BOOST_AUTO_TEST_CASE(b78_checkpoints_do_not_depend_on_the_locale) {
    const TemporaryFolder folder;
    Run<float> run;
    for (int step = 0; step < 3; ++step) run.trainer.step();
    save_checkpoint(folder / "c", run.model, &run.trainer);
    const std::string saved = everything(run);
    const GermanNumbers german;
    save_checkpoint(folder / "german", run.model, &run.trainer);
    BOOST_TEST((contents(folder / "c") == contents(folder / "german")));
    run.trainer.step();
    load_checkpoint(folder / "c", run.trainer);
    BOOST_TEST((everything(run) == saved));
}

BOOST_AUTO_TEST_SUITE_END()
