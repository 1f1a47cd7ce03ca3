#pragma once
// Which rule steps which parameter: the report of an optimizer's groups, and their only source. Muon takes the matrices
// whose FieldRule names blocks, AdamW every other trained tensor.

#include <string_view>

#include "kimik3/core/error.hpp"
#include "kimik3/tensor/parameters.hpp"

namespace kimik3 {

enum class OptimizerKind : std::uint8_t { adamw, muon };

constexpr std::string_view name_of(OptimizerKind kind) { return kind == OptimizerKind::adamw ? "adamw" : "muon"; }

inline OptimizerKind optimizer_from_name(std::string_view name) {
    for (const OptimizerKind kind : {OptimizerKind::adamw, OptimizerKind::muon}) {
        if (name == name_of(kind)) return kind;
    }
    fail("an optimizer is one of adamw, muon; got '{}'", name);
}

enum class GroupKind : std::uint8_t { none, adamw, muon };  // none: no optimizer touches it

struct ParameterGroup {
    std::string name;
    GroupKind kind = GroupKind::none;
    bool decay = false;
    // Muon: blocks in all, of block_rows rows, cycled through, and cols columns.
    Index blocks = 0, cols = 0;
    std::vector<Index> block_rows{};
};

/// One entry a parameter. Throws unless Muon blocks tile their matrix.
inline std::vector<ParameterGroup> parameter_groups(const std::vector<ParameterInfo>& parameters, OptimizerKind kind);

namespace detail {

inline std::string listed(const std::vector<Index>& numbers) {
    std::string text;
    for (const Index number : numbers) text += fmt::format("{}{}", text.empty() ? "" : ", ", number);
    return text;
}

/// Fills in the blocks of a Muon matrix.
inline void tile(const ParameterInfo& info, ParameterGroup& group) {
    require(info.shape.size() == 2 && info.shape[0] * info.shape[1] == info.count,
            "Muon takes matrices; '{}' of {} elements has the shape [{}]", info.name, info.count, listed(info.shape));
    const Index rows = info.shape[0];
    group.cols = info.shape[1];
    group.block_rows.assign(info.rule.muon_blocks.begin(), info.rule.muon_blocks.end());
    if (group.block_rows == std::vector<Index>{0}) group.block_rows = {rows};
    Index cycle = 0;
    for (const Index block : group.block_rows) {
        require(block > 0 && block <= rows, "a Muon block of '{}' has 1 to {} rows, got {}", info.name, rows, block);
        cycle += block;
    }
    require(rows % cycle == 0, "Muon blocks of [{}] rows must tile the {} rows of '{}'", listed(group.block_rows), rows,
            info.name);
    group.blocks = rows / cycle * static_cast<Index>(group.block_rows.size());
}

}  // namespace detail

inline std::vector<ParameterGroup> parameter_groups(const std::vector<ParameterInfo>& parameters, OptimizerKind kind) {
    std::vector<ParameterGroup> groups;
    for (const ParameterInfo& info : parameters) {
        ParameterGroup group{.name = info.name};
        if (info.rule.trained) {
            const bool muon = kind == OptimizerKind::muon && !info.rule.muon_blocks.empty();
            group.kind = muon ? GroupKind::muon : GroupKind::adamw;
            group.decay = info.rule.decay;
            if (muon) detail::tile(info, group);
        }
        groups.push_back(std::move(group));
    }
    return groups;
}

}  // namespace kimik3
