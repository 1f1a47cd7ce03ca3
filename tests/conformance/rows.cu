#include <boost/test/unit_test.hpp>

#include "conformance/device.hpp"

using namespace kimik3;
using namespace kimik3::test;

namespace {

const Index row_counts[] = {0, 1, 37};
const Index widths[] = {1, 3, 5, 7, 33, 130, 1500};

template <class Body>
void at_odd_sizes(Body&& body) {
    for (const Index rows : row_counts)
        for (const Index width : widths) BOOST_TEST_CONTEXT(rows << " x " << width) body(rows, width);
}

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
    at_odd_sizes([](Index rows, Index width) {
        Both x = Both::random(rows, width, 1), y = Both::random(rows, width, 2);
        add_to(cpu(), x.c(), y.c()), add_to(cuda(), x.g(), y.g());
        check_same("y", y);
    });
}

BOOST_AUTO_TEST_CASE(rms_norm) {
    at_odd_sizes([](Index rows, Index width) {
        Both x = Both::random(rows, width, 1), dy = Both::random(rows, width, 2), y(rows, width), dx(rows, width);
        Both w = vector_of(width, 3), dw = vector_of(width, 4), r = empty_vector(rows);
        rms_norm_forward(cpu(), x.c(), w.cv(), 1e-5, y.c(), r.cv()),
            rms_norm_forward(cuda(), x.g(), w.gv(), 1e-5, y.g(), r.gv());
        rms_norm_backward(cpu(), dy.c(), x.c(), w.cv(), r.cv(), dx.c(), dw.cv());
        rms_norm_backward(cuda(), dy.g(), x.g(), w.gv(), r.gv(), dx.g(), dw.gv());
        check_same("y", y), check_same("r", r), check_same("dx", dx, 1e-4), check_same("dw", dw);
    });
}

BOOST_AUTO_TEST_CASE(l2_norm) {
    at_odd_sizes([](Index rows, Index width) {
        const Index heads = 3, cols = heads * width;
        Both x = Both::random(rows, cols, 1), dy = Both::random(rows, cols, 2), y(rows, cols), dx(rows, cols),
             r(rows, heads);
        l2_norm_forward(cpu(), heads, x.c(), y.c(), r.c()), l2_norm_forward(cuda(), heads, x.g(), y.g(), r.g());
        l2_norm_backward(cpu(), heads, dy.c(), y.c(), r.c(), dx.c()),
            l2_norm_backward(cuda(), heads, dy.g(), y.g(), r.g(), dx.g());
        check_same("y", y), check_same("r", r);
        check_same("dx", dx, 1e-4);
    });
}

BOOST_AUTO_TEST_CASE(situ) {
    at_odd_sizes([](Index rows, Index width) {
        Both gate = Both::random(rows, width, 1, 3.0), up = Both::random(rows, width, 2, 3.0),
             dy = Both::random(rows, width, 3);
        Both y(rows, width), dgate(rows, width), dup(rows, width);
        for (const SituBetas betas : {SituBetas{4.0, 25.0}, SituBetas::swiglu()}) {
            situ_forward(cpu(), gate.c(), up.c(), betas, y.c()), situ_forward(cuda(), gate.g(), up.g(), betas, y.g());
            situ_backward(cpu(), dy.c(), gate.c(), up.c(), betas, dgate.c(), dup.c());
            situ_backward(cuda(), dy.g(), gate.g(), up.g(), betas, dgate.g(), dup.g());
            check_same("y", y), check_same("dgate", dgate), check_same("dup", dup);
        }
    });
}

BOOST_AUTO_TEST_CASE(sigmoids) {
    at_odd_sizes([](Index rows, Index width) {
        Both x = Both::random(rows, width, 1), dy = Both::random(rows, width, 2), o = Both::random(rows, width, 3);
        Both y(rows, width), dx(rows, width), gated(rows, width), d_o(rows, width), dlogits(rows, width);
        sigmoid_forward(cpu(), x.c(), y.c()), sigmoid_forward(cuda(), x.g(), y.g());
        sigmoid_backward(cpu(), dy.c(), y.c(), dx.c()), sigmoid_backward(cuda(), dy.g(), y.g(), dx.g());
        sigmoid_gate_forward(cpu(), o.c(), x.c(), gated.c()), sigmoid_gate_forward(cuda(), o.g(), x.g(), gated.g());
        sigmoid_gate_backward(cpu(), dy.c(), o.c(), x.c(), d_o.c(), dlogits.c());
        sigmoid_gate_backward(cuda(), dy.g(), o.g(), x.g(), d_o.g(), dlogits.g());
        check_same("y", y), check_same("dx", dx), check_same("gated", gated), check_same("do", d_o),
            check_same("dlogits", dlogits);
    });
}

BOOST_AUTO_TEST_CASE(gated_norm) {
    at_odd_sizes([](Index rows, Index width) {
        for (const bool gated : {true, false}) {
            const Index heads = 2, cols = heads * width;
            Both x = Both::random(rows, cols, 1), dy = Both::random(rows, cols, 2),
                 gate = Both::random(rows, gated ? cols : 0, 3);
            Both w = vector_of(width, 4), dw = vector_of(width, 5), y(rows, cols), r(rows, heads), dx(rows, cols),
                 dgate(rows, gated ? cols : 0);
            gated_norm_forward(cpu(), heads, x.c(), gate.c(), w.cv(), 1e-5, y.c(), r.c());
            gated_norm_forward(cuda(), heads, x.g(), gate.g(), w.gv(), 1e-5, y.g(), r.g());
            gated_norm_backward(cpu(), heads, dy.c(), x.c(), gate.c(), w.cv(), r.c(), dx.c(), dgate.c(), dw.cv());
            gated_norm_backward(cuda(), heads, dy.g(), x.g(), gate.g(), w.gv(), r.g(), dx.g(), dgate.g(), dw.gv());
            check_same("y", y), check_same("r", r), check_same("dgate", dgate), check_same("dw", dw);
            check_same("dx", dx, 1e-4);
        }
    });
}

BOOST_AUTO_TEST_CASE(decay_gate) {
    at_odd_sizes([](Index rows, Index width) {
        for (const DecayGateForm form :
             {DecayGateForm{DecayGate::bounded, -5.0}, DecayGateForm{DecayGate::softplus, -5.0}}) {
            const Index heads = 2, cols = heads * width;
            Both z = Both::random(rows, cols, 1, 2.0), dg = Both::random(rows, cols, 2),
                 A_log = vector_of(heads, 3, 0.3), bias = vector_of(cols, 4);
            Both g(rows, cols), dz(rows, cols), dA_log = vector_of(heads, 5), dbias = vector_of(cols, 6);
            decay_gate_forward(cpu(), form, z.c(), A_log.cv(), bias.cv(), g.c());
            decay_gate_forward(cuda(), form, z.g(), A_log.gv(), bias.gv(), g.g());
            decay_gate_backward(cpu(), form, dg.c(), z.c(), A_log.cv(), bias.cv(), dz.c(), dA_log.cv(), dbias.cv());
            decay_gate_backward(cuda(), form, dg.g(), z.g(), A_log.gv(), bias.gv(), dz.g(), dA_log.gv(), dbias.gv());
            check_same("g", g), check_same("dz", dz), check_same("dA_log", dA_log, 1e-4), check_same("ddt_bias", dbias);
        }
    });
}

BOOST_AUTO_TEST_CASE(embedding) {
    at_odd_sizes([](Index rows, Index width) {
        const Index vocab = 11;
        Ids ids(1, rows, 0);
        for (Index n = 0; n < rows; ++n) ids.host(0, n) = static_cast<std::int32_t>(n * n % vocab);
        ids.send();
        Both table = Both::random(vocab, width, 1), dtable = Both::random(vocab, width, 2),
             dy = Both::random(rows, width, 3), y(rows, width);
        embedding_forward(cpu(), span_of(ids.c()), table.c(), y.c()),
            embedding_forward(cuda(), span_of(ids.g()), table.g(), y.g());
        embedding_backward(cpu(), span_of(ids.c()), dy.c(), dtable.c()),
            embedding_backward(cuda(), span_of(ids.g()), dy.g(), dtable.g());
        check_same("y", y), check_same("dtable", dtable);
    });
}

BOOST_AUTO_TEST_CASE(cross_entropies) {
    at_odd_sizes([](Index rows, Index width) {
        Ids targets(1, rows, 0);
        for (Index n = 0; n < rows; ++n)
            targets.host(0, n) = n % 4 == 3 ? ignored_target : static_cast<std::int32_t>(n % width);
        targets.send();
        Both logits = Both::random(rows, width, 1, 4.0), loss = empty_vector(rows), again = empty_vector(rows);
        cross_entropy(cpu(), logits.c(), span_of(targets.c()), loss.cv()),
            cross_entropy(cuda(), logits.g(), span_of(targets.g()), loss.gv());
        cross_entropy_backward(cpu(), logits.c(), span_of(targets.c()), 0.25, again.cv());
        cross_entropy_backward(cuda(), logits.g(), span_of(targets.g()), 0.25, again.gv());
        check_same("loss", loss), check_same("loss of backward", again), check_same("dlogits", logits);
    });
}

BOOST_AUTO_TEST_CASE(attn_res) {
    at_odd_sizes([](Index rows, Index width) {
        for (const Index count : {1, 2, 9}) {
            std::vector<Both> v, dv;
            Candidates<const double> c;
            Candidates<const float> g;
            Candidates<double> dc;
            Candidates<float> dgr;
            for (Index j = 0; j < count; ++j) {
                v.push_back(Both::random(rows, width, 10 + static_cast<std::uint64_t>(j)));
                dv.push_back(Both::random(rows, width, 30 + static_cast<std::uint64_t>(j)));
            }
            for (std::size_t j = 0; j < v.size(); ++j)
                c.add(v[j].c()), g.add(v[j].g()), dc.add(dv[j].c()), dgr.add(dv[j].g());
            Both gamma = vector_of(width, 1), pi = vector_of(width, 2, 0.3), h(rows, width), p(rows, count),
                 r(rows, count);
            Both dh = Both::random(rows, width, 3), dgamma = vector_of(width, 4), dpi = vector_of(width, 5);
            attn_res_forward(cpu(), c, gamma.cv(), pi.cv(), 1e-5, h.c(), p.c(), r.c());
            attn_res_forward(cuda(), g, gamma.gv(), pi.gv(), 1e-5, h.g(), p.g(), r.g());
            attn_res_backward(cpu(), dh.c(), c, gamma.cv(), pi.cv(), p.c(), r.c(), h.c(), dc, dgamma.cv(), dpi.cv());
            attn_res_backward(cuda(), dh.g(), g, gamma.gv(), pi.gv(), p.g(), r.g(), h.g(), dgr, dgamma.gv(), dpi.gv());
            check_same("h", h), check_same("p", p), check_same("r", r), check_same("dgamma", dgamma, 1e-4),
                check_same("dpi", dpi, 1e-4);
            for (Both& each : dv) check_same("dv", each, 1e-4);
        }
    });
}

BOOST_AUTO_TEST_SUITE_END()
