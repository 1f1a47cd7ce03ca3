#pragma once
// Looking inside a model without disturbing it. look_inside runs a text of N tokens through the model and keeps, token
// by token, which experts the routers chose, how the AttnRes sites mixed the depth, and how fast KDA forgot. It reads
// the activations of an inference pass (KimiK3::observe): gradients, balancing statistics and weights stay as they are,
// and a model that is never looked into pays nothing. Probe adds up any number of such passes into the expert load, the
// mean depth weights and the decay histograms of a text.
// A decay g, the log of what a channel keeps in a token, is shown as its half-life ln 2 / -g in tokens.

#include <cmath>
#include <numbers>

#include "kimik3/model/kimi_k3.hpp"
#include "kimik3/ops/decay_gate.hpp"

namespace kimik3 {

/// Where the depth is read: before a layer's attention, before its feed-forward, before the head.
enum class DepthSite : std::uint8_t { attention, feed_forward, output };

constexpr std::string_view name_of(DepthSite site) {
    constexpr std::string_view names[] = {"attention", "feed-forward", "output"};
    return names[static_cast<std::size_t>(site)];
}

/// The choices of one router.
struct RouterChoices {
    Index layer = 0, experts = 0, chosen = 0;  // experts in all, and k of them for each token
    std::vector<std::int32_t> expert{};        // [N, k] best first
    std::vector<double> weight{};              // [N, k]
};

/// The mixture of one site: of the stored endpoints, oldest first, and last the running sum.
struct DepthWeights {
    Index layer = 0;  // of the output: the number of layers
    DepthSite site = DepthSite::attention;
    Index candidates = 0;
    std::vector<double> weight{};  // [N, J]
};

/// Half-lives of one KDA layer, counted over tokens and channels, but for NaN: ten bins to a power of ten, from 0.1 to
/// 100,000 tokens; the first and the last bin take in what lies beyond.
struct DecayHistogram {
    static constexpr Index bins = 60;
    Index layer = 0, heads = 0;
    std::vector<Index> count{};  // [H, bins]

    /// The bin of a log-decay below zero; that of zero, which forgets nothing, is the last.
    static Index bin_of(double log_decay) {
        const double place = 10.0 * (std::log10(std::numbers::ln2 / -log_decay) + 1.0);
        return !(place < static_cast<double>(bins)) ? bins - 1 : place < 0.0 ? 0 : static_cast<Index>(place);
    }
};

/// What one pass did, token by token. Sites with nothing to mix are left out.
struct Observation {
    Index tokens = 0;
    std::vector<RouterChoices> routers{};
    std::vector<DepthWeights> depth{};
    std::vector<DecayHistogram> decay{};
};

template <class Model>
Observation look_inside(Model& model, Tokens tokens, const Sequences& sequences);

template <class Model>
Observation look_inside(Model& model, Tokens tokens, Index batch = 1) {
    const Index count = static_cast<Index>(tokens.size());
    require(batch >= 1 && count % batch == 0, "{} tokens do not make {} sequences of equal length", count, batch);
    return look_inside(model, tokens, Sequences::uniform(batch, count / batch));
}

/// Sums over the tokens of any number of passes through one model.
class Probe {
public:
    struct Load {
        Index layer = 0, chosen = 0;
        std::vector<Index> tokens{};  // [E] that went to each expert
    };
    struct Depth {
        Index layer = 0;
        DepthSite site = DepthSite::attention;
        std::vector<double> sum{};  // [J] of the weights over tokens
    };

    void add(const Observation& seen) {
        if (tokens_ == 0) lay_out(seen);
        require(seen.routers.size() == load_.size() && seen.depth.size() == depth_.size() &&
                    seen.decay.size() == decay_.size(),
                "a probe adds up passes through one model, which has {} routers; this pass has {}", load_.size(),
                seen.routers.size());
        tokens_ += seen.tokens;
        for (std::size_t r = 0; r < load_.size(); ++r)
            for (const std::int32_t expert : seen.routers[r].expert) ++load_[r].tokens[to_size(expert)];
        for (std::size_t d = 0; d < depth_.size(); ++d) {
            std::vector<double>& sum = depth_[d].sum;
            for (std::size_t at = 0; at < seen.depth[d].weight.size(); ++at)
                sum[at % sum.size()] += seen.depth[d].weight[at];
        }
        for (std::size_t h = 0; h < decay_.size(); ++h)
            for (std::size_t b = 0; b < decay_[h].count.size(); ++b) decay_[h].count[b] += seen.decay[h].count[b];
    }

    Index tokens() const { return tokens_; }
    const std::vector<Load>& load() const { return load_; }
    const std::vector<Depth>& depth() const { return depth_; }
    const std::vector<DecayHistogram>& decay() const { return decay_; }

    /// An expert's share of the choices over its even share: 1 where the load is even, 0 where nothing was chosen yet.
    double relative_load(const Load& load, Index expert) const {
        const double even = static_cast<double>(tokens_ * load.chosen) / static_cast<double>(load.tokens.size());
        return even == 0.0 ? 0.0 : static_cast<double>(load.tokens[to_size(expert)]) / even;
    }

private:
    void lay_out(const Observation& seen) {
        load_.clear(), depth_.clear(), decay_.clear();
        for (const RouterChoices& r : seen.routers)
            load_.push_back({r.layer, r.chosen, std::vector<Index>(to_size(r.experts))});
        for (const DepthWeights& d : seen.depth)
            depth_.push_back({d.layer, d.site, std::vector<double>(to_size(d.candidates))});
        for (const DecayHistogram& h : seen.decay)
            decay_.push_back({h.layer, h.heads, std::vector<Index>(h.count.size())});
    }

    Index tokens_ = 0;
    std::vector<Load> load_;
    std::vector<Depth> depth_;
    std::vector<DecayHistogram> decay_;
};

namespace detail {

template <class To, class Backend, class From>
std::vector<To> copied_to_host(const Context<Backend>& ctx, MatrixView<From> device) {
    std::vector<std::remove_const_t<From>> memory;
    const auto view = on_host(ctx, MatrixView<const From>(device), memory);
    std::vector<To> values;
    values.reserve(to_size(view.size()));
    for (Index r = 0; r < view.rows; ++r)
        for (Index c = 0; c < view.cols; ++c) values.push_back(static_cast<To>(view(r, c)));
    return values;
}

/// seen.depth: a site, unless it has nothing to mix.
template <class Backend, class Read>
void observe_depth(const Context<Backend>& ctx, Index layer, DepthSite site, const Read& read, Observation& seen) {
    if (read.site.p.cols == 0) return;
    seen.depth.push_back({layer, site, read.site.p.cols, copied_to_host<double>(ctx, read.site.p)});
}

template <class T, class Backend, class Params, class Saved>
DecayHistogram decay_of(const Context<Backend>& ctx, const ModelConfig& c, Index layer, const Params& p,
                        const Saved& s) {
    const Buffer<T, Backend> memory(s.z.size());
    const MatrixView<T> decay(memory.data(), s.z.rows, s.z.cols);
    decay_gate_forward(ctx, DecayGateForm{c.kda_gate, c.kda_lower_bound}, s.z, p.A_log, p.dt_bias, decay);
    DecayHistogram histogram{layer, p.A_log.size, std::vector<Index>(to_size(p.A_log.size * DecayHistogram::bins))};
    const Index width = decay.cols / histogram.heads;
    const std::vector<double> values = copied_to_host<double>(ctx, decay);
    for (std::size_t at = 0; at < values.size(); ++at) {
        if (std::isnan(values[at])) continue;
        const Index head = static_cast<Index>(at) % decay.cols / width;
        ++histogram.count[to_size(head * DecayHistogram::bins + DecayHistogram::bin_of(values[at]))];
    }
    return histogram;
}

}  // namespace detail

template <class Model>
Observation look_inside(Model& model, Tokens tokens, const Sequences& sequences) {
    const auto& ctx = model.context();
    const ModelConfig& c = Model::config;
    Observation seen{.tokens = static_cast<Index>(tokens.size())};
    model.observe(tokens, sequences, [&](auto layer, const auto& params, const auto& saved) {
        detail::observe_depth(ctx, layer, DepthSite::attention, saved.attention_read, seen);
        if constexpr (requires { params.attention.A_log; })
            seen.decay.push_back(
                detail::decay_of<typename Model::Number>(ctx, c, layer, params.attention, saved.attention));
        detail::observe_depth(ctx, layer, DepthSite::feed_forward, saved.ffn_read, seen);
        if constexpr (requires { saved.feed_forward.experts; }) {
            const auto& routed = saved.feed_forward;
            seen.routers.push_back({layer, c.num_experts, c.num_experts_per_token,
                                    detail::copied_to_host<std::int32_t>(ctx, routed.experts),
                                    detail::copied_to_host<double>(ctx, routed.weights)});
        }
    });
    detail::observe_depth(ctx, Model::config.num_layers, DepthSite::output, model.output_read(), seen);
    return seen;
}

}  // namespace kimik3
