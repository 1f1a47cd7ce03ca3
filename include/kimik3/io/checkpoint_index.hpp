#pragma once
// model.safetensors.index.json: which file of a sharded checkpoint holds which tensor.
//   {"metadata": {"total_size": bytes of all tensors}, "weight_map": {tensor: file, ...}}
// Files are plain names in the folder of the index. What the index says of the files is checked by TensorFiles.

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "kimik3/io/input_file.hpp"
#include "kimik3/io/nearest_name.hpp"
#include "kimik3/text/json_object.hpp"

namespace kimik3 {

struct CheckpointIndex {
    std::map<std::string, std::string, std::less<>> files;  // of every tensor
    std::optional<Index> total_bytes;                       // of all tensors, where the index says it
};

namespace detail {

/// A file in the folder of the index and nowhere else.
inline bool is_plain_shard_name(std::string_view name) {
    constexpr std::string_view refused("/\\\0", 3);
    return name.ends_with(".safetensors") && name.find_first_of(refused) == name.npos && name[0] != '.';
}

}  // namespace detail

/// The index in a text; source is what messages call it.
inline CheckpointIndex parse_checkpoint_index(const std::string& text, const std::string& source) {
    using detail::shown_name;
    const nlohmann::json json = detail::parse_json(text, "'" + source + "'");
    require(json.is_object(), "'{}' must hold a JSON object", source);
    for (const auto& entry : json.items())
        require(entry.key() == "metadata" || entry.key() == "weight_map",
                "'{}': unknown key '{}'; an index has metadata and weight_map", source, shown_name(entry.key()));
    const auto map = json.find("weight_map"), metadata = json.find("metadata");
    require(map != json.end() && map->is_object(), "'{}': 'weight_map' must be there as an object", source);
    CheckpointIndex index;
    for (const auto& entry : map->items()) {
        require(entry.value().is_string() && detail::is_plain_shard_name(entry.value().get_ref<const std::string&>()),
                "'{}': the file of tensor '{}' must be the name of a .safetensors file in the same folder, it is {}",
                source, shown_name(entry.key()), shown_name(entry.value().dump()));
        index.files.emplace(entry.key(), entry.value().get<std::string>());
    }
    if (metadata == json.end()) return index;
    require(metadata->is_object(), "'{}': 'metadata' must be an object", source);
    if (const auto total = metadata->find("total_size"); total != metadata->end()) {
        const double bytes = total->is_number() ? total->get<double>() : -1;  // some tools write 12.0
        require(bytes >= 0 && bytes < 0x1p53 && bytes == static_cast<double>(static_cast<Index>(bytes)),
                "'{}': 'metadata.total_size' must be a number of bytes, it is {}", source, shown_name(total->dump()));
        index.total_bytes = static_cast<Index>(bytes);
    }
    return index;
}

inline CheckpointIndex read_checkpoint_index(const std::string& path) {
    constexpr Index limit_bytes = Index{1} << 28;  // half a million tensors take 60 megabytes
    return parse_checkpoint_index(read_text_file(path, limit_bytes), path);
}

/// The text of an index.
inline std::string format_checkpoint_index(const CheckpointIndex& index) {
    nlohmann::ordered_json json;
    if (index.total_bytes) json["metadata"]["total_size"] = *index.total_bytes;
    json["weight_map"] = index.files;
    return json.dump(2) + "\n";
}

}  // namespace kimik3
