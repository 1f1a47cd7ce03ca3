#include <boost/test/unit_test.hpp>

#include "conformance/device.hpp"

using namespace kimik3;
using namespace kimik3::test;

namespace {

const std::vector<std::vector<Index>> length_lists{{1}, {0, 1, 5}, {37, 0, 2, 70}, {3, 1, 4}};

}  // namespace

BOOST_AUTO_TEST_SUITE(conformance_sequences)

BOOST_AUTO_TEST_CASE(causal_attention) {
    for (const auto& lengths : length_lists)
        for (const MlaHeads heads :
             {MlaHeads{3, 16, 8, 16}, MlaHeads{1, 5, 3, 7}, MlaHeads{2, 128, 64, 128}, MlaHeads{2, 33, 1, 130}}) {
            BOOST_TEST_CONTEXT("tokens " << lengths.back() << ", heads " << heads.count << " " << heads.nope << " "
                                         << heads.value) {
                const Sequences seq = sequences_of(lengths);
                const Index rows = seq.tokens() + 2, keys = heads.count * heads.key(),
                            values = heads.count * heads.value;
                Both q = Both::random(rows, keys, 1),
                     kv = Both::random(rows, heads.count * (heads.nope + heads.value), 2),
                     k = Both::random(rows, heads.shared, 3);
                Both o(rows, values), lse(rows, heads.count), d_o = Both::random(rows, values, 4),
                                                              copy = Both::random(rows, keys, 1);
                causal_attention_forward(cpu(), seq, heads, q.c(), kv.c(), k.c(), o.c(), lse.c());
                causal_attention_forward(cuda(), seq, heads, q.g(), kv.g(), k.g(), o.g(), lse.g());
                check_same("o", o), check_same("lse", lse);
                causal_attention_backward(cpu(), seq, heads, d_o.c(), q.c(), kv.c(), k.c(), o.c(), lse.c(), q.c(),
                                          kv.c(), k.c());
                causal_attention_backward(cuda(), seq, heads, d_o.g(), q.g(), kv.g(), k.g(), o.g(), lse.g(), q.g(),
                                          kv.g(), k.g());
                check_same("dq", q, 1e-4), check_same("dkv", kv, 1e-4), check_same("dk_shared", k, 1e-4);
            }
        }
}

BOOST_AUTO_TEST_CASE(attention_over_cached_latents) {
    for (const auto& lengths : length_lists)
        for (const Index past : {0, 3, 300})
            for (const Index latent : {5, 128}) {
                const MlaHeads heads{3, 16, 8, 16};
                const Sequences seq = sequences_of(lengths, past);
                const Index rows = seq.tokens() + 2, width = latent + heads.shared, max_len = 400;
                Both fresh = Both::random(rows, latent, 1), shared = Both::random(rows, heads.shared, 2),
                     cache = Both::random(seq.count(), max_len * width, 3);
                Both q_lat = Both::random(rows, heads.count * latent, 4, 0.3),
                     q = Both::random(rows, heads.count * heads.key(), 5), o(rows, heads.count * latent);
                latent_append(cpu(), seq, fresh.c(), shared.c(), cache.c()),
                    latent_append(cuda(), seq, fresh.g(), shared.g(), cache.g());
                check_same("cache", cache, 0.0);
                latent_attention(cpu(), seq, heads, q_lat.c(), q.c(), cache.c(), o.c());
                latent_attention(cuda(), seq, heads, q_lat.g(), q.g(), cache.g(), o.g());
                check_same("o_lat", o);
            }
}

BOOST_AUTO_TEST_SUITE_END()
