#include <boost/test/unit_test.hpp>

#include "conformance/device.hpp"
#include "kimik3/ops/cpu/add.hpp"
#include "kimik3/ops/cpu/attn_res.hpp"
#include "kimik3/ops/cpu/cross_entropy.hpp"
#include "kimik3/ops/cpu/decay_gate.hpp"
#include "kimik3/ops/cpu/embedding.hpp"
#include "kimik3/ops/cpu/gated_norm.hpp"
#include "kimik3/ops/cpu/l2_norm.hpp"
#include "kimik3/ops/cpu/matmul.hpp"
#include "kimik3/ops/cpu/rms_norm.hpp"
#include "kimik3/ops/cpu/short_conv.hpp"
#include "kimik3/ops/cpu/sigmoid.hpp"
#include "kimik3/ops/cpu/sigmoid_gate.hpp"
#include "kimik3/ops/cpu/situ.hpp"
#include "kimik3/ops/cuda/add.cuh"
#include "kimik3/ops/cuda/attn_res.cuh"
#include "kimik3/ops/cuda/cross_entropy.cuh"
#include "kimik3/ops/cuda/decay_gate.cuh"
#include "kimik3/ops/cuda/embedding.cuh"
#include "kimik3/ops/cuda/gated_norm.cuh"
#include "kimik3/ops/cuda/l2_norm.cuh"
#include "kimik3/ops/cuda/matmul.cuh"
#include "kimik3/ops/cuda/rms_norm.cuh"
#include "kimik3/ops/cuda/short_conv.cuh"
#include "kimik3/ops/cuda/sigmoid.cuh"
#include "kimik3/ops/cuda/sigmoid_gate.cuh"
#include "kimik3/ops/cuda/situ.cuh"

using namespace kimik3;
using namespace kimik3::test;

namespace {

const Index row_counts[] = {0, 1, 37};
const Index widths[] = {1, 3, 5, 7, 33, 130, 1500};
const Index aligned_row_counts[] = {1, 9, 150};
const Index many_rows = 5000;  // more than there are teams at a time
const Index aligned_widths[] = {8, 24, 128, 320, 640, 1280, 3072};

template <class M>
using Kind = std::type_identity<M>;

/// body(Kind<M>, rows, width, gap) for M = Both and Half: odd sizes, and rows that begin at multiples of 16 bytes.
template <class Body>
void at_sizes(Body&& body) {
    const auto both = [&](Index rows, Index width, Index gap) {
        BOOST_TEST_CONTEXT(rows << " x " << width << ", float") body(Kind<Both>{}, rows, width, gap);
        if (width > 1) {  // a norm of one number has next to no gradient
            BOOST_TEST_CONTEXT(rows << " x " << width << ", bf16") body(Kind<Half>{}, rows, width, gap);
        }
    };
    for (const Index rows : row_counts)
        for (const Index width : widths) both(rows, width, 3);
    for (const Index rows : aligned_row_counts)
        for (const Index width : aligned_widths) both(rows, width, rows == 9 ? 0 : 8);
    both(many_rows, 128, 0);
}

/// What is allowed of results in float and in bf16.
template <class M>
constexpr double allowed(double in_float, double in_half) {
    return std::is_same_v<M, Half> ? in_half : in_float;
}
/// The number type of M's matrices on the GPU.
template <class M>
using GpuNumber = std::remove_reference_t<decltype(*std::declval<M&>().g().data)>;

const std::vector<std::vector<Index>> length_lists{{1}, {0, 1, 5}, {37, 0, 2, 70}, {3, 1, 4}};

}  // namespace

BOOST_AUTO_TEST_SUITE(conformance_rows)

BOOST_AUTO_TEST_CASE(matrix_products) {
    for (const Index m : {0, 1, 37})
        for (const Index n : {1, 5, 130})
            for (const Index k : {0, 1, 33, 130})
                for (const Add add : {Add::no, Add::yes}) {
                    Both a = Both::random(m, k, 1), at = Both::random(k, m, 2), b = Both::random(k, n, 3),
                         bt = Both::random(n, k, 4);
                    Both c = add == Add::yes ? Both::random(m, n, 5) : Both(m, n);
                    matmul_nt(cpu(), a.c(), bt.c(), c.c(), add), matmul_nt(cuda(), a.g(), bt.g(), c.g(), add);
                    check_same("nt", c);
                    matmul_nn(cpu(), a.c(), b.c(), c.c(), add), matmul_nn(cuda(), a.g(), b.g(), c.g(), add);
                    check_same("nn", c);
                    matmul_tn(cpu(), at.c(), b.c(), c.c(), add), matmul_tn(cuda(), at.g(), b.g(), c.g(), add);
                    check_same("tn", c);
                }
}

BOOST_AUTO_TEST_CASE(sums) {
    at_sizes([]<class M>(Kind<M>, Index rows, Index width, Index gap) {
        M x = M::random(rows, width, 1, 1.0, gap), y = M::random(rows, width, 2, 1.0, gap);
        add_to(cpu(), x.c(), y.c()), add_to(cuda(), x.g(), y.g());
        check_same("y", y);
    });
}

BOOST_AUTO_TEST_CASE(rms_norm) {
    at_sizes([]<class M>(Kind<M>, Index rows, Index width, Index gap) {
        M x = M::random(rows, width, 1, 1.0, gap), dy = M::random(rows, width, 2, 1.0, gap), y(rows, width, gap),
          dx(rows, width, gap);
        Both w = vector_of(width, 3), dw = vector_of(width, 4), r = empty_vector(rows);
        rms_norm_forward(cpu(), x.c(), w.cv(), 1e-5, y.c(), r.cv()),
            rms_norm_forward(cuda(), x.g(), w.gv(), 1e-5, y.g(), r.gv());
        rms_norm_backward(cpu(), dy.c(), x.c(), w.cv(), r.cv(), dx.c(), dw.cv());
        rms_norm_backward(cuda(), dy.g(), x.g(), w.gv(), r.gv(), dx.g(), dw.gv());
        check_same("y", y), check_same("r", r), check_same("dx", dx, allowed<M>(1e-4, 4e-3)), check_same("dw", dw);
        rms_norm_backward(cpu(), dy.c(), x.c(), w.cv(), r.cv(), dy.c(), dw.cv());
        rms_norm_backward(cuda(), dy.g(), x.g(), w.gv(), r.gv(), dy.g(), dw.gv());
        check_same("dx in place", dy, allowed<M>(1e-4, 4e-3)), check_same("dw again", dw, 3e-5);
    });
}

BOOST_AUTO_TEST_CASE(l2_norm) {
    at_sizes([]<class M>(Kind<M>, Index rows, Index width, Index gap) {
        const Index heads = 3, cols = heads * width;
        M x = M::random(rows, cols, 1, 1.0, gap), dy = M::random(rows, cols, 2, 1.0, gap), y(rows, cols, gap),
          dx(rows, cols, gap);
        Both r(rows, heads);
        l2_norm_forward(cpu(), heads, x.c(), y.c(), r.c()), l2_norm_forward(cuda(), heads, x.g(), y.g(), r.g());
        l2_norm_backward(cpu(), heads, dy.c(), y.c(), r.c(), dx.c()),
            l2_norm_backward(cuda(), heads, dy.g(), y.g(), r.g(), dx.g());
        check_same("y", y), check_same("r", r);
        check_same("dx", dx, allowed<M>(1e-4, 1e-2));
    });
}

BOOST_AUTO_TEST_CASE(situ) {
    at_sizes([]<class M>(Kind<M>, Index rows, Index width, Index gap) {
        M gate = M::random(rows, width, 1, 3.0, gap), up = M::random(rows, width, 2, 3.0, gap),
          dy = M::random(rows, width, 3, 1.0, gap);
        M y(rows, width, gap), dgate(rows, width, gap), dup(rows, width, gap);
        for (const SituBetas betas : {SituBetas{4.0, 25.0}, SituBetas::swiglu()}) {
            situ_forward(cpu(), gate.c(), up.c(), betas, y.c()), situ_forward(cuda(), gate.g(), up.g(), betas, y.g());
            situ_backward(cpu(), dy.c(), gate.c(), up.c(), betas, dgate.c(), dup.c());
            situ_backward(cuda(), dy.g(), gate.g(), up.g(), betas, dgate.g(), dup.g());
            check_same("y", y), check_same("dgate", dgate), check_same("dup", dup);
        }
    });
}

BOOST_AUTO_TEST_CASE(sigmoids) {
    at_sizes([]<class M>(Kind<M>, Index rows, Index width, Index gap) {
        M x = M::random(rows, width, 1, 1.0, gap), dy = M::random(rows, width, 2, 1.0, gap),
          o = M::random(rows, width, 3, 1.0, gap);
        M y(rows, width, gap), dx(rows, width, gap), gated(rows, width, gap), d_o(rows, width, gap),
            dlogits(rows, width, gap);
        sigmoid_forward(cpu(), x.c(), y.c()), sigmoid_forward(cuda(), x.g(), y.g());
        sigmoid_backward(cpu(), dy.c(), y.c(), dx.c()), sigmoid_backward(cuda(), dy.g(), y.g(), dx.g());
        sigmoid_gate_forward(cpu(), o.c(), x.c(), gated.c()), sigmoid_gate_forward(cuda(), o.g(), x.g(), gated.g());
        sigmoid_gate_backward(cpu(), dy.c(), o.c(), x.c(), d_o.c(), dlogits.c());
        sigmoid_gate_backward(cuda(), dy.g(), o.g(), x.g(), d_o.g(), dlogits.g());
        check_same("y", y), check_same("dx", dx, allowed<M>(1e-5, 1e-2)), check_same("gated", gated),
            check_same("do", d_o), check_same("dlogits", dlogits);
    });
}

BOOST_AUTO_TEST_CASE(gated_norm) {
    at_sizes([]<class M>(Kind<M>, Index rows, Index width, Index gap) {
        for (const bool gated : {true, false}) {
            const Index heads = 2, cols = heads * width;
            M x = M::random(rows, cols, 1, 1.0, gap), dy = M::random(rows, cols, 2, 1.0, gap),
              gate = M::random(rows, gated ? cols : 0, 3, 1.0, gap), y(rows, cols, gap), dx(rows, cols, gap),
              dgate(rows, gated ? cols : 0, gap);
            Both w = vector_of(width, 4), dw = vector_of(width, 5), r(rows, heads);
            gated_norm_forward(cpu(), heads, x.c(), gate.c(), w.cv(), 1e-5, y.c(), r.c());
            gated_norm_forward(cuda(), heads, x.g(), gate.g(), w.gv(), 1e-5, y.g(), r.g());
            gated_norm_backward(cpu(), heads, dy.c(), x.c(), gate.c(), w.cv(), r.c(), dx.c(), dgate.c(), dw.cv());
            gated_norm_backward(cuda(), heads, dy.g(), x.g(), gate.g(), w.gv(), r.g(), dx.g(), dgate.g(), dw.gv());
            check_same("y", y), check_same("r", r), check_same("dgate", dgate), check_same("dw", dw);
            check_same("dx", dx, allowed<M>(1e-4, 4e-3));
            gated_norm_backward(cuda(), heads, dy.g(), x.g(), gate.g(), w.gv(), r.g(), dy.g(), gate.g(), dw.gv());
            dy.host.fill(0), gate.host.fill(0);
            add_to(cpu(), dx.c(), dy.c()), add_to(cpu(), dgate.c(), gate.c());
            check_same("dx in place", dy, allowed<M>(1e-4, 4e-3)), check_same("dgate in place", gate);
        }
    });
}

BOOST_AUTO_TEST_CASE(decay_gate) {
    at_sizes([]<class M>(Kind<M>, Index rows, Index width, Index gap) {
        for (const DecayGateForm form :
             {DecayGateForm{DecayGate::bounded, -5.0}, DecayGateForm{DecayGate::softplus, -5.0}}) {
            const Index heads = 2, cols = heads * width;
            M z = M::random(rows, cols, 1, 2.0, gap), dg = M::random(rows, cols, 2, 1.0, gap), g(rows, cols, gap),
              dz(rows, cols, gap);
            Both A_log = vector_of(heads, 3, 0.3), bias = vector_of(cols, 4), dA_log = vector_of(heads, 5),
                 dbias = vector_of(cols, 6);
            decay_gate_forward(cpu(), form, z.c(), A_log.cv(), bias.cv(), g.c());
            decay_gate_forward(cuda(), form, z.g(), A_log.gv(), bias.gv(), g.g());
            decay_gate_backward(cpu(), form, dg.c(), z.c(), A_log.cv(), bias.cv(), dz.c(), dA_log.cv(), dbias.cv());
            decay_gate_backward(cuda(), form, dg.g(), z.g(), A_log.gv(), bias.gv(), dz.g(), dA_log.gv(), dbias.gv());
            check_same("g", g), check_same("dz", dz), check_same("dA_log", dA_log, 1e-4), check_same("ddt_bias", dbias);
        }
    });
}

BOOST_AUTO_TEST_CASE(short_conv) {
    const auto at = []<class M>(Kind<M>, const std::vector<Index>& lengths, Index channels, Index taps, bool carried,
                                Index gap) {
        const Sequences seq = sequences_of(lengths, 3);
        const Index rows = seq.tokens() + 2, slots = carried ? seq.count() : 0, window = (taps - 1) * channels;
        M u = M::random(rows, channels, 1, 1.0, gap), dy = M::random(rows, channels, 4, 1.0, gap),
          y(rows, channels, gap), du(rows, channels, gap);
        Both w = Both::random(channels, taps, 2, 1.0, gap == 3 ? 3 : 0), initial = Both::random(slots, window, 3);
        Both final(slots, window), dfinal = Both::random(slots, window, 5),
                                   dw = Both::random(channels, taps, 6, 1.0, gap == 3 ? 3 : 0),
                                   dinitial(slots, window);
        short_conv_forward(cpu(), seq, u.c(), w.c(), initial.c(), y.c(), final.c());
        short_conv_forward(cuda(), seq, u.g(), w.g(), initial.g(), y.g(), final.g());
        short_conv_backward(cpu(), seq, dy.c(), u.c(), w.c(), initial.c(), dfinal.c(), du.c(), dw.c(), dinitial.c());
        short_conv_backward(cuda(), seq, dy.g(), u.g(), w.g(), initial.g(), dfinal.g(), du.g(), dw.g(), dinitial.g());
        check_same("y", y), check_same("final", final), check_same("du", du);
        check_same("dw", dw, allowed<M>(1e-5, 4e-3)), check_same("dinitial", dinitial, allowed<M>(1e-5, 4e-3));
        short_conv_backward(cuda(), seq, dy.g(), u.g(), w.g(), initial.g(), dfinal.g(), dy.g(), dw.g(), dinitial.g());
        dy.host.fill(0);
        add_to(cpu(), du.c(), dy.c());
        check_same("du in place", dy);
        short_conv_forward(cpu(), seq, u.c(), w.c(), initial.c(), y.c(), initial.c());
        short_conv_forward(cuda(), seq, u.g(), w.g(), initial.g(), y.g(), initial.g());
        check_same("y with the window in place", y), check_same("window in place", initial);
    };
    for (const auto& lengths : length_lists)
        for (const auto& [channels, gap] : {std::pair<Index, Index>{1, 3}, {7, 3}, {130, 3}, {8, 0}, {136, 8}})
            for (const Index taps : {1, 2, 4})
                for (const bool carried : {false, true})
                    BOOST_TEST_CONTEXT(lengths.back() << " tokens, " << channels << " channels, " << taps << " taps, "
                                                      << carried) {
                        at(Kind<Both>{}, lengths, channels, taps, carried, gap);
                        at(Kind<Half>{}, lengths, channels, taps, carried, gap);
                    }
    at(Kind<Half>{}, std::vector<Index>{2000, 500}, 24, 4, false, 0);
}

BOOST_AUTO_TEST_CASE(embedding) {
    at_sizes([]<class M>(Kind<M>, Index rows, Index width, Index gap) {
        const Index vocab = 11;
        Ids ids(1, rows, 0);
        for (Index n = 0; n < rows; ++n) ids.host(0, n) = static_cast<std::int32_t>(n * n % vocab);
        ids.send();
        M table = M::random(vocab, width, 1, 1.0, gap), dy = M::random(rows, width, 3, 1.0, gap), y(rows, width, gap);
        Both dtable = Both::random(vocab, width, 2, 1.0, gap);
        embedding_forward(cpu(), span_of(ids.c()), table.c(), y.c()),
            embedding_forward(cuda(), span_of(ids.g()), table.g(), y.g());
        embedding_backward(cpu(), span_of(ids.c()), dy.c(), dtable.c()),
            embedding_backward(cuda(), span_of(ids.g()), dy.g(), dtable.g());
        check_same("y", y), check_same("dtable", dtable);
    });
}

/// As many tokens as an id has places, fewer and more; the same bits every time.
BOOST_AUTO_TEST_CASE(embedding_of_rare_and_frequent_ids) {
    std::vector<std::int32_t> all;
    for (const auto& [id, count] : {std::pair{3, 1}, {4, 2}, {7, 31}, {8, 32}, {9, 33}, {0, 64}, {12, 65}, {11, 5000}})
        all.insert(all.end(), to_size(count), id);
    Philox numbers(1);
    for (std::size_t n = all.size(); n-- > 1;)
        std::swap(all[n], all[static_cast<std::size_t>(numbers.uniform() * static_cast<double>(n + 1))]);
    const Index tokens = static_cast<Index>(all.size()), vocab = 13;
    Ids ids(1, tokens, 0);
    for (Index n = 0; n < tokens; ++n) ids.host(0, n) = all[to_size(n)];
    ids.send();
    for (const auto& [width, gap] : {std::pair<Index, Index>{72, 8}, {640, 0}, {37, 3}}) {
        Half dy = Half::random(tokens, width, 1, 1.0, gap);
        Both dtable = Both::random(vocab, width, 2, 1.0, gap), again = Both::random(vocab, width, 2, 1.0, gap);
        embedding_backward(cpu(), span_of(ids.c()), dy.c(), dtable.c());
        embedding_backward(cuda(), span_of(ids.g()), dy.g(), dtable.g());
        embedding_backward(cuda(), span_of(ids.g()), dy.g(), again.g());
        check_same("dtable", dtable);
        BOOST_TEST((again.found() == dtable.found()), "the same bits");
    }
}

BOOST_AUTO_TEST_CASE(cross_entropies) {
    at_sizes([]<class M>(Kind<M>, Index rows, Index width, Index gap) {
        Ids targets(1, rows, 0);
        for (Index n = 0; n < rows; ++n)
            targets.host(0, n) = n % 4 == 3 ? ignored_target : static_cast<std::int32_t>(n % width);
        targets.send();
        M logits = M::random(rows, width, 1, 4.0, gap);
        Both loss = empty_vector(rows), again = empty_vector(rows);
        cross_entropy(cpu(), logits.c(), span_of(targets.c()), loss.cv()),
            cross_entropy(cuda(), logits.g(), span_of(targets.g()), loss.gv());
        cross_entropy_backward(cpu(), logits.c(), span_of(targets.c()), 0.25, again.cv());
        cross_entropy_backward(cuda(), logits.g(), span_of(targets.g()), 0.25, again.gv());
        check_same("loss", loss), check_same("loss of backward", again), check_same("dlogits", logits);
    });
}

BOOST_AUTO_TEST_CASE(cross_entropies_of_long_rows) {
    for (const Index width : {49152, 49153, 163840}) {
        const Index rows = 5;
        Ids targets(1, rows, 0);
        for (Index n = 0; n < rows; ++n) targets.host(0, n) = static_cast<std::int32_t>(n == 2 ? -100 : n * 9001);
        targets.send();
        Half logits = Half::random(rows, width, 1, 4.0, 0);
        Both loss = empty_vector(rows), again = empty_vector(rows);
        cross_entropy(cpu(), logits.c(), span_of(targets.c()), loss.cv());
        cross_entropy(cuda(), logits.g(), span_of(targets.g()), loss.gv());
        cross_entropy_backward(cpu(), logits.c(), span_of(targets.c()), 0.25, again.cv());
        cross_entropy_backward(cuda(), logits.g(), span_of(targets.g()), 0.25, again.gv());
        check_same("loss", loss), check_same("loss of backward", again), check_same("dlogits", logits);
    }
}

BOOST_AUTO_TEST_CASE(attn_res) {
    at_sizes([]<class M>(Kind<M>, Index rows, Index width, Index gap) {
        for (const Index count : {1, 2, 5, 9}) {
            if (rows == many_rows && count != 5) continue;
            std::vector<M> v, dv;
            Candidates<const double> c;
            Candidates<const GpuNumber<M>> g;
            Candidates<double> dc;
            Candidates<GpuNumber<M>> dgr;
            for (Index j = 0; j < count; ++j) {
                v.push_back(M::random(rows, width, 10 + static_cast<std::uint64_t>(j), 1.0, gap));
                dv.push_back(M::random(rows, width, 30 + static_cast<std::uint64_t>(j), 1.0, gap));
            }
            for (std::size_t j = 0; j < v.size(); ++j)
                c.add(v[j].c()), g.add(v[j].g()), dc.add(dv[j].c()), dgr.add(dv[j].g());
            M h(rows, width, gap), dh = M::random(rows, width, 3, 1.0, gap);
            Both gamma = vector_of(width, 1), pi = vector_of(width, 2, 0.3), p(rows, count), r(rows, count);
            Both dgamma = vector_of(width, 4), dpi = vector_of(width, 5);
            attn_res_forward(cpu(), c, gamma.cv(), pi.cv(), 1e-5, h.c(), p.c(), r.c());
            attn_res_forward(cuda(), g, gamma.gv(), pi.gv(), 1e-5, h.g(), p.g(), r.g());
            attn_res_backward(cpu(), dh.c(), c, gamma.cv(), pi.cv(), p.c(), r.c(), h.c(), dc, dgamma.cv(), dpi.cv());
            attn_res_backward(cuda(), dh.g(), g, gamma.gv(), pi.gv(), p.g(), r.g(), h.g(), dgr, dgamma.gv(), dpi.gv());
            check_same("h", h), check_same("p", p), check_same("r", r);
            // h is rounded to bf16 in between, and the slopes are differences of products with it.
            check_same("dgamma", dgamma, allowed<M>(1e-4, 0.1)), check_same("dpi", dpi, allowed<M>(1e-4, 0.1));
            for (M& each : dv) check_same("dv", each, allowed<M>(1e-4, 2e-2));
        }
    });
}

/// h and dh are memory of the operation: what forward left in h is what backward takes.
BOOST_AUTO_TEST_CASE(attn_res_with_norm) {
    at_sizes([]<class M>(Kind<M>, Index rows, Index width, Index gap) {
        for (const Index count : {2, 5, 9, 17}) {
            if ((count == 17 && width > 300) || (rows == many_rows && count != 5)) continue;
            std::vector<M> v, dv;
            Candidates<const double> c;
            Candidates<const GpuNumber<M>> g;
            Candidates<double> dc;
            Candidates<GpuNumber<M>> dgr;
            for (Index j = 0; j < count; ++j) {
                v.push_back(M::random(rows, width, 10 + static_cast<std::uint64_t>(j), 1.0, gap));
                dv.push_back(M::random(rows, width, 30 + static_cast<std::uint64_t>(j), 1.0, gap));
            }
            for (std::size_t j = 0; j < v.size(); ++j)
                c.add(v[j].c()), g.add(v[j].g()), dc.add(dv[j].c()), dgr.add(dv[j].g());
            M y(rows, width, gap), dy = M::random(rows, width, 3, 1.0, gap), h(rows, width, gap), dh(rows, width, gap);
            Both gamma = vector_of(width, 1), pi = vector_of(width, 2, 0.3), w = vector_of(width, 6), p(rows, count),
                 r(rows, count), norm_r = empty_vector(rows);
            Both dgamma = vector_of(width, 4), dpi = vector_of(width, 5), dw = vector_of(width, 7);
            attn_res_norm_forward(cpu(), c, gamma.cv(), pi.cv(), 1e-5, w.cv(), 1e-6, h.c(), y.c(), p.c(), r.c(),
                                  norm_r.cv());
            attn_res_norm_forward(cuda(), g, gamma.gv(), pi.gv(), 1e-5, w.gv(), 1e-6, h.g(), y.g(), p.g(), r.g(),
                                  norm_r.gv());
            attn_res_norm_backward(cpu(), dy.c(), c, gamma.cv(), pi.cv(), w.cv(), p.c(), r.c(), norm_r.cv(), h.c(), dc,
                                   dgamma.cv(), dpi.cv(), dw.cv(), dh.c());
            attn_res_norm_backward(cuda(), dy.g(), g, gamma.gv(), pi.gv(), w.gv(), p.g(), r.g(), norm_r.gv(), h.g(),
                                   dgr, dgamma.gv(), dpi.gv(), dw.gv(), dh.g());
            // The plain form rounds h and dh to bf16 in between.
            check_same("y", y, allowed<M>(1e-5, 6e-3)), check_same("p", p), check_same("r", r);
            check_same("norm_r", norm_r, allowed<M>(1e-5, 5e-3)), check_same("dw", dw, allowed<M>(1e-5, 1e-2));
            check_same("dgamma", dgamma, allowed<M>(1e-4, 0.1)), check_same("dpi", dpi, allowed<M>(1e-4, 0.1));
            for (M& each : dv) check_same("dv", each, allowed<M>(1e-4, 1.5e-2));
        }
    });
}

BOOST_AUTO_TEST_SUITE_END()
