#pragma once
// The start of every parameter (spec 10). A tensor's stream of random numbers is chosen by its name, so its start
// depends on the seed and the name alone: not on the backend, the number of threads or the tensors beside it.

#include <cmath>
#include <vector>

#include "kimik3/core/rng.hpp"
#include "kimik3/tensor/arena.hpp"
#include "kimik3/tensor/parameters.hpp"
#include "kimik3/tensor/transfer.hpp"

namespace kimik3 {
namespace detail {

/// FNV-1a, 64 bits.
constexpr std::uint64_t hash_name(std::string_view name) {
    std::uint64_t hash = 0xcbf29ce484222325ull;
    for (char letter : name) hash = (hash ^ static_cast<unsigned char>(letter)) * 0x100000001b3ull;
    return hash;
}

/// The bias whose softplus is a time step drawn log-uniformly from [0.001, 0.1]. (TRAIN-1)
inline double draw_dt_bias(Philox& random) {
    const double dt = std::exp(random.uniform() * std::log(100.0) + std::log(0.001));
    return dt + std::log(-std::expm1(-dt));
}

template <class A>
void initialise_tensor(const ParameterInfo& tensor, double std_deviation, std::uint64_t seed, A* weights) {
    Philox random(seed, hash_name(tensor.name));
    const double conv_limit = 1.0 / std::sqrt(static_cast<double>(tensor.shape.back()));
    for (A& w : VectorView<A>(weights + tensor.offset, tensor.count)) {
        switch (tensor.rule.init) {
            case Init::normal: w = static_cast<A>(std_deviation * random.normal()); break;
            case Init::ones: w = A(1); break;
            case Init::zeros: w = A(0); break;
            case Init::conv: w = static_cast<A>((2.0 * random.uniform() - 1.0) * conv_limit); break;
            case Init::dt_bias: w = static_cast<A>(draw_dt_bias(random)); break;
        }
    }
}

}  // namespace detail

/// Fills the flat array of parameters that the table describes.
template <class A>
void initialise(const Context<Cpu>& ctx, const std::vector<ParameterInfo>& table, double std_deviation,
                std::uint64_t seed, VectorView<A> weights) {
    ctx.parallel_tasks(static_cast<Index>(table.size()), [&](Index t, int) {
        detail::initialise_tensor(table[to_size(t)], std_deviation, seed, weights.data);
    });
}
template <class Backend, class A>
void initialise(const Context<Backend>& ctx, const std::vector<ParameterInfo>& table, double std_deviation,
                std::uint64_t seed, VectorView<A> weights) {
    const Buffer<A> start(weights.size);
    initialise(Context<Cpu>(), table, std_deviation, seed, start.view());
    copy_from_host(ctx, std::span<const A>(start.data(), to_size(start.size())), weights);
}

}  // namespace kimik3
