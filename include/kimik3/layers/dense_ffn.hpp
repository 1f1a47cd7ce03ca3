#pragma once
// The dense feed-forward (spec 5): y = W_down SiTU(W_gate x, W_up x), x and y [N, M], inner width F; with
// Activation::silu SwiGLU in place of SiTU.
// GatedFfn works at any width: the first layer of the model and the shared experts of Stable LatentMoE both use it.

#include "kimik3/config/model_config.hpp"
#include "kimik3/layers/linear.hpp"
#include "kimik3/ops/situ.hpp"
#include "kimik3/ops/step_products.hpp"
#include "kimik3/tensor/arena.hpp"
#include "kimik3/tensor/parameters.hpp"
#include "kimik3/tensor/sequences.hpp"

namespace kimik3 {

/// The form of the gate that a config names.
inline SituBetas betas_of(const ModelConfig& c) {
    return c.hidden_act == Activation::silu ? SituBetas::swiglu() : SituBetas{c.situ_beta, c.situ_linear_beta};
}

template <class Backend, class T>
struct GatedFfn {
    template <class Weight>
    struct ParamsOf {
        MatrixView<Weight> gate_proj, up_proj;  // [F, M]
        MatrixView<Weight> down_proj;           // [M, F]

        template <class Visit>
        void fields(Index width, Index inner, Visit&& visit) {
            visit("gate_proj.weight", gate_proj, inner, width, FieldRule{.muon_blocks = {0}});
            visit("up_proj.weight", up_proj, inner, width, FieldRule{.muon_blocks = {0}});
            visit("down_proj.weight", down_proj, width, inner, FieldRule{.muon_blocks = {0}});
        }
    };
    using Params = ParamsOf<T>;
    using Grads = ParamsOf<accumulator_t<T>>;

    struct Saved {
        MatrixView<T> gate, up;  // [N, F]
        MatrixView<T> hidden;    // [N, F] what down_proj reads

        static Saved bind(Arena& arena, Index tokens, Index inner) {
            const auto [gate, up] = arena.columns<T>(tokens, {inner, inner});
            return {gate, up, arena.matrix<T>(tokens, inner)};
        }
    };

    /// y = residual, where there is one, + the layer of x.
    static void forward(const Context<Backend>& ctx, SituBetas betas, const Params& p, MatrixView<const T> x,
                        MatrixView<T> y, Saved& s, MatrixView<const T> residual = {}) {
        linear_forward(ctx, x, {{p.gate_proj, s.gate}, {p.up_proj, s.up}});
        forward_from_gate(ctx, betas, p, residual, y, s);
    }
    /// The same from gate and up on.
    static void forward_from_gate(const Context<Backend>& ctx, SituBetas betas, const Params& p,
                                  MatrixView<const T> residual, MatrixView<T> y, Saved& s) {
        situ_forward(ctx, s.gate, s.up, betas, s.hidden);
        // (SITU-3)
        linear_forward(ctx, s.hidden, p.down_proj, residual, y);
    }

    /// dx is overwritten, s used up.
    static void backward(const Context<Backend>& ctx, SituBetas betas, const Params& p, Grads& g, MatrixView<const T> x,
                         MatrixView<const T> dy, MatrixView<T> dx, Saved& s) {
        backward_to_gate(ctx, betas, p, g, dy, s);
        linear_backward(ctx, {{s.gate, p.gate_proj, g.gate_proj}, {s.up, p.up_proj, g.up_proj}}, x, dx, Add::no);
    }
    /// gate and up become their gradients.
    static void backward_to_gate(const Context<Backend>& ctx, SituBetas betas, const Params& p, Grads& g,
                                 MatrixView<const T> dy, Saved& s) {
        // (SITU-4)
        matmul_tn(ctx, dy, s.hidden, g.down_proj, Add::yes);
        matmul_nn(ctx, dy, p.down_proj, s.hidden, Add::no);
        situ_backward(ctx, s.hidden, s.gate, s.up, betas, s.gate, s.up);
    }
};

/// GatedFfn as the feed-forward of a decoder block.
template <class Backend, class T>
struct DenseFfnLayer {
    using Ffn = GatedFfn<Backend, T>;

    template <class Weight, class Kept>
    struct ParamsOf : Ffn::template ParamsOf<Weight> {
        template <class Visit>
        void fields(const ModelConfig& c, Visit&& visit) {
            Ffn::template ParamsOf<Weight>::fields(c.hidden_size, c.dense_intermediate_size, visit);
        }
    };
    using Params = ParamsOf<T, accumulator_t<T>>;
    using Grads = ParamsOf<accumulator_t<T>, accumulator_t<T>>;
    using Saved = typename Ffn::Saved;

    static Saved bind_saved(Arena& arena, const ModelConfig& c, const Sequences& seq) {
        return Saved::bind(arena, seq.tokens(), c.dense_intermediate_size);
    }

    static void forward(const Context<Backend>& ctx, const ModelConfig& c, const Params& p, const Sequences&,
                        MatrixView<const T> x, MatrixView<T> y, Saved& s, MatrixView<const T> residual = {}) {
        Ffn::forward(ctx, betas_of(c), p, x, y, s, residual);
    }

    /// Whether there is a step.
    static bool steps(const ModelConfig&) { return true; }
    /// y = residual + the layer of in.
    static void step(const Context<Backend>& ctx, const ModelConfig& c, const Params& p, const StepInput<T>& in,
                     MatrixView<const T> residual, MatrixView<T> y, Saved& s) {
        using Product = StepProduct<T>;
        step_products(ctx, in, {Product::situ(p.gate_proj, p.up_proj, s.hidden)}, betas_of(c));
        step_products(ctx, StepInput<T>::plain(s.hidden), {Product::plain(p.down_proj, y, residual)});
    }

    static void backward(const Context<Backend>& ctx, const ModelConfig& c, const Params& p, Grads& g, const Sequences&,
                         MatrixView<const T> x, MatrixView<const T> dy, MatrixView<T> dx, Saved& s) {
        Ffn::backward(ctx, betas_of(c), p, g, x, dy, dx, s);
    }
};

}  // namespace kimik3
