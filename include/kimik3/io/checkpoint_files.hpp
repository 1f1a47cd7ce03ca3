#pragma once
// Where a run keeps its checkpoints: folders step-00001000, step-00002000, ... in the run's folder.

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kimik3/core/error.hpp"

namespace kimik3 {

/// The folder of a run's checkpoint after so many steps.
inline std::filesystem::path checkpoint_folder(const std::filesystem::path& run, Index step) {
    return run / fmt::format("step-{:08}", step);
}

/// The checkpoint folders of a run, oldest first.
inline std::vector<std::filesystem::path> checkpoint_folders(const std::filesystem::path& run) {
    std::vector<std::filesystem::path> found;
    if (!std::filesystem::is_directory(run)) return found;
    for (const auto& entry : std::filesystem::directory_iterator(run)) {
        const std::string name = entry.path().filename().string();
        const bool numbered =
            name.size() >= 13 && name.starts_with("step-") && name.find_first_not_of("0123456789", 5) == name.npos;
        if (numbered && entry.is_directory()) found.push_back(entry.path());
    }
    std::ranges::sort(found, {}, [](const std::filesystem::path& folder) {
        const std::string name = folder.filename().string();
        return std::pair(name.size(), name);
    });
    return found;
}

/// The names of a checkpoint's weights: in one file, or in several that the index names.
inline constexpr std::string_view weights_file = "model.safetensors", index_file = "model.safetensors.index.json";

/// A path that a user gives as a checkpoint: a checkpoint folder, or a run's folder, of which the newest is taken.
inline std::filesystem::path find_checkpoint(const std::filesystem::path& path) {
    if (std::filesystem::exists(path / weights_file) || std::filesystem::exists(path / index_file)) return path;
    const auto folders = checkpoint_folders(path);
    require(!folders.empty(),
            "'{}' is neither a checkpoint (a folder with {} or {}) nor a run with checkpoints (step-...)",
            path.string(), weights_file, index_file);
    return folders.back();
}

}  // namespace kimik3
