#pragma once
// Parameters: every parameter struct names its fields once, in a function fields(visit); the model walks that list to
// lay all parameters out in one flat array and to fill the table of ParameterInfo below. Names, checkpoints,
// initialisation, optimizer groups, weight decay, counting and gradient checks read the table and nothing else.

#include <array>
#include <initializer_list>
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

/// At most three sizes, without an allocation.
struct Extents {
    constexpr Extents() = default;
    constexpr Extents(std::initializer_list<Index> sizes) {
        for (const Index size : sizes) at[to_size(count++)] = size;
    }

    constexpr Index size() const { return count; }
    constexpr bool empty() const { return count == 0; }
    constexpr const Index* begin() const { return at.data(); }
    constexpr const Index* end() const { return at.data() + count; }
    friend constexpr bool operator==(const Extents&, const Extents&) = default;

    std::array<Index, 3> at{};
    Index count = 0;
};

/// What a field is, beyond its name and shape.
struct FieldRule {
    Init init = Init::normal;
    /// Rows of the blocks that Muon orthogonalises one by one, cycled through: {} means AdamW, {0} the whole matrix,
    /// {D} blocks of D rows, {n, v} alternately n and v rows.
    Extents muon_blocks{};
    bool decay = true;
    bool trained = true;     // false: a buffer of the checkpoint that no optimizer touches
    Extents shape{};         // in the checkpoint, where it is not [rows, cols] or [size]
    bool float32 = false;    // the released files keep it in float32, whatever the rest is in (spec 9.2)
};

/// A visitor of fields (model/parameter_layout.hpp) has these calls; name is the tail of the checkpoint name:
///   visit(name, matrix view, rows, cols, rule)         a matrix [rows, cols]
///   visit(name, vector view, size, rule)               a vector [size]
///   visit.experts(name, matrix view, experts, rows, cols, rule)
///       experts matrices [rows, cols] one below the other; "{}" in the name stands for the expert
///   visit.within(prefix)                               while the result lives, names have the prefix before them
///   visit.within_layer(l)                              the same with the prefix of layer l

/// Below a matrix of the flat arrays stand rows of zeros, so many that the number of rows is a multiple of this, which
/// products on tensor cores ask for. with_padding(m): the matrix and these rows.
inline constexpr Index row_unit = 8;
template <class T>
constexpr MatrixView<T> with_padding(MatrixView<T> m) {
    return {m.data, round_up(m.rows, row_unit), m.cols, m.stride};
}

/// One tensor of the checkpoint and its place in the flat parameter array.
struct ParameterInfo {
    std::string name;          // as in the released checkpoint, "model.layers.3.self_attn.q_proj.weight"
    std::vector<Index> shape;  // as in the released checkpoint
    Index offset = 0;          // elements, in the flat arrays of weights and of gradients
    Index count = 0;           // elements
    Index experts = 0;         // routed experts that this is one of; 0: not a routed expert
    FieldRule rule{};
};

}  // namespace kimik3
