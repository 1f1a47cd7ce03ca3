#pragma once
// Attention of Gated MLA in the form for inference (spec 3.4): queries that have been multiplied by W_UK meet the
// cached latents themselves, which all heads share, and the sum of latents is handed on to W_UV.
//   latent_attention(ctx, seq, heads, q_lat [N, H c], q [N, H(n+r)], cache [slots, max_len (c+r)], o_lat [N, H c])
//     s_j = scale (q_lat . latent_j + q[n:] . shared_j),  o_lat = sum_j softmax(s)_j latent_j   (MLA-9)
// A row of cache holds max_len times [latent (c) | shared key (r)], among them already those of the new tokens. Token
// t of sequence s is number seq.past(s) + t of slot seq.slot(s) and sees the rows up to its own. Rows of o_lat past
// the last sequence become zero. A token's bits depend neither on what later tokens hold, nor on other sequences, nor
// on threads.
// latent_append(ctx, seq, latent [N, c], shared [N, r], cache) writes the rows of the new tokens.

#include "kimik3/ops/causal_attention.hpp"

namespace kimik3 {

/// Throws unless every sequence has a slot and room for its new tokens; max_len is the room of a slot in tokens.
inline void check_room(const Sequences& seq, Index slots, Index max_len) {
    for (Index s = 0; s < seq.count(); ++s) {
        require(seq.slot(s) >= 0 && seq.slot(s) < slots, "slots lie in [0, {}), sequence {} asks for {}", slots, s,
                seq.slot(s));
        require(seq.past(s) >= 0 && seq.past(s) + seq.length(s) <= max_len,
                "a sequence holds at most {} tokens, sequence {} has {} and asks for {} more", max_len, s, seq.past(s),
                seq.length(s));
    }
}

template <class Backend>
void latent_append(const Context<Backend>&, ...) {
    static_assert(missing_overload<Backend>,
                  "kimik3: latent_append(ctx, seq, latent, shared, cache) has no overload for these arguments");
}
template <class Backend>
void latent_attention(const Context<Backend>&, ...) {
    static_assert(
        missing_overload<Backend>,
        "kimik3: latent_attention(ctx, seq, heads, q_lat, q, cache, o_lat) has no overload for these arguments");
}

}  // namespace kimik3
