#pragma once
// Gated Multi-head Latent Attention without positions (spec 3), x and y [N, M], H heads:
//   q = W_qb norm(W_qa x), or W_q x where the query has no rank, a head [q_nope (n) | q_shared (r)]
//   [latent (c) | k_shared (r)] = W_kva x
//   kv = W_kvb norm(latent), a head [k_nope (n) | v]
//   o = causal attention;  y = W_o (o sigmoid(W_g x)), the gate being optional
// Decoding keeps the normed latent and the raw shared key of every token and never expands them: the rows W_UK [n, c]
// and W_UV [v, c] of a head in W_kvb are applied to the query and to the sum of latents instead (spec 3.4).

#include "kimik3/config/model_config.hpp"
#include "kimik3/layers/linear.hpp"
#include "kimik3/ops/causal_attention.hpp"
#include "kimik3/ops/latent_attention.hpp"
#include "kimik3/ops/rms_norm.hpp"
#include "kimik3/ops/sigmoid_gate.hpp"
#include "kimik3/ops/step_latent.hpp"
#include "kimik3/ops/step_products.hpp"
#include "kimik3/tensor/arena.hpp"
#include "kimik3/tensor/parameters.hpp"
#include "kimik3/tensor/sequences.hpp"

namespace kimik3 {

template <class Backend, class T>
struct MlaLayer {
    using A = accumulator_t<T>;

    template <class Weight, class Kept>
    struct ParamsOf {
        MatrixView<Weight> q_proj;              // [H(n+r), M], only where the query has no rank
        MatrixView<Weight> q_a_proj;            // [q_r, M]
        VectorView<Kept> q_a_layernorm;         // [q_r]
        MatrixView<Weight> q_b_proj;            // [H(n+r), q_r]
        MatrixView<Weight> kv_a_proj_with_mqa;  // [c+r, M]
        VectorView<Kept> kv_a_layernorm;        // [c]
        MatrixView<Weight> kv_b_proj;           // [H(n+v), c]
        MatrixView<Weight> g_proj;              // [H v, M], no field without the output gate
        MatrixView<Weight> o_proj;              // [M, H v]

        template <class Visit>
        void fields(const ModelConfig& c, Visit&& visit) {
            const MlaHeads heads = heads_of(c);
            const Index width = c.hidden_size, q_rank = c.q_lora_rank, kv_rank = c.kv_lora_rank;
            const FieldRule whole{.muon_blocks = {0}}, norm{.init = Init::ones, .decay = false};
            const FieldRule per_head{.muon_blocks = {heads.key()}};
            if (q_rank == 0) {
                visit("q_proj.weight", q_proj, heads.count * heads.key(), width, per_head);
            } else {
                visit("q_a_proj.weight", q_a_proj, q_rank, width, whole);
            }
            visit("kv_a_proj_with_mqa.weight", kv_a_proj_with_mqa, kv_rank + heads.shared, width, whole);
            if (c.mla_output_gate)
                visit("g_proj.weight", g_proj, heads.count * heads.value, width,
                      FieldRule{.muon_blocks = {heads.value}});
            if (q_rank != 0) {
                visit("q_a_layernorm.weight", q_a_layernorm, q_rank, norm);
                visit("q_b_proj.weight", q_b_proj, heads.count * heads.key(), q_rank, per_head);
            }
            visit("kv_a_layernorm.weight", kv_a_layernorm, kv_rank, norm);
            visit("kv_b_proj.weight", kv_b_proj, heads.count * (heads.nope + heads.value), kv_rank,
                  FieldRule{.muon_blocks = {heads.nope, heads.value}});
            visit("o_proj.weight", o_proj, width, heads.count * heads.value, whole);
        }
    };
    using Params = ParamsOf<T, A>;
    using Grads = ParamsOf<A, A>;

    /// Members marked with an arrow hold a gradient during backward.
    struct Saved {
        MatrixView<T> q_low;           // [N, q_r] W_qa x -> its gradient; no columns where the query has no rank
        VectorView<A> q_r;             // [N] of q_a_layernorm
        MatrixView<T> q_normed;        // [N, q_r] -> its gradient
        MatrixView<T> q;               // [N, H(n+r)] -> its gradient
        MatrixView<T> kv_low;          // [N, c+r] latent and shared key -> its gradient
        VectorView<A> kv_r;            // [N] of kv_a_layernorm
        MatrixView<T> latent;          // [N, c] normed -> its gradient
        MatrixView<T> o;               // [N, H v]
        MatrixView<A> lse;             // [N, H]
        MatrixView<T> kv;              // [N, H(n+v)] -> its gradient
        MatrixView<T> gate;            // [N, H v], empty without the gate -> its gradient
        MatrixView<T> gated;           // [N, H v] what o_proj reads with the gate -> the gradient of o
        MatrixView<T> q_lat, o_lat;    // [N, H c] each, inference only: in the memory of kv and gated
    };

    static Saved bind_saved(Arena& arena, const ModelConfig& c, const Sequences& seq) {
        const MlaHeads heads = heads_of(c);
        const Index tokens = seq.tokens(), values = heads.count * heads.value, latents = heads.count * c.kv_lora_rank;
        Saved s{};
        // side by side, as their weights lie, for one product
        const auto of_x = arena.columns<T>(tokens, {c.q_lora_rank == 0 ? heads.count * heads.key() : Index{0},
                                                    c.q_lora_rank, c.kv_lora_rank + heads.shared,
                                                    c.mla_output_gate ? values : Index{0}});
        s.q_low = of_x[1], s.kv_low = of_x[2], s.gate = of_x[3];
        s.q = c.q_lora_rank == 0 ? of_x[0] : arena.matrix<T>(tokens, heads.count * heads.key());
        s.q_normed = arena.matrix<T>(tokens, c.q_lora_rank);
        s.q_r = arena.vector<A>(tokens), s.kv_r = arena.vector<A>(tokens);
        s.latent = arena.matrix<T>(tokens, c.kv_lora_rank);
        s.o = arena.matrix<T>(tokens, values);
        s.lse = arena.matrix<A>(tokens, heads.count);

        const Index mark = arena.used_bytes();
        s.q_lat = arena.matrix<T>(tokens, latents), s.o_lat = arena.matrix<T>(tokens, latents);
        const Index end = arena.used_bytes();
        arena.rewind(mark);
        s.kv = arena.matrix<T>(tokens, heads.count * (heads.nope + heads.value));
        s.gated = arena.matrix<T>(tokens, values);
        if (arena.used_bytes() < end) arena.vector<std::byte>(end - arena.used_bytes());
        return s;
    }

    /// What decoding keeps.
    struct State {
        MatrixView<T> cache;  // [slots, max_len (c+r)], a token [normed latent | shared key]

        /// Calls visit with every member.
        template <class Visit>
        void each(Visit&& visit) const {
            visit(cache);
        }
    };

    static State bind_state(Arena& arena, const ModelConfig& c, Index slots, Index max_len) {
        return {arena.matrix<T>(slots, max_len * (Index{c.kv_lora_rank} + c.qk_rope_head_dim))};
    }

    /// y = residual, where there is one, + the layer of x. With a state, tokens past its max_len are refused before it
    /// is changed.
    static void forward(const Context<Backend>& ctx, const ModelConfig& c, const Params& p, const Sequences& seq,
                        MatrixView<const T> x, MatrixView<T> y, Saved& s, State* state = nullptr,
                        MatrixView<const T> residual = {}) {
        const MlaHeads heads = heads_of(c);
        linear_forward(ctx, x, {{p.q_proj, s.q}, {p.q_a_proj, s.q_low}, {p.kv_a_proj_with_mqa, s.kv_low},
                                {p.g_proj, s.gate}});
        if (c.q_lora_rank != 0) {
            rms_norm_forward(ctx, s.q_low, p.q_a_layernorm, c.mla_lora_norm_eps, s.q_normed, s.q_r);
            linear_forward(ctx, s.q_normed, p.q_b_proj, s.q);
        }
        // (MLA-1)
        rms_norm_forward(ctx, latent_of(c, s), p.kv_a_layernorm, c.mla_lora_norm_eps, s.latent, s.kv_r);
        if (state != nullptr) {
            latent_append(ctx, seq, s.latent, shared_of(c, s), state->cache);
            attend_absorbed(ctx, heads, p, seq, s, *state);
        } else {
            // (MLA-2)
            linear_forward(ctx, s.latent, p.kv_b_proj, s.kv);
            causal_attention_forward(ctx, seq, heads, s.q, s.kv, shared_of(c, s), s.o, s.lse);
        }
        if (c.mla_output_gate) sigmoid_gate_forward(ctx, s.o, s.gate, s.gated);
        // (MLA-4)
        linear_forward(ctx, c.mla_output_gate ? s.gated : s.o, p.o_proj, residual, y);
    }

    /// Whether there is a step.
    static bool steps(const ModelConfig& c) {
        return StepLatent<T>::fits(heads_of(c), c.kv_lora_rank) && StepInput<T>::fits(c.q_lora_rank);
    }
    /// y = residual + the layer of in, one new token a sequence.
    static void step(const Context<Backend>& ctx, const ModelConfig& c, const Params& p, const Sequences& seq,
                     const StepInput<T>& in, MatrixView<const T> residual, MatrixView<T> y, Saved& s, State& state) {
        using Product = StepProduct<T>;
        step_products(ctx, in,
                      {Product::plain(p.q_proj, s.q), Product::plain(p.q_a_proj, s.q_low),
                       Product::plain(p.kv_a_proj_with_mqa, s.kv_low), Product::plain(p.g_proj, s.gate)});
        if (c.q_lora_rank != 0)
            step_products(ctx, StepInput<T>::norm_of(s.q_low, p.q_a_layernorm, c.mla_lora_norm_eps, s.q_normed),
                          {Product::plain(p.q_b_proj, s.q)});
        step_latent(ctx, seq, heads_of(c),
                    StepLatent<T>{s.q, s.kv_low, p.kv_a_layernorm, c.mla_lora_norm_eps, p.kv_b_proj, s.gate,
                                  state.cache},
                    s.o);
        step_products(ctx, StepInput<T>::plain(s.o), {Product::plain(p.o_proj, y, residual)});
    }

    /// dx is overwritten; s is used up.
    static void backward(const Context<Backend>& ctx, const ModelConfig& c, const Params& p, Grads& g,
                         const Sequences& seq, MatrixView<const T> x, MatrixView<const T> dy, MatrixView<T> dx,
                         Saved& s) {
        matmul_tn(ctx, dy, c.mla_output_gate ? s.gated : s.o, g.o_proj, Add::yes);
        matmul_nn(ctx, dy, p.o_proj, s.gated, Add::no);
        if (c.mla_output_gate) sigmoid_gate_backward(ctx, s.gated, s.o, s.gate, s.gated, s.gate);
        causal_attention_backward(ctx, seq, heads_of(c), s.gated, s.q, s.kv, shared_of(c, s), s.o, s.lse, s.q, s.kv,
                                  shared_of(c, s));

        if (c.q_lora_rank != 0) {
            matmul_tn(ctx, s.q, s.q_normed, g.q_b_proj, Add::yes);
            matmul_nn(ctx, s.q, p.q_b_proj, s.q_normed, Add::no);
            rms_norm_backward(ctx, s.q_normed, s.q_low, p.q_a_layernorm, s.q_r, s.q_low, g.q_a_layernorm);
        }
        matmul_tn(ctx, s.kv, s.latent, g.kv_b_proj, Add::yes);
        matmul_nn(ctx, s.kv, p.kv_b_proj, s.latent, Add::no);
        rms_norm_backward(ctx, s.latent, latent_of(c, s), p.kv_a_layernorm, s.kv_r, latent_of(c, s), g.kv_a_layernorm);
        linear_backward(ctx,
                        {{s.q, p.q_proj, g.q_proj}, {s.q_low, p.q_a_proj, g.q_a_proj},
                         {s.kv_low, p.kv_a_proj_with_mqa, g.kv_a_proj_with_mqa}, {s.gate, p.g_proj, g.g_proj}},
                        x, dx, Add::no);
    }

private:
    static MlaHeads heads_of(const ModelConfig& c) {
        return {c.mla_heads, c.qk_nope_head_dim, c.qk_rope_head_dim, c.v_head_dim};
    }
    static MatrixView<T> latent_of(const ModelConfig& c, Saved& s) { return s.kv_low.middle_cols(0, c.kv_lora_rank); }
    static MatrixView<T> shared_of(const ModelConfig& c, Saved& s) {
        return s.kv_low.middle_cols(c.kv_lora_rank, c.qk_rope_head_dim);
    }

    // (MLA-9)
    static void attend_absorbed(const Context<Backend>& ctx, const MlaHeads& heads, const Params& p,
                                const Sequences& seq, Saved& s, State& state) {
        const Index rows = heads.nope + heads.value, latent = s.latent.cols;
        for (Index h = 0; h < heads.count; ++h) {
            matmul_nn(ctx, s.q.middle_cols(h * heads.key(), heads.nope), p.kv_b_proj.middle_rows(h * rows, heads.nope),
                      s.q_lat.middle_cols(h * latent, latent), Add::no);
        }
        latent_attention(ctx, seq, heads, s.q_lat, s.q, state.cache, s.o_lat);
        for (Index h = 0; h < heads.count; ++h) {
            matmul_nt(ctx, s.o_lat.middle_cols(h * latent, latent),
                      p.kv_b_proj.middle_rows(h * rows + heads.nope, heads.value),
                      s.o.middle_cols(h * heads.value, heads.value), Add::no);
        }
    }
};

}  // namespace kimik3
