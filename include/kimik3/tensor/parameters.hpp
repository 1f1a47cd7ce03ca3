#pragma once
// Parameters: every parameter struct names its fields once, in a function fields(visit); the model walks that list to
// lay all parameters out in one flat array and to fill the table of ParameterInfo below. Names, checkpoints,
// initialisation, optimizer groups, weight decay, counting and gradient checks read the table and nothing else.

#include <string>
#include <string_view>
#include <utility>
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
    bool trained = true;          // false: a buffer of the checkpoint that no optimizer touches
    std::vector<Index> shape{};   // in the checkpoint, where it is not [rows, cols] or [size]
    bool float32 = false;         // the released files keep it in float32, whatever the rest is in (spec 9.2)
};

/// A visitor of fields has three calls (name is the tail of the checkpoint name, rule a FieldRule):
///   visit(name, matrix view, rows, cols, rule)         a matrix [rows, cols]
///   visit(name, vector view, size, rule)               a vector [size]
///   visit.experts(name, matrix view, experts, rows, cols, rule)
///       experts matrices [rows, cols] one below the other; "{}" in the name stands for the expert

/// One tensor of the checkpoint and its place in the flat parameter array.
struct ParameterInfo {
    std::string name;          // as in the released checkpoint, "model.layers.3.self_attn.q_proj.weight"
    std::vector<Index> shape;  // as in the released checkpoint
    Index offset = 0;          // elements, in the flat arrays of weights and of gradients
    Index count = 0;           // elements
    Index experts = 0;         // routed experts that this is one of; 0: not a routed expert
    FieldRule rule{};
};

/// Passes every field on with a prefix before its name.
template <class Visit>
class PrefixedVisit {
public:
    PrefixedVisit(std::string prefix, Visit& visit) : prefix_(std::move(prefix)), visit_(visit) {}
    /// A prefix behind a prefix.
    PrefixedVisit(const std::string& prefix, PrefixedVisit<Visit>& outer)
        : PrefixedVisit(outer.prefix_ + prefix, outer.visit_) {}

    template <class View, class... Rest>
    void operator()(std::string_view name, View& view, Rest&&... rest) {
        visit_(prefix_ + std::string(name), view, rest...);
    }
    template <class View, class... Rest>
    void experts(std::string_view name, View& view, Rest&&... rest) {
        visit_.experts(prefix_ + std::string(name), view, rest...);
    }

private:
    std::string prefix_;
    Visit& visit_;
};

template <class Visit>
PrefixedVisit(std::string, PrefixedVisit<Visit>&) -> PrefixedVisit<Visit>;

}  // namespace kimik3
