#pragma once
// One place where a sublayer reads the depth history (spec 4): h = mix of the stored endpoints and the running prefix,
// scored by this site's norm and proj; then the norm of the reader. Three sites exist: before attention, before the
// feed-forward, before the head.
// With config.attn_res off, or before the first endpoint is stored, h is the prefix itself.

#include "kimik3/config/model_config.hpp"
#include "kimik3/ops/add.hpp"
#include "kimik3/ops/attn_res.hpp"
#include "kimik3/ops/rms_norm.hpp"
#include "kimik3/ops/step_products.hpp"
#include "kimik3/tensor/arena.hpp"
#include "kimik3/tensor/parameters.hpp"

namespace kimik3 {

/// What blocks hand on to one another: the endpoints stored at block boundaries and the prefix, the sum that is
/// growing.
template <class T>
struct Residuals {
    Candidates<T> endpoints;  // [N, M] each
    MatrixView<T> prefix;     // [N, M]
};

template <class Backend, class T>
struct AttnResSite {
    using A = accumulator_t<T>;

    struct ParamsOf {
        VectorView<A> norm;  // [M] gamma
        VectorView<A> proj;  // [M] pi, [1, M] in the checkpoint

        /// name: the head of both names, "mlp_res".
        template <class Visit>
        void fields(const ModelConfig& c, std::string_view name, Visit&& visit) {
            if (!c.attn_res) return;
            const auto scope = visit.within(name);
            visit("_norm.weight", norm, c.hidden_size, FieldRule{.init = Init::ones, .decay = false});
            visit("_proj.weight", proj, c.hidden_size,
                  FieldRule{.init = Init::zeros, .decay = false, .shape = {1, c.hidden_size}});
        }
    };
    using Params = ParamsOf;
    using Grads = ParamsOf;

    struct Saved {
        MatrixView<T> h;     // [N, M] what was read, where the backend keeps it
        MatrixView<A> p, r;  // [N, J] weights and inverse root mean squares of the J candidates

        static Saved bind(Arena& arena, const ModelConfig& c, Index tokens, Index candidates) {
            if (!mixes(c, candidates)) return {};
            return {arena.matrix<T>(tokens, c.hidden_size), arena.matrix<A>(tokens, candidates),
                    arena.matrix<A>(tokens, candidates)};
        }
    };

    /// normed = RMSNorm(h; norm) of what is read, r [N] its inverse root mean squares. (RES-2)
    static void forward(const Context<Backend>& ctx, const ModelConfig& c, const Params& p, VectorView<A> norm,
                        const Residuals<const T>& residuals, MatrixView<T> normed, VectorView<A> r, Saved& s) {
        if (!mixes(c, residuals.endpoints.count + 1))
            return rms_norm_forward(ctx, residuals.prefix, norm, c.rms_norm_eps, normed, r);
        attn_res_norm_forward(ctx, with_prefix(residuals), p.norm, p.proj, c.rms_norm_eps, norm, c.rms_norm_eps, s.h,
                              normed, s.p, s.r, r);
    }

    /// Adds the gradient of everything that was read into gradients, and that of norm to dnorm; dh is scratch.
    static void backward(const Context<Backend>& ctx, const ModelConfig& c, const Params& p, Grads& g,
                         VectorView<A> norm, VectorView<A> dnorm, const Residuals<const T>& residuals,
                         MatrixView<const T> dnormed, VectorView<A> r, MatrixView<T> dh,
                         const Residuals<T>& gradients, Saved& s) {
        if (!mixes(c, residuals.endpoints.count + 1)) {
            rms_norm_backward(ctx, dnormed, residuals.prefix, norm, r, dh, dnorm);
            return add_to(ctx, dh, gradients.prefix);
        }
        attn_res_norm_backward(ctx, dnormed, with_prefix(residuals), p.norm, p.proj, norm, s.p, s.r, r, s.h,
                               with_prefix(gradients), g.norm, g.proj, dnorm, dh);
    }

    /// What a decoding step reads here: the candidates, and how they are mixed.
    static StepInput<T> step_input(const ModelConfig& c, const Params& p, const Residuals<const T>& residuals) {
        StepInput<T> in{.gamma = p.norm, .pi = p.proj, .mix_eps = c.rms_norm_eps};
        if (mixes(c, residuals.endpoints.count + 1)) in.candidates = residuals.endpoints;
        in.candidates.add(residuals.prefix);
        return in;
    }

private:
    static bool mixes(const ModelConfig& c, Index candidates) { return c.attn_res && candidates > 1; }

    template <class U>
    static Candidates<U> with_prefix(const Residuals<U>& residuals) {
        Candidates<U> all = residuals.endpoints;
        all.add(residuals.prefix);
        return all;
    }
};

}  // namespace kimik3
