#pragma once
// Checkpoints: a folder that is written whole or not at all.
//   config.json            the model's config under the keys of the released K3
//   model.safetensors      every parameter under its released name; more than max_shard_bytes of them are
//                          model-00001-of-0000n.safetensors, ... and model.safetensors.index.json
//   training.safetensors   the optimizer's state and the run's position; only where a run is to go on from here
//   tokenizer.json         where the run has one
// A run's folder holds them as step-00001000, step-00002000, ... (io/checkpoint_files.hpp). A folder without
// training.safetensors is a released checkpoint, to be exchanged with other tools: write_weights and load_model.
// Loading checks every name, shape and config field before the first number is replaced, and names what does not fit.

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kimik3/core/atomic_folder.hpp"
#include "kimik3/io/checkpoint_files.hpp"
#include "kimik3/io/config_json.hpp"
#include "kimik3/io/safetensors.hpp"
#include "kimik3/io/safetensors_writer.hpp"
#include "kimik3/io/stored_weights.hpp"
#include "kimik3/train/trainer.hpp"

namespace kimik3 {
namespace detail {

/// A tensor in the memory of a backend, which is brought to the host and into the format when its turn comes.
template <class Backend, class T>
TensorToWrite tensor_on(const Context<Backend>& ctx, DType dtype, const std::string& name,
                        const std::vector<Index>& shape, VectorView<T> values) {
    return {name, dtype, shape, [&ctx, dtype, name, shape, values](const ByteSink& sink) {
                std::vector<std::remove_const_t<T>> memory;
                const auto host = on_host(ctx, VectorView<const T>(values), memory);
                tensor_as(dtype, name, shape, host.data).write_bytes(sink);
            }};
}

inline std::string position_json(const TrainingPosition& p) {
    const nlohmann::json json = {
        {"step", p.step},
        {"optimizer_steps", p.optimizer_steps},
        {"tokens", p.tokens},
        {"data",
         {{"shards", p.data.shards},
          {"seed", p.data.seed},
          {"order", static_cast<int>(p.data.order)},
          {"seq", p.data.seq},
          {"epoch", p.data.epoch},
          {"window", p.data.window}}},
        {"spike_guard", {{"average", p.spike_guard.average}, {"seen", p.spike_guard.seen}}},
    };
    return json.dump();
}

inline TrainingPosition parse_position(const std::string& text, const std::string& source) {
    try {
        const nlohmann::json json = nlohmann::json::parse(text), &data = json.at("data"),
                             &guard = json.at("spike_guard");
        const auto whole = [&](const nlohmann::json& from, const char* name) -> nlohmann::json {
            require(from.at(name).is_number_integer(),
                    "'{}' does not hold the position of a run: {} is no whole number", source, name);
            return from.at(name);
        };
        const Index order = whole(data, "order");
        require(order == static_cast<Index>(Order::sequential) || order == static_cast<Index>(Order::shuffled),
                "'{}' has the unknown data order {}", source, order);
        return {whole(json, "step"),
                whole(json, "optimizer_steps"),
                whole(json, "tokens"),
                {whole(data, "shards"), whole(data, "seed"), static_cast<Order>(order), whole(data, "seq"),
                 whole(data, "epoch"), whole(data, "window")},
                {guard.at("average"), whole(guard, "seen")}};
    } catch (const nlohmann::json::exception& problem) {
        fail("'{}' does not hold the position of a run: {}", source, problem.what());
    }
}

/// Throws unless a stored config describes the same weights as the model's; how KDA is computed may differ.
inline void require_same_model(ModelConfig stored, const ModelConfig& config, const std::string& source) {
    stored.kda_implementation = config.kda_implementation;
    stored.kda_chunk_size = config.kda_chunk_size;
    if (stored == config) return;
    const auto changes = nlohmann::json::diff(nlohmann::json::parse(format_config_json(config)),
                                              nlohmann::json::parse(format_config_json(stored)));
    std::string fields;
    for (const auto& change : changes)
        fields += (fields.empty() ? "" : ", ") + change.at("path").get<std::string>().substr(1);
    fail("'{}' describes another model than this one: {} differ", source, fields);
}

}  // namespace detail

/// How weights are written.
struct WeightsFormat {
    std::optional<DType> dtype{};               // none: the model's own; what the release keeps in float32 stays so
    std::string prefix{};                       // before every name: none, or language_prefix
    Index max_shard_bytes = 5'000'000'000;      // of tensors in a file; more go into several with an index
};

namespace detail {

/// The model's tensors as the format has them, shared out to files: one or more a file.
template <class Model>
std::vector<std::vector<TensorToWrite>> tensors_of_shards(const Model& model, const WeightsFormat& format) {
    using A = typename Model::A;
    const DType dtype = format.dtype.value_or(dtype_of<A>), kept = dtype == DType::f64 ? dtype : DType::f32;
    std::vector<std::vector<TensorToWrite>> shards(1);
    Index used = 0;
    for (const ParameterInfo& tensor : model.parameters()) {
        const DType stored = tensor.rule.float32 ? kept : dtype;
        const Index bytes = tensor.count * size_bytes(stored);
        if (used > 0 && bytes > format.max_shard_bytes - used) shards.emplace_back(), used = 0;
        const VectorView<A> values(model.weights().data + tensor.offset, tensor.count);
        shards.back().push_back(tensor_on(model.context(), stored, format.prefix + tensor.name, tensor.shape, values));
        used += bytes;
    }
    return shards;
}

/// Writes config.json and the weights into a folder that is being filled.
template <class Model>
void fill_checkpoint(const std::filesystem::path& folder, const Model& model, const WeightsFormat& format,
                     const std::vector<std::filesystem::path>& extra_files) {
    require(format.max_shard_bytes > 0, "a file of weights takes 1 byte or more, got {}", format.max_shard_bytes);
    require(format.prefix.empty() || format.prefix == language_prefix,
            "names of tensors begin with '{}' or with nothing, not with '{}'", language_prefix, format.prefix);
    write_config_json((folder / "config.json").string(), Model::config,
                      format.dtype.value_or(dtype_of<typename Model::A>));
    const std::map<std::string, std::string> metadata{{"format", "pt"}};
    auto shards = tensors_of_shards(model, format);
    if (shards.size() == 1) {
        write_safetensors((folder / weights_file).string(), std::move(shards[0]), metadata);
    } else {
        CheckpointIndex index{{}, 0};
        for (std::size_t s = 0; s < shards.size(); ++s) {
            const std::string file = fmt::format("model-{:05}-of-{:05}.safetensors", s + 1, shards.size());
            for (const TensorToWrite& tensor : shards[s]) {
                index.files.emplace(tensor.name, file);
                *index.total_bytes += announced_bytes(tensor.name, tensor.shape, tensor.dtype);
            }
            write_safetensors((folder / file).string(), std::move(shards[s]), metadata);
        }
        write_text_file((folder / index_file).string(), format_checkpoint_index(index));
    }
    for (const auto& file : extra_files) {
        std::error_code problem;
        std::filesystem::copy_file(file, folder / file.filename(), problem);
        require(!problem, "'{}' cannot be copied into the checkpoint '{}': {}", file.string(), folder.string(),
                problem.message());
    }
}

/// All parameters of the model from a file or a folder.
template <class Model>
std::vector<typename Model::A> read_weights(const std::filesystem::path& path, const Model& model,
                                            bool head_is_embedding = false) {
    std::vector<typename Model::A> values(to_size(model.weights().size));
    StoredWeights(path, model.parameters(), head_is_embedding).read(values.data());
    return values;
}

/// Throws where an export would take the place of files that it does not write itself.
inline void require_replaceable(const std::filesystem::path& folder,
                                const std::vector<std::filesystem::path>& extra_files) {
    std::error_code absent;
    for (const auto& entry : std::filesystem::directory_iterator(folder, absent)) {
        const std::string name = entry.path().filename().string();
        const bool ours = name == "config.json" || name == index_file ||
                          (name.starts_with("model") && name.ends_with(".safetensors")) ||
                          std::ranges::any_of(extra_files, [&](const auto& file) { return file.filename() == name; });
        require(ours, "'{}' holds '{}', which would be lost: a folder of weights replaces only a folder of weights",
                folder.string(), name);
    }
}

}  // namespace detail

/// Writes a folder that other tools read as a released checkpoint: config.json, the weights in the format, and
/// extra_files under their own names. It appears as a whole, in place of an older folder of weights, but not of one
/// that holds anything else.
template <class Model>
void write_weights(const std::filesystem::path& folder, const Model& model, const WeightsFormat& format = {},
                   const std::vector<std::filesystem::path>& extra_files = {}) {
    detail::require_replaceable(folder, extra_files);
    AtomicFolder whole(folder);
    detail::fill_checkpoint(whole.path(), model, format, extra_files);
    whole.commit();
}

/// Reads every parameter of the model from a safetensors file or a folder with or without an index, whatever config
/// stands beside it. The files hold each parameter and nothing else (io/stored_weights.hpp says in which forms);
/// otherwise an Error names the tensor and the model stays as it was.
template <class Model>
void load_weights(const std::filesystem::path& path, Model& model) {
    copy_from_host(model.context(), detail::read_weights(path, model), model.weights());
}

/// Writes a checkpoint folder, in place of one that is there; with a trainer, all that its run needs to go on.
/// extra_files are copied into it under their own names.
template <class Model>
void save_checkpoint(const std::filesystem::path& folder, const Model& model, const Trainer<Model>* trainer,
                     const std::vector<std::filesystem::path>& extra_files = {}) {
    AtomicFolder whole(folder);
    detail::fill_checkpoint(whole.path(), model, {}, extra_files);
    if (trainer != nullptr) {
        std::vector<TensorToWrite> tensors;
        for (const auto& tensor : trainer->optimizer().state())
            tensors.push_back(detail::tensor_on(model.context(), dtype_of<typename Model::A>, tensor.name, tensor.shape,
                                                tensor.values));
        write_safetensors((whole.path() / "training.safetensors").string(), std::move(tensors),
                          {{"position", detail::position_json(trainer->position())}});
    }
    whole.commit();
}

/// The same of a model alone.
template <class Model>
void save_model(const std::filesystem::path& folder, const Model& model,
                const std::vector<std::filesystem::path>& extra_files = {}) {
    save_checkpoint(folder, model, static_cast<const Trainer<Model>*>(nullptr), extra_files);
}

/// Reads the weights of a checkpoint folder, ours or a released one, whose config is the model's; on an Error the model
/// stays as it was. Of the two only the head may differ: from a tied checkpoint both matrices of an untied model are
/// filled, and a tied model takes an untied checkpoint whose head equals its embedding.
template <class Model>
void load_model(const std::filesystem::path& folder, Model& model) {
    const std::string source = (folder / "config.json").string();
    ModelConfig stored = read_config_json(source);
    const bool tied = std::exchange(stored.tie_embeddings, Model::config.tie_embeddings);
    detail::require_same_model(stored, Model::config, source);
    copy_from_host(model.context(), detail::read_weights(folder, model, tied), model.weights());
}

/// Reads a checkpoint that a run goes on from: weights, optimizer and position. What does not fit the trainer is
/// refused before anything is replaced.
template <class Model>
void load_checkpoint(const std::filesystem::path& folder, Trainer<Model>& trainer) {
    const std::string path = (folder / "training.safetensors").string();
    const SafetensorsFile file(path);
    const auto position = file.metadata().find("position");
    require(position != file.metadata().end(), "'{}' does not hold the position of a run", path);
    const TrainingPosition saved = detail::parse_position(position->second, path), before = trainer.position();
    const std::string config = (folder / "config.json").string();
    detail::require_same_model(read_config_json(config), Model::config, config);
    const auto weights = detail::read_weights(folder, trainer.model());
    trainer.restore(saved);
    try {
        trainer.optimizer().restore(trainer.model().context(), saved.optimizer_steps, file);
    } catch (...) {
        trainer.restore(before);
        throw;
    }
    copy_from_host(trainer.model().context(), weights, trainer.model().weights());
}

}  // namespace kimik3
