#pragma once
// The parameters of a model without what computes with them: all that files of weights need, and quick to compile.

#include "kimik3/config/presets.hpp"
#include "kimik3/io/checkpoint.hpp"
#include "kimik3/model/initialise.hpp"
#include "kimik3/model/model_params.hpp"
#include "kimik3/model/parameter_layout.hpp"

namespace kimik3::test {

/// The parameters of KimiK3<config, Cpu, T>, as its constructor makes them.
template <ModelConfig config_value, class T>
class Stored {
public:
    using A = T;
    using BackendTag = Cpu;
    static constexpr ModelConfig config = config_value;

    explicit Stored(std::uint64_t seed) {
        ModelParams<schedule_of<config>, Cpu, T, T>().fields(config, FieldBinder<T, T>(table_));
        weights_.resize(to_size(table_.size()));
        initialise(ctx_, table_.entries(), config.init_std, seed, weights());
    }
    const Context<Cpu>& context() const { return ctx_; }
    const std::vector<ParameterInfo>& parameters() const { return table_.entries(); }
    VectorView<T> weights() const { return {weights_.data(), static_cast<Index>(weights_.size())}; }

private:
    Context<Cpu> ctx_{1};
    ParameterTable table_;
    mutable std::vector<T> weights_;
};

}  // namespace kimik3::test
