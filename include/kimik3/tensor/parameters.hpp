#pragma once
// Parameters: every parameter struct names its fields once, in a function fields(visit); the model walks that list to lay
// all parameters out in one flat array and to fill the table of ParameterInfo below. Names, checkpoints, initialisation,
// optimizer groups, weight decay, counting and gradient checks read the table and nothing else.

#include <string>
#include <vector>

#include "kimik3/tensor/view.hpp"

namespace kimik3 {

enum class Init : std::uint8_t {
    normal,   // N(0, init_std)
    ones,     // norm weights
    zeros,    // A_log, AttnRes scorers
    conv,     // U(-1/sqrt(W), 1/sqrt(W)), W the last dimension
    dt_bias,  // inverse softplus of exp(U(ln 0.001, ln 0.1)): half-lives of 1.5 to 140 tokens (spec 2.9)
};

/// What a field is, beyond its name and shape.
struct FieldRule {
    Init init = Init::normal;
    /// Rows of the blocks that Muon orthogonalises one by one, cycled through: {} means AdamW, {0} the whole matrix,
    /// {D} blocks of D rows, {n, v} alternately n and v rows.
    std::vector<Index> muon_blocks{};
    bool decay = true;
    bool expert = false;  // routed: only experts_per_token of num_experts are active
};

/// One tensor of the checkpoint and its place in the flat parameter array.
struct ParameterInfo {
    std::string name;          // as in the released checkpoint, "model.layers.3.self_attn.q_proj.weight"
    std::vector<Index> shape;  // as in the released checkpoint
    Index offset = 0;          // elements, in the flat arrays of weights and of gradients
    Index count = 0;           // elements
    FieldRule rule{};
};

}  // namespace kimik3
