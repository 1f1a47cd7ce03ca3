#pragma once
// The activations of one pass over a batch, laid out in one arena. Training keeps what every layer saved; with
// Keep::sums, and in inference, all layers share the memory of one.

#include <array>

#include "kimik3/layers/output_head.hpp"
#include "kimik3/model/model_params.hpp"

namespace kimik3 {

/// What a training pass keeps for backward. sums: only the running sums between layers; a layer's forward is run again
/// when its backward comes, which takes less memory and about a third more work and gives the same numbers.
enum class Keep : std::uint8_t { activations, sums };

enum class Pass : std::uint8_t { training, inference };

template <class Schedule, class Backend, class T>
struct Activations {
    template <class Block>
    using Saved = typename BlockLayer<Block, Backend, T>::Saved;

    VectorView<std::int32_t> tokens, targets;         // [N]
    VectorView<std::uint8_t> counted;                 // [N] 0 where the target is ignored
    MatrixView<T> embedded;                           // [N, M]
    std::array<BlockSums<T>, to_size(Schedule::size)> sums;
    typename PerLayer<Schedule, Saved>::type saved;
    SavedRead<Backend, T> output;                     // the final read and norm
    typename OutputHead<Backend, T>::Scratch head;
    BlockScratch<T> scratch;                          // training only, like all below
    Residuals<T> gradients;                           // of the prefix and of every endpoint
    MatrixView<T> zeroed;                             // the memory of the endpoints' gradients

    static Activations bind(Arena& arena, const ModelConfig& c, const Sequences& seq, Pass pass, Keep keep) {
        constexpr Index layers = Schedule::size;
        const Index tokens = seq.tokens();
        Activations a;
        a.tokens = arena.vector<std::int32_t>(tokens);
        a.targets = arena.vector<std::int32_t>(tokens);
        a.counted = arena.vector<std::uint8_t>(tokens);
        a.embedded = arena.matrix<T>(tokens, c.hidden_size);
        a.output = SavedRead<Backend, T>::bind(arena, c, tokens, Depth::of(c, layers).endpoints + 1);
        a.head = OutputHead<Backend, T>::Scratch::bind(arena, tokens, c.vocab_size);
        if (pass == Pass::training) {
            const Index endpoints = Depth::of(c, layers).endpoints;
            a.scratch = BlockScratch<T>::bind(arena, c, tokens);
            a.gradients.prefix = arena.matrix<T>(tokens, c.hidden_size);
            a.zeroed = arena.matrix<T>(endpoints * tokens, c.hidden_size);
            for (Index e = 0; e < endpoints; ++e) a.gradients.endpoints.add(a.zeroed.middle_rows(e * tokens, tokens));
        }
        for (BlockSums<T>& sums : a.sums) sums = BlockSums<T>::bind(arena, c, tokens);
        const Index shared = arena.used_bytes();
        static_for<layers>([&](auto layer) {
            using Layer = BlockLayer<typename Schedule::template at<layer>, Backend, T>;
            if (pass == Pass::inference || keep == Keep::sums) arena.rewind(shared);
            std::get<layer>(a.saved) = Layer::bind_saved(arena, c, Depth::of(c, layer), seq);
        });
        return a;
    }
};

}  // namespace kimik3
