#pragma once
// The parameters of a model in the files of a released checkpoint (spec 9.2): float32, bf16, float16 or float64 under
// the released names, which may all begin with "language_model."; matrices packed as MXFP4 (name_packed, name_scale);
// A_log as [H] or [1, 1, H, 1], padded with zeros behind the last head; lm_head beside a tied embedding where the two
// are equal. The constructor holds every name and shape against the model: what is missing, unknown or misshapen is an
// Error that names the tensor. Tensors of the released vision part (vision_tower., mm_projector.) are left alone.

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "kimik3/io/mxfp4.hpp"
#include "kimik3/io/tensor_files.hpp"
#include "kimik3/tensor/parameters.hpp"

namespace kimik3 {

/// What the names of a checkpoint that also has a vision part begin with.
inline constexpr std::string_view language_prefix = "language_model.";

class StoredWeights {
public:
    /// head_is_embedding: the checkpoint is known to be of a tied model, so a head of the model's own is filled with
    /// the embedding where the files have none. parameters must outlive this.
    StoredWeights(const std::filesystem::path& path, const std::vector<ParameterInfo>& parameters,
                  bool head_is_embedding = false)
        : files_(path), parameters_(parameters), head_is_embedding_(head_is_embedding) {
        files_.each_name([&](std::string_view name) {
            if (name.starts_with(language_prefix)) prefix_ = language_prefix;
        });
        std::set<std::string> wanted;
        for (const ParameterInfo& tensor : parameters_) check(tensor, wanted);
        files_.each_name([&](std::string_view name) {
            if (!wanted.contains(std::string(name))) check_extra(name);
        });
    }

    /// All parameters into a flat array, each at its offset. An Error leaves the array half written.
    template <class A>
    void read(A* weights) const {
        for (const ParameterInfo& tensor : parameters_) read_one(tensor, weights + tensor.offset);
        if (has_second_head_) check_second_head(weights);
    }

private:
    static constexpr const char *head_name = "lm_head.weight", *embedding_name = "model.embed_tokens.weight";

    /// The name under which the files have a parameter.
    std::string stored_name(const ParameterInfo& tensor) const {
        const std::string name = prefix_ + tensor.name;
        const bool copied = head_is_embedding_ && tensor.name == head_name && !files_.contains(name);
        return copied ? prefix_ + embedding_name : name;
    }

    bool is_packed(const std::string& name) const {
        return !files_.contains(name) && files_.contains(name + "_packed");
    }

    static bool is_a_log(const ParameterInfo& tensor) { return tensor.name.ends_with("A_log"); }

    void check(const ParameterInfo& tensor, std::set<std::string>& wanted) const {
        const std::string name = stored_name(tensor);
        if (is_packed(name)) {
            require(tensor.shape.size() == 2 && tensor.shape[1] % mxfp4_group == 0,
                    "'{}' has '{}_packed', but only matrices whose rows are a multiple of {} long are packed: [{}] is "
                    "not", files_.path(), detail::shown_name(name), mxfp4_group, fmt::join(tensor.shape, ", "));
            check_shape(name + "_packed", {tensor.shape[0], tensor.shape[1] / 2});
            check_shape(name + "_scale", {tensor.shape[0], tensor.shape[1] / mxfp4_group});
            wanted.insert({name + "_packed", name + "_scale"});
            return;
        }
        wanted.insert(name);
        if (is_a_log(tensor)) check_a_log(name, tensor.count);
        else check_shape(name, tensor.shape);
    }

    void check_shape(const std::string& name, const std::vector<Index>& expected) const {
        const std::vector<Index>& shape = files_.find(name).shape;
        require(shape == expected, "tensor '{}' of '{}' must have the shape [{}], it has [{}]",
                detail::shown_name(name), files_.path(), fmt::join(expected, ", "), fmt::join(shape, ", "));
    }

    void check_a_log(const std::string& name, Index heads) const {
        const std::vector<Index>& shape = files_.find(name).shape;
        const bool vector = shape.size() == 1 && shape[0] >= heads;
        const bool boxed = shape.size() == 4 && shape[0] == 1 && shape[1] == 1 && shape[2] >= heads && shape[3] == 1;
        require(vector || boxed,
                "tensor '{}' of '{}' must have the shape [{}], more numbers or [1, 1, {}, 1], it has [{}]",
                detail::shown_name(name), files_.path(), heads, heads, fmt::join(shape, ", "));
    }

    /// A tensor that no parameter wants.
    void check_extra(std::string_view name) {
        const std::string_view tail = name.substr((std::min)(prefix_.size(), name.size()));
        if (!prefix_.empty() && (name.starts_with("vision_tower.") || name.starts_with("mm_projector."))) return;
        const ParameterInfo* embedding = find_parameter(embedding_name);
        has_second_head_ = name.starts_with(prefix_) && tail == head_name && embedding != nullptr &&
                           files_.find(name).shape == embedding->shape;
        require(has_second_head_, "'{}' has a tensor '{}' that the model has no place for", files_.path(),
                detail::shown_name(name));
    }

    const ParameterInfo* find_parameter(std::string_view name) const {
        for (const ParameterInfo& tensor : parameters_)
            if (tensor.name == name) return &tensor;
        return nullptr;
    }

    template <class A>
    void read_one(const ParameterInfo& tensor, A* values) const {
        const std::string name = stored_name(tensor);
        if (is_packed(name)) return read_packed(name, tensor, values);
        files_.read_part(name, 0, values, tensor.count);
        if (!is_a_log(tensor)) return;
        std::vector<A> padding(to_size(files_.find(name).count - tensor.count));
        files_.read_part(name, tensor.count, padding.data(), static_cast<Index>(padding.size()));
        for (const A number : padding)
            require(number == A(0), "tensor '{}' of '{}' has {} behind the {} heads of the model; padding is zero",
                    detail::shown_name(name), files_.path(), number, tensor.count);
    }

    template <class A>
    void read_packed(const std::string& name, const ParameterInfo& tensor, A* values) const {
        const Index rows = tensor.shape[0], cols = tensor.shape[1];
        std::vector<std::uint8_t> packed(to_size(cols / 2)), scales(to_size(cols / mxfp4_group));
        for (Index row = 0; row < rows; ++row) {
            const Index bytes = static_cast<Index>(packed.size()), groups = static_cast<Index>(scales.size());
            files_.read_part(name + "_packed", row * bytes, packed.data(), bytes);
            files_.read_part(name + "_scale", row * groups, scales.data(), groups);
            for (const std::uint8_t scale : scales)
                require(scale <= mxfp4_largest_scale,
                        "tensor '{}_scale' of '{}' has the scale {} in row {}; at most {} is a finite number",
                        detail::shown_name(name), files_.path(), int{scale}, row, mxfp4_largest_scale);
            unpack_mxfp4<A>(packed, scales, values + row * cols);
        }
    }

    template <class A>
    void check_second_head(const A* weights) const {
        const ParameterInfo& embedding = *find_parameter(embedding_name);
        const Index piece = embedding.shape[1];
        std::vector<A> head(to_size(piece));
        for (Index done = 0; done < embedding.count; done += piece) {
            files_.read_part(prefix_ + head_name, done, head.data(), piece);
            require(std::equal(head.begin(), head.end(), weights + embedding.offset + done),
                    "'{}' has an '{}{}' that differs from the embedding, of token {} first: the model, whose head is "
                    "the embedding (tie_embeddings), has no place for it", files_.path(), prefix_, head_name,
                    done / piece);
        }
    }

    TensorFiles files_;
    const std::vector<ParameterInfo>& parameters_;
    bool head_is_embedding_, has_second_head_ = false;
    std::string prefix_;
};

}  // namespace kimik3
