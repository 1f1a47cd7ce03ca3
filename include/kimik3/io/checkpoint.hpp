#pragma once
// Checkpoints: a folder that is written whole or not at all.
//   config.json            the model's config under the keys of the released K3
//   model.safetensors      every parameter under its released name, in the model's own number format
//   training.safetensors   the optimizer's state and the run's position; only where a run is to go on from here
//   tokenizer.json         where the run has one
// A run's folder holds them as step-00001000, step-00002000, ... (io/checkpoint_files.hpp).
// Loading checks every name, shape and config field before the first number is replaced, and names what does not fit.

#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "kimik3/core/atomic_folder.hpp"
#include "kimik3/io/checkpoint_files.hpp"
#include "kimik3/io/config_json.hpp"
#include "kimik3/io/safetensors.hpp"
#include "kimik3/io/safetensors_writer.hpp"
#include "kimik3/train/trainer.hpp"

namespace kimik3 {
namespace detail {

/// A tensor in the memory of a backend, which is brought to the host when its turn comes.
template <class Backend, class T>
TensorToWrite tensor_on(const Context<Backend>& ctx, std::string name, std::vector<Index> shape, VectorView<T> values) {
    return {std::move(name), dtype_of<T>, std::move(shape), [&ctx, values](const ByteSink& sink) {
                std::vector<T> memory;
                const VectorView<const T> host = on_host(ctx, VectorView<const T>(values), memory);
                sink(host.data, host.size * static_cast<Index>(sizeof(T)));
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

/// Writes every parameter of the model under its released name.
template <class Model>
void save_weights(const std::string& path, const Model& model) {
    std::vector<TensorToWrite> tensors;
    for (const ParameterInfo& tensor : model.parameters()) {
        const VectorView<typename Model::A> values(model.weights().data + tensor.offset, tensor.count);
        tensors.push_back(detail::tensor_on(model.context(), tensor.name, tensor.shape, values));
    }
    write_safetensors(path, std::move(tensors), {{"format", "pt"}});
}

namespace detail {

/// Every parameter of the model as a file holds it, all checked before the first is read.
template <class Model>
std::vector<typename Model::A> read_weights(const std::string& path, const Model& model) {
    const SafetensorsFile file(path);
    std::set<std::string_view> wanted;
    for (const ParameterInfo& tensor : model.parameters()) {
        wanted.insert(tensor.name);
        const std::vector<Index>& shape = file.find(tensor.name).shape;
        require(shape == tensor.shape, "tensor '{}' of '{}' must have the shape [{}], it has [{}]", tensor.name, path,
                listed(tensor.shape), listed(shape));
    }
    for (const auto& [name, tensor] : file.tensors())
        require(wanted.contains(name), "'{}' has a tensor '{}' that the model has no place for", path,
                shown_name(name));
    std::vector<typename Model::A> values(to_size(model.weights().size));
    for (const ParameterInfo& tensor : model.parameters())
        file.read(tensor.name, values.data() + tensor.offset, tensor.count);
    return values;
}

/// The weights of a checkpoint folder whose config is the model's.
template <class Model>
std::vector<typename Model::A> read_model(const std::filesystem::path& folder, const Model& model) {
    const std::string config = (folder / "config.json").string();
    require_same_model(read_config_json(config), Model::config, config);
    return read_weights((folder / "model.safetensors").string(), model);
}

}  // namespace detail

/// Reads every parameter of the model. The file holds each, in its shape, and nothing else; otherwise an Error names
/// the tensor and the model stays as it was.
template <class Model>
void load_weights(const std::string& path, Model& model) {
    copy_from_host(model.context(), detail::read_weights(path, model), model.weights());
}

/// Writes a checkpoint folder, in place of one that is there; with a trainer, all that its run needs to go on.
/// extra_files are copied into it under their own names.
template <class Model>
void save_checkpoint(const std::filesystem::path& folder, const Model& model, const Trainer<Model>* trainer,
                     const std::vector<std::filesystem::path>& extra_files = {}) {
    AtomicFolder whole(folder);
    write_config_json((whole.path() / "config.json").string(), Model::config, dtype_of<typename Model::A>);
    save_weights((whole.path() / "model.safetensors").string(), model);
    if (trainer != nullptr) {
        std::vector<TensorToWrite> tensors;
        for (const auto& tensor : trainer->optimizer().state())
            tensors.push_back(detail::tensor_on(model.context(), tensor.name, tensor.shape, tensor.values));
        write_safetensors((whole.path() / "training.safetensors").string(), std::move(tensors),
                          {{"position", detail::position_json(trainer->position())}});
    }
    for (const auto& file : extra_files) {
        std::error_code problem;
        std::filesystem::copy_file(file, whole.path() / file.filename(), problem);
        require(!problem, "'{}' cannot be copied into the checkpoint '{}': {}", file.string(), folder.string(),
                problem.message());
    }
    whole.commit();
}

/// The same of a model alone.
template <class Model>
void save_model(const std::filesystem::path& folder, const Model& model,
                const std::vector<std::filesystem::path>& extra_files = {}) {
    save_checkpoint(folder, model, static_cast<const Trainer<Model>*>(nullptr), extra_files);
}

/// Reads the weights of a checkpoint folder whose config is the model's; on an Error the model stays as it was.
template <class Model>
void load_model(const std::filesystem::path& folder, Model& model) {
    copy_from_host(model.context(), detail::read_model(folder, model), model.weights());
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
    const auto weights = detail::read_model(folder, trainer.model());
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
