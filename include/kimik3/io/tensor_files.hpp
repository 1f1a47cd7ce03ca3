#pragma once
// The tensors of a checkpoint by name, wherever they are: in one safetensors file, or in several with an index. All
// headers are read and checked against one another and against the index before the first tensor is read: a tensor in
// two files, in another file than the index says, in a file but not in the index, or in the index but in no file is an
// error that names it; so is a total size that is not that of the tensors.

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "kimik3/io/checkpoint_files.hpp"
#include "kimik3/io/checkpoint_index.hpp"
#include "kimik3/io/safetensors.hpp"

namespace kimik3 {

class TensorFiles {
public:
    /// path: a safetensors file, or a folder with model.safetensors or with model.safetensors.index.json and shards.
    explicit TensorFiles(const std::filesystem::path& path) : path_(path.string()) {
        const bool folder = std::filesystem::is_directory(path);
        const bool one = folder && std::filesystem::exists(path / weights_file);
        if (folder && std::filesystem::exists(path / index_file)) {
            open_shards(path, one);
        } else {
            require(one || !folder, "'{}' holds neither {} nor {}", path_, weights_file, index_file);
            open_one(folder ? (path / weights_file).string() : path_);
        }
    }

    /// What messages call the whole.
    const std::string& path() const { return path_; }

    bool contains(std::string_view name) const { return places_.contains(name); }

    const TensorInfo& find(std::string_view name) const { return file_of(name).find(name); }

    /// Calls visit(name) for every tensor, in the order of the names.
    template <class Visit>
    void each_name(Visit&& visit) const {
        for (const auto& place : places_) visit(place.first);
    }

    /// As SafetensorsFile::read_part.
    template <class T>
    void read_part(std::string_view name, Index first, T* destination, Index count) const {
        file_of(name).read_part(name, first, destination, count);
    }

private:
    const SafetensorsFile& file_of(std::string_view name) const {
        const auto place = places_.find(name);
        if (place == places_.end()) detail::fail_without_tensor(path_, name, places_);
        return files_[place->second];
    }

    void open_one(std::string path) {
        path_ = std::move(path);
        files_.emplace_back(path_);
        for (const auto& tensor : files_[0].tensors()) places_.emplace(tensor.first, 0);
    }

    void open_shards(const std::filesystem::path& folder, bool one) {
        using detail::shown_name;
        const std::string source = (folder / index_file).string();
        const CheckpointIndex index = read_checkpoint_index(source);
        std::map<std::string_view, std::size_t> numbers;  // of the files
        for (const auto& entry : index.files) numbers.emplace(entry.second, 0);
        require(!one || numbers.contains(weights_file),
                "'{}' holds {} and an index that does not name it: which of them are the weights?", path_,
                weights_file);
        files_.reserve(numbers.size());  // names in places_ are those in the files
        for (auto& [name, number] : numbers) {
            number = files_.size();
            files_.emplace_back((folder / name).string());
        }
        Index bytes = 0;
        for (std::size_t f = 0; f < files_.size(); ++f) {
            for (const auto& [name, tensor] : files_[f].tensors()) {
                const auto entry = index.files.find(name);
                require(entry != index.files.end(), "'{}' has a tensor '{}', which '{}' does not name",
                        files_[f].path(), shown_name(name), source);
                require(numbers.at(entry->second) == f, "tensor '{}' is in '{}', but '{}' says it is in '{}'",
                        shown_name(name), files_[f].path(), source, entry->second);
                places_.emplace(name, f);
                bytes += tensor.size_bytes;
            }
        }
        for (const auto& [name, file] : index.files)
            require(places_.contains(name), "'{}' says that tensor '{}' is in '{}', which does not have it", source,
                    shown_name(name), file);
        require(!index.total_bytes || *index.total_bytes == bytes,
                "'{}' says that the tensors have {} bytes, they have {}", source, index.total_bytes.value_or(0), bytes);
    }

    std::string path_;
    std::vector<SafetensorsFile> files_;
    std::map<std::string_view, std::size_t> places_;  // the file of every tensor
};

}  // namespace kimik3
