#pragma once
// Kimi Delta Attention as a layer (spec 2), x and y [N, M], H heads of D channels, P = H D:
//   q, k, v = conv(W x) each, with SiLU;  z = W_fb W_fa x;  b = W_b x
//   o = KDA(unit q, unit k, v, gate(z; A_log, dt_bias), sigmoid b)
//   y = W_o (RMSNorm_D(o) sigmoid(W_g x)), the output gate being optional, and W_g = W_gb W_ga where it has a rank
// The chunkwise implementation composes one operation a step; the fused one is ops/kda_fused.hpp. A single new token
// takes the recurrent step in both. Only the one that the type names is compiled.

#include "kimik3/config/model_config.hpp"
#include "kimik3/layers/linear.hpp"
#include "kimik3/ops/decay_gate.hpp"
#include "kimik3/ops/gated_norm.hpp"
#include "kimik3/ops/kda_chunk.hpp"
#include "kimik3/ops/kda_fused.hpp"
#include "kimik3/ops/kda_recurrent.hpp"
#include "kimik3/ops/l2_norm.hpp"
#include "kimik3/ops/short_conv.hpp"
#include "kimik3/ops/sigmoid.hpp"
#include "kimik3/ops/step_kda.hpp"
#include "kimik3/ops/step_products.hpp"
#include "kimik3/tensor/arena.hpp"
#include "kimik3/tensor/parameters.hpp"
#include "kimik3/tensor/sequences.hpp"

namespace kimik3 {

template <KdaImplementation implementation, class Backend, class T>
struct KdaLayer {
    static constexpr bool fused = implementation == KdaImplementation::fused;
    using A = accumulator_t<T>;

    template <class Weight, class Kept>
    struct ParamsOf {
        MatrixView<Weight> q_proj, k_proj, v_proj;      // [P, M]
        MatrixView<Kept> q_conv1d, k_conv1d, v_conv1d;  // [P, W]
        MatrixView<Weight> f_a_proj;                    // [R, M] decay gate, rank R
        MatrixView<Weight> f_b_proj;                    // [P, R]
        MatrixView<Weight> b_proj;                      // [H, M]
        VectorView<Kept> A_log;                         // [H]
        VectorView<Kept> dt_bias;                       // [P]
        MatrixView<Weight> g_proj;                      // [P, M] output gate of full rank
        MatrixView<Weight> g_a_proj, g_b_proj;          // [S, M] and [P, S] output gate of rank S
        VectorView<Kept> o_norm;                        // [D]
        MatrixView<Weight> o_proj;                      // [M, P]

        template <class Visit>
        void fields(const ModelConfig& c, Visit&& visit) {
            const Index width = c.hidden_size, inner = c.kda_width(), rank = c.kda_gate_rank, taps = c.kda_conv_size;
            const FieldRule per_head{.muon_blocks = {c.kda_head_dim}}, whole{.muon_blocks = {0}};
            const FieldRule conv{.init = Init::conv, .decay = false, .shape = {inner, 1, taps}, .float32 = true};
            visit("q_proj.weight", q_proj, inner, width, per_head);
            visit("k_proj.weight", k_proj, inner, width, per_head);
            visit("v_proj.weight", v_proj, inner, width, per_head);
            if (full_rank_gate(c)) visit("g_proj.weight", g_proj, inner, width, per_head);
            visit("f_a_proj.weight", f_a_proj, rank, width, whole);
            if (low_rank_gate(c)) visit("g_a_proj.weight", g_a_proj, Index{c.kda_output_gate_rank}, width, whole);
            visit("b_proj.weight", b_proj, Index{c.kda_heads}, width, FieldRule{});
            visit("q_conv1d.weight", q_conv1d, inner, taps, conv);
            visit("k_conv1d.weight", k_conv1d, inner, taps, conv);
            visit("v_conv1d.weight", v_conv1d, inner, taps, conv);
            visit("f_b_proj.weight", f_b_proj, inner, rank, per_head);
            visit("A_log", A_log, Index{c.kda_heads}, FieldRule{.init = Init::zeros, .decay = false, .float32 = true});
            visit("dt_bias", dt_bias, inner, FieldRule{.init = Init::dt_bias, .decay = false, .float32 = true});
            if (low_rank_gate(c))
                visit("g_b_proj.weight", g_b_proj, inner, Index{c.kda_output_gate_rank}, per_head);
            visit("o_norm.weight", o_norm, Index{c.kda_head_dim},
                  FieldRule{.init = Init::ones, .decay = false, .float32 = true});
            visit("o_proj.weight", o_proj, width, inner, whole);
        }
    };
    using Params = ParamsOf<T, A>;
    using Grads = ParamsOf<A, A>;

    /// Members marked with an arrow hold a gradient during backward.
    struct Saved {
        MatrixView<T> q_in, k_in, v_in;  // [N, P] before the convolution
        MatrixView<T> q, k, v;           // [N, P] after it -> their gradients, then those of q_in, k_in, v_in
        MatrixView<T> f_low;             // [N, R] W_fa x -> its gradient
        MatrixView<T> z;                 // [N, P]
        MatrixView<T> b;                 // [N, H] -> its gradient; zeros follow, so that products take multiples of 8
        MatrixView<T> states;            // [chunks, H D D]
        VectorView<T> prepared;          // of the fused form, for backends that leave something (KdaPrepared)
        MatrixView<T> o;                 // [N, P] -> the gradient of z
        MatrixView<A> o_r;               // [N, H] of o_norm
        MatrixView<T> g_low;             // [N, S] W_ga x, output gate of rank S only -> its gradient
        MatrixView<T> gate;              // [N, P], or no columns -> its gradient
        MatrixView<T> normed;            // [N, P] what o_proj reads -> its gradient, then that of o
        // chunkwise only
        MatrixView<T> q_unit, k_unit;  // [N, P]
        MatrixView<A> q_r, k_r;        // [N, H]
        MatrixView<T> g;               // [N, P] log-decay -> its gradient
        MatrixView<T> beta;            // [N, H]
    };

    static Saved bind_saved(Arena& arena, const ModelConfig& c, const Sequences& seq) {
        const Index tokens = seq.tokens(), heads = c.kda_heads;
        const auto wide = [&] { return arena.matrix<T>(tokens, c.kda_width()); };
        Saved s{};
        for (MatrixView<T>* m : {&s.z, &s.o, &s.normed}) *m = wide();
        // side by side, as their weights lie, for one product
        const Index inner = c.kda_width(), gate = full_rank_gate(c) ? inner : 0,
                    low = low_rank_gate(c) ? Index{c.kda_output_gate_rank} : 0;
        const auto of_x =
            arena.columns<T>(tokens, {inner, inner, inner, gate, c.kda_gate_rank, low, round_up(heads, row_unit)});
        s.q_in = of_x[0], s.k_in = of_x[1], s.v_in = of_x[2];
        s.gate = low_rank_gate(c) ? wide() : of_x[3];
        s.f_low = of_x[4], s.g_low = of_x[5], s.b = of_x[6].middle_cols(0, heads);
        const auto convolved = arena.columns<T>(tokens, {inner, inner, inner});
        s.q = convolved[0], s.k = convolved[1], s.v = convolved[2];
        s.states = arena.matrix<T>(kda_chunks(seq, c.kda_chunk_size), state_size(c));
        s.o_r = arena.matrix<A>(tokens, heads);
        if constexpr (fused) {
            s.prepared = arena.vector<T>(
                KdaPrepared<Backend, T>::size(seq, fused_form(c), c.kda_head_dim, c.kda_head_dim));
            return s;
        }
        for (MatrixView<T>* m : {&s.q_unit, &s.k_unit, &s.g}) *m = wide();
        s.q_r = arena.matrix<A>(tokens, heads), s.k_r = arena.matrix<A>(tokens, heads);
        s.beta = arena.matrix<T>(tokens, heads);
        return s;
    }

    /// What decoding keeps. A sequence with no past ignores what its slot holds.
    struct State {
        MatrixView<A> q_window, k_window, v_window;  // [slots, (W - 1) P] inputs of the convolutions, the oldest first
        MatrixView<A> s;                             // [slots, H D D]

        /// Calls visit with every member.
        template <class Visit>
        void each(Visit&& visit) const {
            visit(q_window);
            visit(k_window);
            visit(v_window);
            visit(s);
        }
    };

    static State bind_state(Arena& arena, const ModelConfig& c, Index slots, Index /*max_len*/) {
        const Index window = (Index{c.kda_conv_size} - 1) * c.kda_width();
        return {arena.matrix<A>(slots, window), arena.matrix<A>(slots, window), arena.matrix<A>(slots, window),
                arena.matrix<A>(slots, state_size(c))};
    }

    /// y = residual, where there is one, + the layer of x.
    static void forward(const Context<Backend>& ctx, const ModelConfig& c, const Params& p, const Sequences& seq,
                        MatrixView<const T> x, MatrixView<T> y, Saved& s, State* state = nullptr,
                        MatrixView<const T> residual = {}) {
        State none{};
        State& kept = state != nullptr ? *state : none;
        // (KDA-1); b apart from the others, which cuBLAS multiplies faster without it
        linear_forward(ctx, x, {{with_padding(p.b_proj), padded(s.b)}, {p.q_proj, s.q_in}, {p.k_proj, s.k_in},
                                {p.v_proj, s.v_in}, {p.g_proj, s.gate}, {p.f_a_proj, s.f_low}, {p.g_a_proj, s.g_low}});
        short_conv_forward(ctx, seq, s.q_in, p.q_conv1d, kept.q_window, s.q, kept.q_window);
        short_conv_forward(ctx, seq, s.k_in, p.k_conv1d, kept.k_window, s.k, kept.k_window);
        short_conv_forward(ctx, seq, s.v_in, p.v_conv1d, kept.v_window, s.v, kept.v_window);
        linear_forward(ctx, s.f_low, p.f_b_proj, s.z);
        // (KDA-9)
        attend(ctx, c, p, seq, s, kept.s, state == nullptr ? s.states : MatrixView<T>{});
        if (low_rank_gate(c)) linear_forward(ctx, s.g_low, p.g_b_proj, s.gate);
        gated_norm_forward(ctx, c.kda_heads, s.o, s.gate, p.o_norm, c.rms_norm_eps, s.normed, s.o_r);
        linear_forward(ctx, s.normed, p.o_proj, residual, y);
    }

    /// Whether there is a step.
    static bool steps(const ModelConfig& c) { return fused && StepKda<T>::fits(c.kda_head_dim, c.kda_conv_size); }
    /// y = residual + the layer of in, one new token a sequence.
    static void step(const Context<Backend>& ctx, const ModelConfig& c, const Params& p, const Sequences& seq,
                     const StepInput<T>& in, MatrixView<const T> residual, MatrixView<T> y, Saved& s, State& state) {
        using Product = StepProduct<T>;
        step_products(ctx, in,
                      {Product::plain(p.q_proj, s.q_in), Product::plain(p.k_proj, s.k_in),
                       Product::plain(p.v_proj, s.v_in), Product::plain(p.g_proj, s.gate),
                       Product::plain(p.f_a_proj, s.f_low), Product::plain(p.b_proj, s.b),
                       Product::plain(p.g_a_proj, s.g_low)});
        if (low_rank_gate(c)) step_products(ctx, StepInput<T>::plain(s.g_low), {Product::plain(p.g_b_proj, s.gate)});
        step_kda(ctx, seq,
                 StepKda<T>{c.kda_heads, c.kda_lower_bound, c.rms_norm_eps, s.q_in, s.k_in, s.v_in, p.q_conv1d,
                            p.k_conv1d, p.v_conv1d, state.q_window, state.k_window, state.v_window, s.f_low, p.f_b_proj,
                            s.b, p.A_log, p.dt_bias, state.s, s.gate, p.o_norm},
                 s.normed);
        step_products(ctx, StepInput<T>::plain(s.normed), {Product::plain(p.o_proj, y, residual)});
    }

    /// dx is overwritten; s is used up.
    static void backward(const Context<Backend>& ctx, const ModelConfig& c, const Params& p, Grads& g,
                         const Sequences& seq, MatrixView<const T> x, MatrixView<const T> dy, MatrixView<T> dx,
                         Saved& s) {
        matmul_tn(ctx, dy, s.normed, g.o_proj, Add::yes);
        matmul_nn(ctx, dy, p.o_proj, s.normed, Add::no);
        gated_norm_backward(ctx, c.kda_heads, s.normed, s.o, s.gate, p.o_norm, s.o_r, s.normed, s.gate, g.o_norm);
        attend_backward(ctx, c, p, g, seq, s);
        convolved_backward(ctx, seq, p.q_conv1d, s.q_in, s.q, g.q_conv1d);
        convolved_backward(ctx, seq, p.k_conv1d, s.k_in, s.k, g.k_conv1d);
        convolved_backward(ctx, seq, p.v_conv1d, s.v_in, s.v, g.v_conv1d);
        matmul_tn(ctx, s.o, s.f_low, g.f_b_proj, Add::yes);
        matmul_nn(ctx, s.o, p.f_b_proj, s.f_low, Add::no);
        if (low_rank_gate(c)) {
            matmul_tn(ctx, s.gate, s.g_low, g.g_b_proj, Add::yes);
            matmul_nn(ctx, s.gate, p.g_b_proj, s.g_low, Add::no);
        }
        linear_backward(ctx,
                        {{s.q, p.q_proj, g.q_proj}, {s.k, p.k_proj, g.k_proj}, {s.v, p.v_proj, g.v_proj},
                         {s.gate, p.g_proj, g.g_proj}, {s.f_low, p.f_a_proj, g.f_a_proj},
                         {s.g_low, p.g_a_proj, g.g_a_proj},
                         {padded(s.b), with_padding(p.b_proj), with_padding(g.b_proj)}},
                        x, dx, Add::no);
    }

private:
    static MatrixView<T> padded(MatrixView<T> b) { return {b.data, b.rows, round_up(b.cols, row_unit), b.stride}; }
    static bool full_rank_gate(const ModelConfig& c) { return c.kda_output_gate && c.kda_output_gate_rank == 0; }
    static bool low_rank_gate(const ModelConfig& c) { return c.kda_output_gate && c.kda_output_gate_rank > 0; }
    static Index state_size(const ModelConfig& c) { return Index{c.kda_width()} * c.kda_head_dim; }

    static KdaFusedForm fused_form(const ModelConfig& c) { return {c.kda_heads, c.kda_chunk_size, c.kda_lower_bound}; }
    static DecayGateForm gate_form(const ModelConfig& c) { return {c.kda_gate, c.kda_lower_bound}; }
    static KdaRawInput<T> raw_input(const Params& p, const Saved& s, MatrixView<const A> initial,
                                    VectorView<T> prepared) {
        return {s.q, s.k, s.v, s.z, s.b, p.A_log, p.dt_bias, initial, prepared};
    }
    static KdaInput<T> unit_input(const Saved& s, MatrixView<const A> initial) {
        return {s.q_unit, s.k_unit, s.v, s.g, s.beta, initial};
    }

    /// out: the gradient of the convolution's output, then of its input.
    static void convolved_backward(const Context<Backend>& ctx, const Sequences& seq, MatrixView<const A> conv,
                                   MatrixView<const T> in, MatrixView<T> out, MatrixView<A> dconv) {
        const MatrixView<A> none{};
        short_conv_backward(ctx, seq, out, in, conv, none, none, out, dconv, none);
    }

    /// s.o from q, k, v, z and b; kept: the state to continue and update, or no rows; states: for backward, or no rows.
    static void attend(const Context<Backend>& ctx, const ModelConfig& c, const Params& p, const Sequences& seq,
                       Saved& s, MatrixView<A> kept, MatrixView<T> states) {
        if constexpr (fused) {
            const VectorView<T> prepared = states.rows == 0 ? VectorView<T>{} : s.prepared;
            kda_fused_forward(ctx, seq, fused_form(c), raw_input(p, s, kept, prepared), s.o, kept, states);
        } else {
            l2_norm_forward(ctx, c.kda_heads, s.q, s.q_unit, s.q_r);
            l2_norm_forward(ctx, c.kda_heads, s.k, s.k_unit, s.k_r);
            decay_gate_forward(ctx, gate_form(c), s.z, p.A_log, p.dt_bias, s.g);
            sigmoid_forward(ctx, s.b, s.beta);
            const KdaInput<T> input = unit_input(s, kept);
            if (states.rows == 0 && seq.longest() <= 1) kda_recurrent_forward(ctx, seq, c.kda_heads, input, s.o, kept);
            else kda_chunk_forward(ctx, seq, c.kda_heads, c.kda_chunk_size, input, s.o, kept, states);
        }
    }

    /// From the gradient of o in s.normed: those of q, k, v and b in their places, that of z in s.o.
    static void attend_backward(const Context<Backend>& ctx, const ModelConfig& c, const Params& p, Grads& g,
                                const Sequences& seq, Saved& s) {
        if constexpr (fused) {
            const KdaRawGradient<T> gradient{s.q, s.k, s.v, s.o, s.b, g.A_log, g.dt_bias};
            kda_fused_backward(ctx, seq, fused_form(c), raw_input(p, s, {}, s.prepared), s.states, s.normed, {},
                               gradient);
        } else {
            const KdaGradient<T> gradient{s.q, s.k, s.v, s.g, s.b};
            kda_chunk_backward(ctx, seq, c.kda_heads, c.kda_chunk_size, unit_input(s, {}), s.states, s.normed, {},
                               gradient);
            l2_norm_backward(ctx, c.kda_heads, s.q, s.q_unit, s.q_r, s.q);
            l2_norm_backward(ctx, c.kda_heads, s.k, s.k_unit, s.k_r, s.k);
            decay_gate_backward(ctx, gate_form(c), s.g, s.z, p.A_log, p.dt_bias, s.o, g.A_log, g.dt_bias);
            sigmoid_backward(ctx, s.b, s.beta, s.b);
        }
    }
};

}  // namespace kimik3
