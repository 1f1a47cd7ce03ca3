#pragma once
// The parameters of a whole model: embedding, one parameter struct a block, and the output side. Weight is the type of
// matrices, Kept the type of what stays in accumulator precision (norms, decays, convolutions, router).

#include <tuple>

#include "kimik3/layers/decoder_block.hpp"

namespace kimik3 {

/// std::tuple<Member<Block>...> over the blocks of a schedule.
template <class Schedule, template <class Block> class Member>
struct PerLayer;
template <class... Blocks, template <class Block> class Member>
struct PerLayer<TypeList<Blocks...>, Member> {
    using type = std::tuple<Member<Blocks>...>;
};

template <class Schedule, class Backend, class T, class Weight>
struct ModelParams {
    using Kept = accumulator_t<T>;
    template <class Block>
    using BlockParams = typename BlockLayer<Block, Backend, T>::template ParamsOf<Weight, Kept>;

    MatrixView<Weight> embed_tokens;  // [V, M]
    MatrixView<Weight> lm_head;       // [V, M], only where the head is not tied
    VectorView<Kept> norm;            // [M]
    typename AttnResSite<Backend, T>::ParamsOf output_attn_res;
    typename PerLayer<Schedule, BlockParams>::type layers;

    /// Every field of the model, each once, under its checkpoint name.
    template <class Visit>
    void fields(const ModelConfig& c, Visit&& visit) {
        visit("model.embed_tokens.weight", embed_tokens, c.vocab_size, c.hidden_size, FieldRule{});
        static_for<Schedule::size>([&](auto layer) {
            const auto scope = visit.within_layer(layer);
            std::get<layer>(layers).fields(c, visit);
        });
        output_attn_res.fields(c, "model.output_attn_res", visit);
        visit("model.norm.weight", norm, c.hidden_size, FieldRule{.init = Init::ones, .decay = false});
        if (!c.tie_embeddings) visit("lm_head.weight", lm_head, c.vocab_size, c.hidden_size, FieldRule{});
    }

    /// The head's matrix: the embedding where they are tied.
    MatrixView<Weight> head(const ModelConfig& c) const { return c.tie_embeddings ? embed_tokens : lm_head; }
};

}  // namespace kimik3
