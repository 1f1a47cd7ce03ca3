#pragma once
// The layer schedule: a list of types, one DecoderBlock<attention kind, feed-forward kind> a layer. It is computed from
// a config (layer_types and num_dense_layers) or written out by hand:
//   using Layers = LayerList<DecoderBlock<Kda, DenseFfn>, DecoderBlock<Kda, LatentMoe>,
//                            DecoderBlock<GatedMla, LatentMoe>>;
// A kind is an empty tag; LayerFor (layers/decoder_block.hpp) names the layer that computes it. The position of a layer
// is not in its type, so a model has at most four kinds of block however deep it is.

#include "kimik3/config/invariants.hpp"
#include "kimik3/core/type_list.hpp"

namespace kimik3 {

template <KdaImplementation which>
struct KdaOf {
    static constexpr char letter = 'K';
    static constexpr KdaImplementation implementation = which;
};
using Kda = KdaOf<KdaImplementation::fused>;
using ChunkwiseKda = KdaOf<KdaImplementation::chunkwise>;
struct GatedMla {
    static constexpr char letter = 'M';
};
struct DenseFfn {
    static constexpr bool dense = true;
};
struct LatentMoe {
    static constexpr bool dense = false;
};

template <class AttnKind, class FfnKind>
struct DecoderBlock {
    using Attention = AttnKind;
    using FeedForward = FfnKind;
};

template <class... Blocks>
using LayerList = TypeList<Blocks...>;

namespace detail {

template <ModelConfig config, Index layer>
using block_of = DecoderBlock<
    std::conditional_t<config.layer_types[layer] == Kda::letter, KdaOf<config.kda_implementation>, GatedMla>,
    std::conditional_t<(layer < config.num_dense_layers), DenseFfn, LatentMoe>>;

template <ModelConfig config, Index... layer>
LayerList<block_of<config, layer>...> layers_of(std::integer_sequence<Index, layer...>);

template <ModelConfig config>
struct ScheduleOf {
    static_assert(valid<config>);  // before anything that a broken config would break
    using type = decltype(layers_of<config>(std::make_integer_sequence<Index, config.num_layers>{}));
};

}  // namespace detail

/// The schedule that a config describes.
template <ModelConfig config>
using schedule_of = typename detail::ScheduleOf<config>::type;

/// Whether a schedule written by hand is the one that the config describes.
template <class Schedule, ModelConfig config>
constexpr bool schedule_agrees() {
    if (Schedule::size != config.num_layers) return false;
    bool agrees = true;
    static_for<Schedule::size>([&](auto layer) {
        using Block = typename Schedule::template at<layer>;
        agrees = agrees && Block::Attention::letter == config.layer_types[layer] &&
                 Block::FeedForward::dense == (layer < config.num_dense_layers);
        if constexpr (requires { Block::Attention::implementation; })
            agrees = agrees && Block::Attention::implementation == config.kda_implementation;
    });
    return agrees;
}

}  // namespace kimik3
