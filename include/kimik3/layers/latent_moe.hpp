#pragma once
// Stable LatentMoE (spec 6): a router at full width M chooses k of E experts for each token; the experts of inner width
// F work at latent width L; shared experts, one gated feed-forward of their joint width, see every token.
//   y = W_up RMSNorm(u) + shared(x),  u = sum over the chosen of p_e E_e(z),  z = W_down x
//   E_e(z) = w2_e SiTU(w1_e z, w3_e z), or with SwiGLU in its place
// Without a latent width (Kimi Linear) z = x and y = u + shared(x), and L below is M.
// The norm stands after the sum and before W_up (report Eq. 11). x and y [N, M]. Between forward and backward, count
// adds the routing to the statistics of quantile balancing: once a token, however often its activations are recomputed.

#include "kimik3/layers/dense_ffn.hpp"
#include "kimik3/ops/add.hpp"
#include "kimik3/ops/expert_products.hpp"
#include "kimik3/ops/quantile_balance.hpp"
#include "kimik3/ops/rms_norm.hpp"
#include "kimik3/ops/router.hpp"
#include "kimik3/ops/step_experts.hpp"
#include "kimik3/ops/step_products.hpp"

namespace kimik3 {

template <class Backend, class T>
struct LatentMoeLayer {
    using Shared = GatedFfn<Backend, T>;
    using Balance = kimik3::Balance;

    template <class Weight, class Kept>
    struct ParamsOf {
        MatrixView<Kept> gate;                     // [E, M] the router
        VectorView<Kept> e_score_correction_bias;  // [E] for the choice only
        VectorView<Kept> routed_expert_norm;         // [L], with config.latent_norm
        MatrixView<Weight> routed_expert_up_proj;    // [M, L], with a latent width, like routed_expert_down_proj
        MatrixView<Weight> w1, w3;                   // [E F, L] gate and up of the experts, one below the other
        MatrixView<Weight> w2;                       // [E L, F] down
        MatrixView<Weight> routed_expert_down_proj;  // [L, M]
        typename Shared::template ParamsOf<Weight> shared_experts;  // where there are any

        template <class Visit>
        void fields(const ModelConfig& c, Visit&& visit) {
            const Index width = c.hidden_size, latent = c.expert_width(), inner = c.moe_intermediate_size;
            const FieldRule whole{.muon_blocks = {0}};
            visit("gate.weight", gate, Index{c.num_experts}, width, whole);
            visit("gate.e_score_correction_bias", e_score_correction_bias, Index{c.num_experts},
                  FieldRule{.init = Init::zeros, .decay = false, .trained = false, .float32 = true});
            if (normed(c)) {
                visit("routed_expert_norm.weight", routed_expert_norm, latent,
                      FieldRule{.init = Init::ones, .decay = false});
            }
            if (has_latent(c)) visit("routed_expert_up_proj.weight", routed_expert_up_proj, width, latent, whole);
            visit.experts("experts.{}.w1.weight", w1, Index{c.num_experts}, inner, latent, whole);
            visit.experts("experts.{}.w3.weight", w3, Index{c.num_experts}, inner, latent, whole);
            visit.experts("experts.{}.w2.weight", w2, Index{c.num_experts}, latent, inner, whole);
            // Beside the shared experts' gate and up, so that products of all three are one.
            if (has_latent(c)) visit("routed_expert_down_proj.weight", routed_expert_down_proj, latent, width, whole);
            if (c.num_shared_experts > 0) {
                const auto scope = visit.within("shared_experts.");
                shared_experts.fields(width, c.shared_intermediate_size(), visit);
            }
        }
    };
    using Params = ParamsOf<T, accumulator_t<T>>;
    using Grads = ParamsOf<accumulator_t<T>, accumulator_t<T>>;

    struct Saved {
        MatrixView<accumulator_t<T>> scores;   // [N, E] backward: gradients of the router's logits
        MatrixView<std::int32_t> experts;      // [N, k]
        MatrixView<accumulator_t<T>> weights;  // [N, k] p; backward: dp
        VectorView<accumulator_t<T>> cutoff;   // [N]
        ExpertDispatch dispatch;
        MatrixView<T> z;                       // [N, L] with a latent width -> its gradient
        ExpertRows<Backend, T> expert;
        MatrixView<T> u, normed;               // [N, L] with a latent width, one where there is no norm between them;
                                               // normed in backward: du
        VectorView<accumulator_t<T>> r;        // [N] of the norm
        typename Shared::Saved shared;         // where there are shared experts
        MatrixView<T> pair_hidden, pair_out;   // [N k, F] and [N k, L] in a decoding step only
    };

    static Saved bind_saved(Arena& arena, const ModelConfig& c, const Sequences& seq) {
        using Wide = accumulator_t<T>;
        const Index tokens = seq.tokens(), experts = c.num_experts, chosen = c.num_experts_per_token,
                    latent = c.expert_width(), shared = c.shared_intermediate_size();
        Saved s;
        s.scores = arena.matrix<Wide>(tokens, experts);
        s.experts = arena.matrix<std::int32_t>(tokens, chosen);
        s.weights = arena.matrix<Wide>(tokens, chosen);
        s.cutoff = arena.vector<Wide>(tokens);
        s.dispatch = ExpertDispatch::bind(arena, tokens, chosen, experts);
        s.expert = ExpertRows<Backend, T>::bind(arena, s.dispatch.source.size, latent, c.moe_intermediate_size);
        const auto of_x = arena.columns<T>(tokens, {has_latent(c) ? latent : 0, shared, shared});
        s.z = of_x[0];
        if (shared > 0) s.shared = {of_x[1], of_x[2], arena.matrix<T>(tokens, shared)};
        if (has_latent(c)) s.u = s.normed = arena.matrix<T>(tokens, latent);
        if (normed(c)) {
            s.normed = arena.matrix<T>(tokens, latent);
            s.r = arena.vector<Wide>(tokens);
        }
        if (has_steps<Backend, T> && seq.single()) {
            s.pair_hidden = arena.matrix<T>(tokens * chosen, c.moe_intermediate_size);
            s.pair_out = arena.matrix<T>(tokens * chosen, latent);
        }
        return s;
    }

    /// y = residual, where there is one, + the layer of x.
    static void forward(const Context<Backend>& ctx, const ModelConfig& c, const Params& p, const Sequences&,
                        MatrixView<const T> x, MatrixView<T> y, Saved& s, MatrixView<const T> residual = {}) {
        router_forward(ctx, x, p.gate, p.e_score_correction_bias, rule(c), s.scores, s.experts, s.weights, s.cutoff);
        expert_dispatch(ctx, s.experts, s.dispatch);
        // (MOE-5)
        linear_forward(ctx, x, {{p.routed_expert_down_proj, s.z},
                                {p.shared_experts.gate_proj, s.shared.gate},
                                {p.shared_experts.up_proj, s.shared.up}});
        expert_products_forward(ctx, has_latent(c) ? s.z : x, p.w1, p.w3, p.w2, betas_of(c), s.dispatch, s.weights,
                                s.expert, has_latent(c) ? s.u : y);
        if (normed(c)) rms_norm_forward(ctx, s.u, p.routed_expert_norm, c.rms_norm_eps, s.normed, s.r);
        if (has_latent(c)) linear_forward(ctx, s.normed, p.routed_expert_up_proj, residual, y);
        else if (residual.rows > 0) add_to(ctx, residual, y);
        if (c.num_shared_experts > 0) Shared::forward_from_gate(ctx, betas_of(c), p.shared_experts, y, y, s.shared);
    }

    /// Whether there is a step.
    static bool steps(const ModelConfig& c) {
        return has_latent(c) && StepExperts<T>::fits(c.num_experts, c.num_experts_per_token) &&
               StepInput<T>::fits(c.expert_width(), c.shared_intermediate_size());
    }
    /// y = residual + the layer of in.
    static void step(const Context<Backend>& ctx, const ModelConfig& c, const Params& p, const StepInput<T>& in,
                     MatrixView<const T> residual, MatrixView<T> y, Saved& s) {
        using Product = StepProduct<T>;
        const bool shared = c.num_shared_experts > 0;
        step_products(ctx, in,
                      {shared ? Product::situ(p.shared_experts.gate_proj, p.shared_experts.up_proj, s.shared.hidden)
                              : Product{},
                       Product::plain(p.routed_expert_down_proj, s.z), Product::sigmoid(p.gate, s.scores)},
                      betas_of(c));
        step_experts(ctx, StepExperts<T>{s.scores, p.e_score_correction_bias, rule(c), betas_of(c), s.z, p.w1, p.w3,
                                         p.w2, s.experts, s.weights, s.pair_hidden, s.pair_out});
        StepInput<T> sum{.parts = s.pair_out, .weights = s.weights, .eps = c.rms_norm_eps, .normed = s.normed};
        if (normed(c)) sum.norm = p.routed_expert_norm;
        Product up = Product::plain(p.routed_expert_up_proj, y, residual);
        if (shared) up.second = s.shared.hidden, up.w2 = p.shared_experts.down_proj;
        step_products(ctx, sum, {up});
    }

    /// counted [N]: 0 for tokens that balancing leaves out (ignored targets, padding); empty: none is.
    static void count(const Context<Backend>& ctx, const Params& p, const Saved& s,
                      VectorView<const std::uint8_t> counted, const Balance& balance) {
        balance_count(ctx, s.scores, s.cutoff, s.experts, p.e_score_correction_bias, counted, balance);
    }

    static void backward(const Context<Backend>& ctx, const ModelConfig& c, const Params& p, Grads& g, const Sequences&,
                         MatrixView<const T> x, MatrixView<const T> dy, MatrixView<T> dx, Saved& s) {
        if (has_latent(c)) {
            matmul_tn(ctx, dy, s.normed, g.routed_expert_up_proj, Add::yes);
            matmul_nn(ctx, dy, p.routed_expert_up_proj, s.normed, Add::no);
        }
        if (normed(c)) rms_norm_backward(ctx, s.normed, s.u, p.routed_expert_norm, s.r, s.normed, g.routed_expert_norm);
        expert_products_backward(ctx, has_latent(c) ? s.z : x, has_latent(c) ? s.normed : dy, p.w1, p.w3, p.w2,
                                 betas_of(c), s.dispatch, s.expert, s.weights, has_latent(c) ? s.z : dx, g.w1, g.w3,
                                 g.w2);
        if (c.num_shared_experts > 0)
            Shared::backward_to_gate(ctx, betas_of(c), p.shared_experts, g.shared_experts, dy, s.shared);
        linear_backward(ctx,
                        {{s.z, p.routed_expert_down_proj, g.routed_expert_down_proj},
                         {s.shared.gate, p.shared_experts.gate_proj, g.shared_experts.gate_proj},
                         {s.shared.up, p.shared_experts.up_proj, g.shared_experts.up_proj}},
                        x, dx, has_latent(c) ? Add::no : Add::yes);
        router_backward(ctx, x, p.gate, rule(c), s.experts, s.weights, s.scores, dx, g.gate);
    }

private:
    static RouterRule rule(const ModelConfig& c) { return {c.moe_renormalize, c.routed_scaling_factor}; }
    static bool has_latent(const ModelConfig& c) { return c.moe_latent_size > 0; }
    static bool normed(const ModelConfig& c) { return has_latent(c) && c.latent_norm; }
};

}  // namespace kimik3
