#pragma once
// One decoder layer: attention and feed-forward, each behind a read of the residuals and a pre-norm (spec 1.1):
//   h = read(attention site)              a = Attn(norm(h))   (BLOCK-3)
//   mid = prefix + a; at a block boundary the incoming prefix is stored as an endpoint instead, and mid = a   (BLOCK-4)
//   h = read(feed-forward site)           out = mid + FFN(norm(h))   (BLOCK-5)
// The layer's position is a run-time value: only the number of endpoints and the boundary depend on it.

#include "kimik3/config/schedule.hpp"
#include "kimik3/layers/attn_res_site.hpp"
#include "kimik3/layers/dense_ffn.hpp"
#include "kimik3/layers/kda.hpp"
#include "kimik3/layers/latent_moe.hpp"
#include "kimik3/layers/mla.hpp"
#include "kimik3/ops/add.hpp"

namespace kimik3 {

/// The layer that computes a kind. A new kind of layer is a tag and a specialisation of this.
template <class Kind, class Backend, class T>
struct LayerFor {
    static_assert(missing_overload<Kind>,
                  "kimik3: this layer kind has no layer: specialise LayerFor<Kind, Backend, T>");
};
template <KdaImplementation which, class Backend, class T>
struct LayerFor<KdaOf<which>, Backend, T> : KdaLayer<which, Backend, T> {
    static constexpr const char* prefix = "self_attn.";
};
template <class Backend, class T>
struct LayerFor<GatedMla, Backend, T> : MlaLayer<Backend, T> {
    static constexpr const char* prefix = "self_attn.";
};
template <class Backend, class T>
struct LayerFor<DenseFfn, Backend, T> : DenseFfnLayer<Backend, T> {
    static constexpr const char* prefix = "mlp.";
};
template <class Backend, class T>
struct LayerFor<LatentMoe, Backend, T> : LatentMoeLayer<Backend, T> {
    static constexpr const char* prefix = "block_sparse_moe.";
};

/// How deep a layer stands: its index decides both.
struct Depth {
    bool opens_block;  // the incoming prefix becomes an endpoint
    Index endpoints;   // stored before this layer

    static Depth of(const ModelConfig& c, Index layer) {
        if (!c.attn_res) return {false, 0};
        // (BLOCK-6)
        return {layer % c.attn_res_block_size == 0, ceil_div(layer, c.attn_res_block_size)};
    }
};

/// Scratch that all layers share in backward.
template <class T>
struct BlockScratch {
    MatrixView<T> dnormed, dh;  // [N, M]

    static BlockScratch bind(Arena& arena, const ModelConfig& c, Index tokens) {
        return {arena.matrix<T>(tokens, c.hidden_size), arena.matrix<T>(tokens, c.hidden_size)};
    }
};

/// The running sum after attention and after the feed-forward; the next layers read them, so they outlive Saved.
template <class T>
struct BlockSums {
    MatrixView<T> mid, out;  // [N, M]

    static BlockSums bind(Arena& arena, const ModelConfig& c, Index tokens) {
        return {arena.matrix<T>(tokens, c.hidden_size), arena.matrix<T>(tokens, c.hidden_size)};
    }
};

/// What one sublayer read, and its pre-norm.
template <class Backend, class T>
struct SavedRead {
    using A = accumulator_t<T>;
    using Site = AttnResSite<Backend, T>;

    typename Site::Saved site;
    VectorView<A> r;       // [N] of the norm
    MatrixView<T> normed;  // [N, M]

    [[gnu::noinline]] static SavedRead bind(Arena& arena, const ModelConfig& c, Index tokens, Index candidates) {
        return {Site::Saved::bind(arena, c, tokens, candidates), arena.vector<A>(tokens),
                arena.matrix<T>(tokens, c.hidden_size)};
    }

    void forward(const Context<Backend>& ctx, const ModelConfig& c, const typename Site::Params& p, VectorView<A> norm,
                 const Residuals<const T>& residuals) {
        Site::forward(ctx, c, p, norm, residuals, normed, r, site);
    }

    /// The same read as the input of a decoding step's products. keep: they leave normed behind.
    StepInput<T> step_input(const ModelConfig& c, const typename Site::Params& p, VectorView<A> norm,
                            const Residuals<const T>& residuals, bool keep = false) const {
        StepInput<T> in = Site::step_input(c, p, residuals);
        in.norm = norm, in.eps = c.rms_norm_eps;
        if (keep || normed.rows > most_held_rows) in.normed = normed;
        return in;
    }

    /// Adds the gradient of what was read into gradients; dnormed is d loss / d normed, dh is scratch.
    void backward(const Context<Backend>& ctx, const ModelConfig& c, const typename Site::Params& p,
                  typename Site::Grads& g, VectorView<A> norm, VectorView<A> dnorm, const Residuals<const T>& residuals,
                  MatrixView<const T> dnormed, MatrixView<T> dh, const Residuals<T>& gradients) {
        Site::backward(ctx, c, p, g, norm, dnorm, residuals, dnormed, r, dh, gradients, site);
    }
};

template <class Block, class Backend, class T>
struct BlockLayer {
    using A = accumulator_t<T>;
    using Attention = LayerFor<typename Block::Attention, Backend, T>;
    using FeedForward = LayerFor<typename Block::FeedForward, Backend, T>;
    using Site = AttnResSite<Backend, T>;
    using State = typename Attention::State;
    /// Whether the feed-forward has a router, whose choices balancing counts.
    static constexpr bool routes = requires { typename FeedForward::Balance; };

    template <class Weight, class Kept>
    struct ParamsOf {
        VectorView<Kept> input_layernorm, post_attention_layernorm;  // [M]
        typename Site::ParamsOf self_attention_res, mlp_res;
        typename Attention::template ParamsOf<Weight, Kept> attention;
        typename FeedForward::template ParamsOf<Weight, Kept> feed_forward;

        template <class Visit>
        void fields(const ModelConfig& c, Visit&& visit) {
            const FieldRule norm{.init = Init::ones, .decay = false};
            visit("input_layernorm.weight", input_layernorm, c.hidden_size, norm);
            visit("post_attention_layernorm.weight", post_attention_layernorm, c.hidden_size, norm);
            self_attention_res.fields(c, "self_attention_res", visit);
            mlp_res.fields(c, "mlp_res", visit);
            {
                const auto scope = visit.within(Attention::prefix);
                attention.fields(c, visit);
            }
            const auto scope = visit.within(FeedForward::prefix);
            feed_forward.fields(c, visit);
        }
    };
    using Params = ParamsOf<T, A>;
    using Grads = ParamsOf<A, A>;

    struct Saved {
        SavedRead<Backend, T> attention_read, ffn_read;
        typename Attention::Saved attention;
        typename FeedForward::Saved feed_forward;
    };

    /// Not inline, so that layers of one kind share it.
    [[gnu::noinline]] static Saved bind_saved(Arena& arena, const ModelConfig& c, Depth depth, const Sequences& seq) {
        const Index tokens = seq.tokens(), before = depth.endpoints + 1;
        using Read = SavedRead<Backend, T>;
        return {Read::bind(arena, c, tokens, before),
                Read::bind(arena, c, tokens, before + (depth.opens_block ? 1 : 0)),
                Attention::bind_saved(arena, c, seq), FeedForward::bind_saved(arena, c, seq)};
    }

    /// Moves residuals on by one layer. state: the decoding state to continue and update, or nullptr.
    static void forward(const Context<Backend>& ctx, const ModelConfig& c, Depth depth, const Params& p,
                        const Sequences& seq, Residuals<const T>& residuals, BlockSums<T>& sums, Saved& s,
                        State* state) {
        if constexpr (has_steps<Backend, T>) {
            if (state != nullptr && steps(c, seq)) return step(ctx, c, depth, p, seq, residuals, sums, s, *state);
        }
        s.attention_read.forward(ctx, c, p.self_attention_res, p.input_layernorm, residuals);
        forward_onto<Attention>(ctx, depth.opens_block ? MatrixView<const T>{} : residuals.prefix, sums.mid, c,
                                p.attention, seq, s.attention_read.normed, sums.mid, s.attention, state);
        if (depth.opens_block) residuals.endpoints.add(residuals.prefix);
        residuals.prefix = sums.mid;

        s.ffn_read.forward(ctx, c, p.mlp_res, p.post_attention_layernorm, residuals);
        forward_onto<FeedForward>(ctx, sums.mid, sums.out, c, p.feed_forward, seq, s.ffn_read.normed, sums.out,
                                  s.feed_forward);
        residuals.prefix = sums.out;
    }

    /// y = residual, where there is one, + the sublayer of its arguments: by the sublayer's last product where its
    /// forward takes a residual behind them.
    template <class Sublayer, class... Arguments>
    static void forward_onto(const Context<Backend>& ctx, MatrixView<const T> residual, MatrixView<T> y,
                             Arguments&&... arguments) {
        if constexpr (requires { Sublayer::forward(ctx, arguments..., residual); }) {
            Sublayer::forward(ctx, arguments..., residual);
        } else {
            Sublayer::forward(ctx, arguments...);
            if (residual.rows > 0) add_to(ctx, residual, y);
        }
    }

    /// Whether step takes the place of forward.
    static bool steps(const ModelConfig& c, const Sequences& seq) {
        return seq.single() && seq.count() <= most_step_rows && StepInput<T>::fits(c.hidden_size) &&
               Depth::of(c, c.num_layers).endpoints < most_step_candidates && Attention::steps(c) &&
               FeedForward::steps(c);
    }
    /// forward for one new token a sequence, in few launches.
    static void step(const Context<Backend>& ctx, const ModelConfig& c, Depth depth, const Params& p,
                     const Sequences& seq, Residuals<const T>& residuals, BlockSums<T>& sums, Saved& s, State& state) {
        Attention::step(ctx, c, p.attention, seq,
                        s.attention_read.step_input(c, p.self_attention_res, p.input_layernorm, residuals),
                        depth.opens_block ? MatrixView<const T>{} : residuals.prefix, sums.mid, s.attention, state);
        if (depth.opens_block) residuals.endpoints.add(residuals.prefix);
        residuals.prefix = sums.mid;
        FeedForward::step(ctx, c, p.feed_forward,
                          s.ffn_read.step_input(c, p.mlp_res, p.post_attention_layernorm, residuals), sums.mid,
                          sums.out, s.feed_forward);
        residuals.prefix = sums.out;
    }

    /// residuals: as they came into the layer. gradients: of what it handed on; on return, of what it was handed.
    /// The tokens with counted != 0 are added to balance, where the layer routes: here and not in forward, so that a
    /// token counts once for every contribution it makes to the gradient.
    static void backward(const Context<Backend>& ctx, const ModelConfig& c, Depth depth, const Params& p, Grads& g,
                         const Sequences& seq, const Residuals<const T>& residuals, Residuals<T>& gradients,
                         BlockSums<T>& sums, Saved& s, BlockScratch<T>& scratch, const Balance& balance,
                         VectorView<const std::uint8_t> counted) {
        // (BLOCK-8)
        Residuals<const T> after_attention = residuals;
        if (depth.opens_block) after_attention.endpoints.add(residuals.prefix);
        after_attention.prefix = sums.mid;

        if constexpr (routes) FeedForward::count(ctx, p.feed_forward, s.feed_forward, counted, balance);
        FeedForward::backward(ctx, c, p.feed_forward, g.feed_forward, seq, s.ffn_read.normed, gradients.prefix,
                              scratch.dnormed, s.feed_forward);
        s.ffn_read.backward(ctx, c, p.mlp_res, g.mlp_res, p.post_attention_layernorm, g.post_attention_layernorm,
                            after_attention, scratch.dnormed, scratch.dh, gradients);

        Attention::backward(ctx, c, p.attention, g.attention, seq, s.attention_read.normed, gradients.prefix,
                            scratch.dnormed, s.attention);
        if (depth.opens_block) gradients.prefix = gradients.endpoints.view[--gradients.endpoints.count];
        s.attention_read.backward(ctx, c, p.self_attention_res, g.self_attention_res, p.input_layernorm,
                                  g.input_layernorm, residuals, scratch.dnormed, scratch.dh, gradients);
    }
};

}  // namespace kimik3
