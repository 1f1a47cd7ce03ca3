#include <boost/test/unit_test.hpp>

#include "conformance/device.hpp"
#include "kimik3/ops/cpu/kda_chunk.hpp"
#include "kimik3/ops/cpu/kda_fused.hpp"
#include "kimik3/ops/cpu/kda_recurrent.hpp"
#include "kimik3/ops/cuda/kda_chunk.cuh"
#include "kimik3/ops/cuda/kda_fused.cuh"
#include "kimik3/ops/cuda/kda_recurrent.cuh"

using namespace kimik3;
using namespace kimik3::test;

namespace {

const std::vector<std::vector<Index>> length_lists{{1}, {0, 1, 5}, {37, 0, 2, 70}, {3, 1, 4}};

/// Allowed errors of outputs and states, of gradients, and of sums of gradients over tokens.
struct Allowed {
    double value, gradient;
};
template <class M>
constexpr Allowed allowed = std::is_same_v<M, Half> ? Allowed{1e-2, 2e-2} : Allowed{1e-5, 1e-4};

struct Shape {
    std::vector<Index> lengths;
    Index heads, key, value, chunk;
    bool carried;
    double gate_offset = 0;  // of the gate's logits: large ones reach the bound of the decay
};

/// Forward and backward of the fused operation on both backends. M: Both or Half.
template <class M, class T>
void check_fused(const Shape& shape) {
    BOOST_TEST_CONTEXT("tokens " << shape.lengths.back() << ", " << shape.key << " x " << shape.value << ", chunk "
                                 << shape.chunk << ", carried " << shape.carried << ", offset " << shape.gate_offset) {
        const Sequences seq = sequences_of(shape.lengths, 3);
        const Index heads = shape.heads, rows = seq.tokens() + 2, slots = shape.carried ? seq.count() : 0,
                    wide = heads * shape.key, deep = heads * shape.value, state = heads * shape.key * shape.value,
                    gap = shape.chunk == 64 ? 8 : 3;
        M q = M::random(rows, wide, 1, 1.0, gap), k = M::random(rows, wide, 2, 1.0, gap),
          v = M::random(rows, deep, 3, 1.0, gap), z = M::random(rows, wide, 4, 1.0, gap);
        M b = M::random(rows, heads, 5);
        Both A_log = vector_of(heads, 6, 0.3), bias = vector_of(wide, 7, 0.5);
        for (Index c = 0; c < wide; ++c) bias.host(0, c) = static_cast<float>(bias.host(0, c) + shape.gate_offset);
        bias.send();
        Both initial = Both::random(slots, state, 8, 0.3), dfinal = Both::random(slots, state, 10);
        M d_o = M::random(rows, deep, 9, 1.0, gap), o(rows, deep, gap);
        Both final(slots, state), dinitial(slots, state);
        M states(kda_chunks(seq, shape.chunk), state);
        M dq(rows, wide, gap), dk(rows, wide, gap), dv(rows, deep, gap), dz(rows, wide, gap), db(rows, heads);
        Both dA_log = vector_of(heads, 11), dbias = vector_of(wide, 12);
        const KdaFusedForm form{heads, shape.chunk, -5.0};
        kda_fused_forward(cpu(), seq, form, {q.c(), k.c(), v.c(), z.c(), b.c(), A_log.cv(), bias.cv(), initial.c()},
                          o.c(), final.c(), states.c());
        // with what forward can leave for backward in every other case
        const Index left = shape.carried ? KdaPrepared<Cuda, T>::size(seq, form, shape.key, shape.value) : 0;
        const Buffer<T, Cuda> prepared(left);
        const KdaRawInput<T> in{q.g(),      k.g(),     v.g(),       z.g(),          b.g(),
                                A_log.gv(), bias.gv(), initial.g(), prepared.view()};
        kda_fused_forward(cuda(), seq, form, in, o.g(), final.g(), states.g());
        const double gradient = allowed<M>.gradient, value = allowed<M>.value * (seq.tokens() < 4 ? 2 : 1);
        check_same("o", o, value), check_same("final", final, value);
        if constexpr (std::is_same_v<M, Both>) check_same("states", states, value);
        kda_fused_backward(
            cpu(), seq, form, {q.c(), k.c(), v.c(), z.c(), b.c(), A_log.cv(), bias.cv(), initial.c()}, states.c(),
            d_o.c(), dfinal.c(),
            KdaRawGradient<double>{dq.c(), dk.c(), dv.c(), dz.c(), db.c(), dA_log.cv(), dbias.cv(), dinitial.c()});
        kda_fused_backward(
            cuda(), seq, form, in, states.g(), d_o.g(), dfinal.g(),
            KdaRawGradient<T>{dq.g(), dk.g(), dv.g(), dz.g(), db.g(), dA_log.gv(), dbias.gv(), dinitial.g()});
        check_same("dq", dq, gradient), check_same("dk", dk, gradient), check_same("dv", dv, gradient),
            check_same("dz", dz, gradient), check_same("db", db, gradient);
        check_same("dinitial", dinitial, gradient), check_same("ddt_bias", dbias, gradient);
        check_same("dA_log", dA_log, std::is_same_v<M, Half> ? 4e-2 : gradient);  // a sum that mostly cancels
    }
}

/// The recurrent operation (chunk 0) and the chunked one, of prepared inputs.
template <class M, class T>
void check_prepared(const Sequences& seq, Index key, Index value, Index chunk) {
    BOOST_TEST_CONTEXT("tokens " << seq.tokens() << ", " << key << " x " << value << ", chunk " << chunk) {
        const Index heads = 2, rows = seq.tokens() + 2, slots = seq.count(), wide = heads * key, deep = heads * value,
                    state = heads * key * value;
        const double unit = 1.0 / std::sqrt(static_cast<double>(key));
        M q = M::random(rows, wide, 1, unit), k = M::random(rows, wide, 2, unit), v = M::random(rows, deep, 3);
        M g = M::random(rows, wide, 4), beta = M::random(rows, heads, 5, 0.4);
        Both initial = Both::random(slots, state, 8, 0.3), dfinal = Both::random(slots, state, 10);
        for (Index n = 0; n < rows; ++n)
            for (Index c = 0; c < wide; ++c) g.host(n, c) = -std::abs(g.host(n, c));
        g.send();
        M d_o = M::random(rows, deep, 9), o(rows, deep);
        Both final(slots, state), dinitial(slots, state);
        M states(chunk == 0 ? 0 : kda_chunks(seq, chunk), state);
        M dq(rows, wide), dk(rows, wide), dv(rows, deep), dg(rows, wide), db(rows, heads);
        const KdaInput<double> in_c{q.c(), k.c(), v.c(), g.c(), beta.c(), initial.c()};
        const KdaInput<T> in_g{q.g(), k.g(), v.g(), g.g(), beta.g(), initial.g()};
        const KdaGradient<double> to_c{dq.c(), dk.c(), dv.c(), dg.c(), db.c(), dinitial.c()};
        const KdaGradient<T> to_g{dq.g(), dk.g(), dv.g(), dg.g(), db.g(), dinitial.g()};
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
        const auto [of_values, gradient] = allowed<M>;
        check_same("o", o, of_values), check_same("final", final, of_values);
        check_same("dq", dq, gradient), check_same("dk", dk, gradient), check_same("dv", dv, gradient),
            check_same("dg", dg, gradient), check_same("dbeta", db, gradient),
            check_same("dinitial", dinitial, gradient);
    }
}

}  // namespace

BOOST_AUTO_TEST_SUITE(conformance_kda)

BOOST_AUTO_TEST_CASE(kimi_delta_attention) {
    for (const auto& lengths : length_lists)
        for (const auto& [key, value] :
             {std::pair<Index, Index>{16, 16}, {1, 3}, {40, 33}, {64, 130}, {130, 5}, {256, 40}})
            for (const bool carried : {false, true}) {
                check_fused<Both, float>({lengths, 2, key, value, 32, carried});
                if (key > 1) check_fused<Half, bf16>({lengths, 2, key, value, 32, carried});
            }
}

BOOST_AUTO_TEST_CASE(kimi_delta_attention_on_tensor_cores) {
    for (const std::vector<Index>& lengths :
         {std::vector<Index>{1}, {0, 1, 5}, {64, 0, 128}, {37, 0, 2, 70, 63, 65}, {300, 16, 17}})
        for (const Index size : {64, 128})
            for (const Index chunk : {32, 64})
                for (const double offset : {-3.0, 0.0, 8.0})
                    check_fused<Half, bf16>({lengths, 2, size, size, chunk, offset == 0.0, offset});
}

BOOST_AUTO_TEST_CASE(kimi_delta_attention_of_prepared_inputs) {
    for (const auto& lengths : length_lists)
        for (const auto& [key, value] : {std::pair<Index, Index>{16, 16}, {40, 33}, {64, 130}})
            for (const Index chunk : {0, 16, 64}) {
                check_prepared<Both, float>(sequences_of(lengths, 3), key, value, chunk);
                check_prepared<Half, bf16>(sequences_of(lengths, 3), key, value, chunk);
            }
}

BOOST_AUTO_TEST_SUITE_END()
