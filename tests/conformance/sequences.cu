#include <boost/test/unit_test.hpp>

#include "conformance/device.hpp"

using namespace kimik3;
using namespace kimik3::test;

namespace {

const std::vector<std::vector<Index>> length_lists{{1}, {0, 1, 5}, {37, 0, 2, 70}, {3, 1, 4}};

}  // namespace

BOOST_AUTO_TEST_SUITE(conformance_sequences)

BOOST_AUTO_TEST_CASE(short_conv) {
    for (const auto& lengths : length_lists)
        for (const Index channels : {1, 7, 130})
            for (const Index taps : {1, 2, 4})
                for (const bool carried : {false, true}) {
                    const Sequences seq = sequences_of(lengths, 3);
                    const Index rows = seq.tokens() + 2, slots = carried ? seq.count() : 0,
                                window = (taps - 1) * channels;
                    Both u = Both::random(rows, channels, 1), w = Both::random(channels, taps, 2),
                         initial = Both::random(slots, window, 3);
                    Both y(rows, channels), final(slots, window), dy = Both::random(rows, channels, 4),
                                                                  dfinal = Both::random(slots, window, 5);
                    Both du(rows, channels), dw = Both::random(channels, taps, 6), dinitial(slots, window);
                    short_conv_forward(cpu(), seq, u.c(), w.c(), initial.c(), y.c(), final.c());
                    short_conv_forward(cuda(), seq, u.g(), w.g(), initial.g(), y.g(), final.g());
                    short_conv_backward(cpu(), seq, dy.c(), u.c(), w.c(), initial.c(), dfinal.c(), du.c(), dw.c(),
                                        dinitial.c());
                    short_conv_backward(cuda(), seq, dy.g(), u.g(), w.g(), initial.g(), dfinal.g(), du.g(), dw.g(),
                                        dinitial.g());
                    check_same("y", y), check_same("final", final), check_same("du", du), check_same("dw", dw),
                        check_same("dinitial", dinitial);
                    short_conv_forward(cpu(), seq, u.c(), w.c(), initial.c(), y.c(), initial.c());
                    short_conv_forward(cuda(), seq, u.g(), w.g(), initial.g(), y.g(), initial.g());
                    check_same("y with the window in place", y), check_same("window in place", initial);
                }
}

BOOST_AUTO_TEST_CASE(kimi_delta_attention) {
    for (const auto& lengths : length_lists)
        for (const auto& [key, value] :
             {std::pair<Index, Index>{16, 16}, {1, 3}, {40, 33}, {64, 130}, {130, 5}, {256, 40}})
            for (const bool carried : {false, true}) {
                BOOST_TEST_CONTEXT("tokens " << lengths.back() << ", " << key << " x " << value << ", carried "
                                             << carried) {
                    const Sequences seq = sequences_of(lengths, 3);
                    const Index heads = 2, rows = seq.tokens() + 2, slots = carried ? seq.count() : 0,
                                wide = heads * key, deep = heads * value, state = heads * key * value, chunk = 32;
                    Both q = Both::random(rows, wide, 1), k = Both::random(rows, wide, 2),
                         v = Both::random(rows, deep, 3), z = Both::random(rows, wide, 4);
                    Both b = Both::random(rows, heads, 5), A_log = vector_of(heads, 6, 0.3),
                         bias = vector_of(wide, 7, 0.5);
                    Both initial = Both::random(slots, state, 8, 0.3), d_o = Both::random(rows, deep, 9),
                         dfinal = Both::random(slots, state, 10);
                    Both o(rows, deep), final(slots, state), states(kda_chunks(seq, chunk), state);
                    Both dq(rows, wide), dk(rows, wide), dv(rows, deep), dz(rows, wide), db(rows, heads),
                        dinitial(slots, state);
                    Both dA_log = vector_of(heads, 11), dbias = vector_of(wide, 12);
                    const KdaFusedForm form{heads, chunk, -5.0};
                    kda_fused_forward(cpu(), seq, form,
                                      {q.c(), k.c(), v.c(), z.c(), b.c(), A_log.cv(), bias.cv(), initial.c()}, o.c(),
                                      final.c(), states.c());
                    kda_fused_forward(cuda(), seq, form,
                                      {q.g(), k.g(), v.g(), z.g(), b.g(), A_log.gv(), bias.gv(), initial.g()}, o.g(),
                                      final.g(), states.g());
                    check_same("o", o), check_same("final", final), check_same("states", states);
                    kda_fused_backward(cpu(), seq, form,
                                       {q.c(), k.c(), v.c(), z.c(), b.c(), A_log.cv(), bias.cv(), initial.c()},
                                       states.c(), d_o.c(), dfinal.c(),
                                       KdaRawGradient<double>{dq.c(), dk.c(), dv.c(), dz.c(), db.c(), dA_log.cv(),
                                                              dbias.cv(), dinitial.c()});
                    kda_fused_backward(cuda(), seq, form,
                                       {q.g(), k.g(), v.g(), z.g(), b.g(), A_log.gv(), bias.gv(), initial.g()},
                                       states.g(), d_o.g(), dfinal.g(),
                                       KdaRawGradient<float>{dq.g(), dk.g(), dv.g(), dz.g(), db.g(), dA_log.gv(),
                                                             dbias.gv(), dinitial.g()});
                    check_same("dq", dq, 1e-4), check_same("dk", dk, 1e-4);
                    check_same("dv", dv, 1e-4), check_same("dz", dz, 1e-4), check_same("db", db, 1e-4),
                        check_same("dinitial", dinitial, 1e-4);
                    check_same("dA_log", dA_log, 1e-4), check_same("ddt_bias", dbias, 1e-4);
                }
            }
}

BOOST_AUTO_TEST_CASE(kimi_delta_attention_of_prepared_inputs) {
    for (const auto& lengths : length_lists)
        for (const auto& [key, value] : {std::pair<Index, Index>{16, 16}, {40, 33}, {64, 130}}) {
            const Sequences seq = sequences_of(lengths, 3);
            const Index heads = 2, rows = seq.tokens() + 2, slots = seq.count(), wide = heads * key,
                        deep = heads * value, state = heads * key * value;
            const double unit = 1.0 / std::sqrt(static_cast<double>(key));
            Both q = Both::random(rows, wide, 1, unit), k = Both::random(rows, wide, 2, unit),
                 v = Both::random(rows, deep, 3);
            Both g = Both::random(rows, wide, 4), beta = Both::random(rows, heads, 5, 0.4),
                 initial = Both::random(slots, state, 8, 0.3);
            for (Index n = 0; n < rows; ++n)
                for (Index c = 0; c < wide; ++c) g.host(n, c) = -std::abs(g.host(n, c));
            g.send();
            Both d_o = Both::random(rows, deep, 9), dfinal = Both::random(slots, state, 10);
            for (const Index chunk : {0, 16, 64}) {
                Both o(rows, deep), final(slots, state), states(chunk == 0 ? 0 : kda_chunks(seq, chunk), state);
                Both dq(rows, wide), dk(rows, wide), dv(rows, deep), dg(rows, wide), db(rows, heads),
                    dinitial(slots, state);
                const KdaInput<double> in_c{q.c(), k.c(), v.c(), g.c(), beta.c(), initial.c()};
                const KdaInput<float> in_g{q.g(), k.g(), v.g(), g.g(), beta.g(), initial.g()};
                const KdaGradient<double> to_c{dq.c(), dk.c(), dv.c(), dg.c(), db.c(), dinitial.c()};
                const KdaGradient<float> to_g{dq.g(), dk.g(), dv.g(), dg.g(), db.g(), dinitial.g()};
                if (chunk == 0) {
                    kda_recurrent_forward(cpu(), seq, heads, in_c, o.c(), final.c()),
                        kda_recurrent_forward(cuda(), seq, heads, in_g, o.g(), final.g());
                    kda_recurrent_backward(cpu(), seq, heads, in_c, d_o.c(), dfinal.c(), to_c);
                    kda_recurrent_backward(cuda(), seq, heads, in_g, d_o.g(), dfinal.g(), to_g);
                } else {
                    kda_chunk_forward(cpu(), seq, heads, chunk, in_c, o.c(), final.c(), states.c());
                    kda_chunk_forward(cuda(), seq, heads, chunk, in_g, o.g(), final.g(), states.g());
                    kda_chunk_backward(cpu(), seq, heads, chunk, in_c, states.c(), d_o.c(), dfinal.c(), to_c);
                    kda_chunk_backward(cuda(), seq, heads, chunk, in_g, states.g(), d_o.g(), dfinal.g(), to_g);
                }
                check_same("o", o), check_same("final", final), check_same("dq", dq, 1e-4), check_same("dk", dk, 1e-4),
                    check_same("dv", dv, 1e-4);
                check_same("dg", dg, 1e-4), check_same("dbeta", db, 1e-4), check_same("dinitial", dinitial, 1e-4);
            }
        }
}

BOOST_AUTO_TEST_SUITE_END()
