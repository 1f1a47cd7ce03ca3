// The operations of a decoding step on the GPU against those that they stand for, on the CPU in float64.
#include <boost/test/unit_test.hpp>

#include <array>
#include <numeric>

#include "conformance/device.hpp"
#include "io/files.hpp"
#include "kimik3/ops/cpu.hpp"
#include "kimik3/ops/cuda/expert_few_rows.cuh"
#include "kimik3/ops/cuda/step_kda.cuh"
#include "kimik3/ops/cuda/step_latent.cuh"
#include "kimik3/ops/cuda/step_products.cuh"

using namespace kimik3;
using namespace kimik3::test;

namespace {

template <class M>
using NumberOf = std::remove_pointer_t<decltype(std::declval<M>().g().data)>;

template <class Change>
void for_each_of(Both& m, Change change) {
    for (Index r = 0; r < m.host.rows(); ++r)
        for (Index c = 0; c < m.host.cols(); ++c) m.host(r, c) = change(m.host(r, c));
}

/// y = norm(mix of count), summed experts, or plain rows, into products of every kind.
template <class Pairs>
void check_products(Index tokens, Index width, Index out, Index second, Index count, double tolerance) {
    using T = NumberOf<Pairs>;
    const Index chosen = 2, gap = tokens % 2 == 0 ? 3 : 8;  // rows aligned to 16 bytes, or not
    std::vector<Pairs> v;
    for (std::uint64_t j = 0; j < to_size(count); ++j) v.push_back(Pairs::random(tokens, width, 30 + j, 1.0, gap));
    Pairs parts = Pairs::random(tokens * chosen, width, 20, 1.0, gap),
          rows = Pairs::random(tokens, width, 21, 1.0, gap);
    const double even = 1.0 / std::sqrt(static_cast<double>(width));  // scores near 1, so that all are mixed
    Both gamma = vector_of(width, 1), pi = vector_of(width, 2, even), norm = vector_of(width, 3),
         share = Both::random(tokens, chosen, 4, 1.0, 0), router = Both::random(out, width, 5, 0.2, 0);
    Pairs w = Pairs::random(out, width, 6, 0.2, 0), up = Pairs::random(out, width, 7, 0.2, 0),
          w2 = Pairs::random(out, second, 8, 0.2, 0), x2 = Pairs::random(tokens, second, 9, 1.0, gap),
          residual = Pairs::random(tokens, out, 11);
    const SituBetas betas{4.0, 25.0};
    for (const int kind : {0, 1, 2}) {
        BOOST_TEST_CONTEXT("tokens " << tokens << " width " << width << " out " << out << " candidates " << count
                                    << " input " << kind) {
            Pairs h(tokens, width), x(tokens, width), plain(tokens, out), gate(tokens, out), upper(tokens, out),
                situ(tokens, out);
            Both scores(tokens, out), p(tokens, count), r(tokens, count), norm_r = empty_vector(tokens);
            Pairs normed(tokens, width);
            StepInput<T> in{.mix_eps = 1e-5, .eps = 1e-5, .normed = normed.g()};
            if (kind == 0) {
                Candidates<const double> all;
                for (Pairs& each : v) all.add(each.c()), in.candidates.add(each.g());
                attn_res_forward(cpu(), all, gamma.cv(), pi.cv(), 1e-5, h.c(), p.c(), r.c());
                rms_norm_forward(cpu(), h.c(), norm.cv(), 1e-5, x.c(), norm_r.cv());
                in.gamma = gamma.gv(), in.pi = pi.gv(), in.norm = norm.gv();
            } else if (kind == 1) {
                for (Index n = 0; n < tokens; ++n)
                    for (Index c = 0; c < width; ++c)
                        h.host(n, c) =
                            share.host(n, 0) * parts.host(2 * n, c) + share.host(n, 1) * parts.host(2 * n + 1, c);
                rms_norm_forward(cpu(), h.c(), norm.cv(), 1e-5, x.c(), norm_r.cv());
                in.parts = parts.g(), in.weights = share.g(), in.norm = norm.gv();
            } else {
                copy(cpu(), rows.c(), x.c());
                in = StepInput<T>::plain(rows.g());
            }
            matmul_nt(cpu(), x.c(), w.c(), gate.c(), Add::no);
            matmul_nt(cpu(), x.c(), up.c(), upper.c(), Add::no);
            situ_forward(cpu(), gate.c(), upper.c(), betas, situ.c());
            copy(cpu(), residual.c(), plain.c());
            add_to(cpu(), gate.c(), plain.c());
            matmul_nt(cpu(), x2.c(), w2.c(), plain.c(), Add::yes);
            matmul_nt(cpu(), x.c(), router.c(), scores.c(), Add::no);
            for_each_of(scores, [](double s) { return sigmoid(s); });
            StepProduct<T> first = StepProduct<T>::plain(w.g(), plain.g(), residual.g());
            first.second = x2.g(), first.w2 = w2.g();
            step_products(cuda(), in,
                          {first, StepProduct<T>{}, StepProduct<T>::situ(w.g(), up.g(), situ.g()),
                           StepProduct<T>::sigmoid(router.g(), scores.g()), StepProduct<T>::plain(w.g(), gate.g())},
                          betas);
            check_same("plain", plain, tolerance), check_same("situ", situ, tolerance);
            check_same("gate", gate, tolerance), check_same("scores", scores, 2 * tolerance);
            if (kind != 2) {
                copy(cpu(), x.c(), normed.c());
                check_same("normed", normed, tolerance);
            }
        }
    }
}

/// One product with more tiles than there are blocks, which take several in turn: of plain rows with a residual, of
/// SiTU, or of a mix of eight candidates.
template <class Pairs>
void check_many_rows(Index tokens, Index width, Index out, double tolerance) {
    using T = NumberOf<Pairs>;
    const Index count = 8;
    const bool mixed = StepInput<T>::fits(width);
    std::vector<Pairs> v;
    for (std::uint64_t j = 0; j < to_size(count); ++j) v.push_back(Pairs::random(tokens, width, 30 + j, 1.0, 8));
    Both gamma = vector_of(width, 1), pi = vector_of(width, 2, 1.0 / std::sqrt(static_cast<double>(width))),
         norm = vector_of(width, 3);
    Pairs w = Pairs::random(out, width, 6, 0.05, 0), up = Pairs::random(out, width, 7, 0.05, 0),
          residual = Pairs::random(tokens, out, 11), plain(tokens, out), situ(tokens, out), head(tokens, out);
    const SituBetas betas{4.0, 25.0};
    Pairs gate(tokens, out), upper(tokens, out);
    matmul_nt(cpu(), v[0].c(), w.c(), gate.c(), Add::no);
    matmul_nt(cpu(), v[0].c(), up.c(), upper.c(), Add::no);
    situ_forward(cpu(), gate.c(), upper.c(), betas, situ.c());
    copy(cpu(), residual.c(), plain.c());
    add_to(cpu(), gate.c(), plain.c());
    const auto rows = StepInput<T>::plain(v[0].g());
    step_products(cuda(), rows, {StepProduct<T>::plain(w.g(), plain.g(), residual.g())});
    step_products(cuda(), rows, {StepProduct<T>::situ(w.g(), up.g(), situ.g())}, betas);
    BOOST_TEST_CONTEXT("tokens " << tokens << " width " << width << " out " << out) {
        check_same("plain", plain, tolerance), check_same("situ", situ, tolerance);
        if (!mixed) return;
        Pairs h(tokens, width), x(tokens, width), normed(tokens, width, 8);
        Both p(tokens, count), r(tokens, count), norm_r = empty_vector(tokens);
        StepInput<T> in{.gamma = gamma.gv(), .pi = pi.gv(), .norm = norm.gv(), .mix_eps = 1e-5, .eps = 1e-5,
                        .normed = normed.g()};
        Candidates<const double> all;
        for (Pairs& each : v) all.add(each.c()), in.candidates.add(each.g());
        attn_res_forward(cpu(), all, gamma.cv(), pi.cv(), 1e-5, h.c(), p.c(), r.c());
        rms_norm_forward(cpu(), h.c(), norm.cv(), 1e-5, x.c(), norm_r.cv());
        matmul_nt(cpu(), x.c(), w.c(), head.c(), Add::no);
        step_products(cuda(), in, {StepProduct<T>::plain(w.g(), head.g())});
        copy(cpu(), x.c(), normed.c());
        check_same("head", head, tolerance), check_same("normed", normed, tolerance);
    }
}

/// What a step does not take names the value and the rule.
void check_refused_products() {
    using T = float;
    Both v = Both::random(9, 64, 1, 1.0, 0), w = Both::random(20, 64, 2, 1.0, 0), gap = Both::random(20, 64, 3),
         y(9, 20), few(8, 20), normed(9, 64), gamma = vector_of(64, 4), short_norm = vector_of(60, 5);
    StepInput<T> in = StepInput<T>::norm_of(v.g(), gamma.gv(), 1e-5, normed.g());
    const auto text = [&](const StepInput<T>& from, StepProduct<T> product) {
        return refusal([&] { step_products(cuda(), from, {product}); });
    };
    const auto plain = StepProduct<T>::plain(w.g(), y.g());
    BOOST_CHECK_EQUAL(text(in, StepProduct<T>::plain(gap.g(), y.g())),
                      "step_products: w has rows of 64 one right below the other, got one every 67");
    BOOST_CHECK_EQUAL(text(in, StepProduct<T>::plain(w.g(), few.g())), "step_products: y must be [9, 20], got [8, 20]");
    BOOST_CHECK_EQUAL(text(in, StepProduct<T>::plain(w.g(), y.g(), few.g())),
                      "step_products: residual must be [9, 20], got [8, 20]");
    StepInput<T> unkept = in, other_norm = in;
    unkept.normed = {}, other_norm.norm = short_norm.gv();
    BOOST_CHECK_EQUAL(text(unkept, plain), "step_products: 9 rows need normed, where more than 2 are kept");
    BOOST_CHECK_EQUAL(text(other_norm, plain), "step_products: norm must have 64 elements, got 60");
    StepProduct<T> second = StepProduct<T>::plain(w.g(), y.g());
    second.second = few.g(), second.w2 = w.g();
    BOOST_CHECK_EQUAL(text(in, second), "step_products: second must be [9, 20], got [8, 20]");
    BOOST_CHECK_EQUAL(text(StepInput<T>{}, plain),
                      "step_products: the input is made of 1 to 32 candidates or parts, got 0");
    Both broad = Both::random(1, 1032, 6), matrix = Both::random(4, 1032, 7, 1.0, 0), out(1, 4);
    BOOST_CHECK_EQUAL(text(StepInput<T>::norm_of(broad.g(), {}, 1e-5, {}), StepProduct<T>::plain(matrix.g(), out.g())),
                      "step_products: no step mixes or sums rows of 1032");
}

/// One new token for sequences with and without a past, in slots that are not in order.
Sequences step_of(Index count, Index past) { return sequences_of(std::vector<Index>(to_size(count), 1), past); }

template <class Pairs>
void check_kda(Index count, Index heads, Index dim, Index rank, Index taps, bool gated, double tolerance) {
    using T = NumberOf<Pairs>;
    const Sequences seq = step_of(count, 5);
    const Index wide = heads * dim, window = (taps - 1) * wide, state = wide * dim;
    Pairs q = Pairs::random(count, wide, 1), k = Pairs::random(count, wide, 2), v = Pairs::random(count, wide, 3),
          low = Pairs::random(count, rank, 4), f_b = Pairs::random(wide, rank, 5, 0.2, 0),
          b = Pairs::random(count, heads, 6),
          gate = Pairs::random(count, gated ? wide : 0, 7);
    std::vector<Both> conv, windows;
    for (std::uint64_t i = 0; i < 3; ++i) {
        conv.push_back(Both::random(wide, taps, 30 + i));
        windows.push_back(Both::random(count, window, 40 + i));
    }
    Both A_log = vector_of(heads, 8, 0.3), bias = vector_of(wide, 9, 0.5), norm = vector_of(dim, 10),
         kept = Both::random(count, state, 11, 0.3), r(count, heads);
    Pairs q_out(count, wide), k_out(count, wide), v_out(count, wide), z(count, wide), o(count, wide), y(count, wide);
    const StepKda<T> in{heads,     -5.0,      1e-5,      q.g(),          k.g(),          v.g(),          conv[0].g(),
                        conv[1].g(), conv[2].g(), windows[0].g(), windows[1].g(), windows[2].g(), low.g(), f_b.g(),
                        b.g(),     A_log.gv(), bias.gv(), kept.g(),       gate.g(),       norm.gv()};
    StepKda<T> wrong = in;
    wrong.dt_bias = norm.gv();
    BOOST_CHECK_EQUAL(refusal([&] { step_kda(cuda(), seq, wrong, y.g()); }),
                      fmt::format("step_kda: dt_bias must have {} elements, got {}", wide, dim));
    wrong = in, wrong.q_conv = conv[0].g().middle_rows(0, dim);
    BOOST_CHECK_EQUAL(refusal([&] { step_kda(cuda(), seq, wrong, y.g()); }),
                      fmt::format("step_kda: q_conv must be [{}, {}], got [{}, {}]", wide, taps, dim, taps));
    step_kda(cuda(), seq, in, y.g());
    Pairs* inputs[] = {&q, &k, &v};
    Pairs* outputs[] = {&q_out, &k_out, &v_out};
    for (std::size_t i = 0; i < 3; ++i)
        short_conv_forward(cpu(), seq, inputs[i]->c(), conv[i].c(), windows[i].c(), outputs[i]->c(), windows[i].c());
    matmul_nt(cpu(), low.c(), f_b.c(), z.c(), Add::no);
    kda_fused_forward(cpu(), seq, KdaFusedForm{heads, 32, -5.0},
                      {q_out.c(), k_out.c(), v_out.c(), z.c(), b.c(), A_log.cv(), bias.cv(), kept.c()}, o.c(), kept.c(),
                      MatrixView<double>{});
    gated_norm_forward(cpu(), heads, o.c(), gate.c(), norm.cv(), 1e-5, y.c(), r.c());
    BOOST_TEST_CONTEXT("heads of " << dim << ", " << count << " sequences") {
        check_same("y", y, tolerance), check_same("state", kept);
        for (Both& each : windows) check_same("window", each, 1e-6);
    }
}

template <class Pairs>
void check_latent(Index count, const MlaHeads& heads, Index latent, Index past, bool gated, double tolerance) {
    using T = NumberOf<Pairs>;
    const Sequences seq = step_of(count, past);
    const Index rows = heads.nope + heads.value, width = latent + heads.shared, max_len = 400;
    Pairs q = Pairs::random(count, heads.count * heads.key(), 1), low = Pairs::random(count, width, 2),
          kv_b = Pairs::random(heads.count * rows, latent, 3, 0.2, 0),
          gate = Pairs::random(count, gated ? heads.count * heads.value : 0, 4),
          cache = Pairs::random(count, max_len * width, 5);
    Both norm = vector_of(latent, 6), norm_r = empty_vector(count);
    Pairs normed(count, latent), q_lat(count, heads.count * latent), o_lat(count, heads.count * latent),
        o(count, heads.count * heads.value), y(count, heads.count * heads.value);
    step_latent(cuda(), seq, heads, StepLatent<T>{q.g(), low.g(), norm.gv(), 1e-6, kv_b.g(), gate.g(), cache.g()},
                y.g());
    rms_norm_forward(cpu(), low.c().middle_cols(0, latent), norm.cv(), 1e-6, normed.c(), norm_r.cv());
    latent_append(cpu(), seq, normed.c(), low.c().middle_cols(latent, heads.shared), cache.c());
    for (Index h = 0; h < heads.count; ++h)
        matmul_nn(cpu(), q.c().middle_cols(h * heads.key(), heads.nope), kv_b.c().middle_rows(h * rows, heads.nope),
                  q_lat.c().middle_cols(h * latent, latent), Add::no);
    latent_attention(cpu(), seq, heads, q_lat.c(), q.c(), cache.c(), o_lat.c());
    for (Index h = 0; h < heads.count; ++h)
        matmul_nt(cpu(), o_lat.c().middle_cols(h * latent, latent),
                  kv_b.c().middle_rows(h * rows + heads.nope, heads.value),
                  o.c().middle_cols(h * heads.value, heads.value), Add::no);
    if (gated) sigmoid_gate_forward(cpu(), o.c(), gate.c(), y.c());
    else copy(cpu(), o.c(), y.c());
    BOOST_TEST_CONTEXT("past " << past << ", latents of " << latent) {
        check_same("y", y, tolerance), check_same("cache", cache, tolerance);
    }
}

template <class Pairs>
void check_experts(Index tokens, Index all, Index chosen, Index latent, Index inner, double tolerance) {
    using T = NumberOf<Pairs>;
    const SituBetas betas{4.0, 25.0};
    const RouterRule rule{true, 2.5};
    Pairs z = Pairs::random(tokens, latent, 1), w1 = Pairs::random(all * inner, latent, 2, 0.2, 0),
          w3 = Pairs::random(all * inner, latent, 3, 0.2, 0), w2 = Pairs::random(all * latent, inner, 4, 0.2, 0);
    Both scores = Both::random(tokens, all, 5), bias = vector_of(all, 6, 0.1), weights(tokens, chosen);
    for_each_of(scores, [](double s) { return static_cast<float>(sigmoid(s)); });
    scores.send();
    Ids experts(tokens, chosen);
    Pairs hidden(tokens * chosen, inner, 0), out(tokens * chosen, latent);
    step_experts(cuda(), StepExperts<T>{scores.g(), bias.gv(), rule, betas, z.g(), w1.g(), w3.g(), w2.g(), experts.g(),
                                        weights.g(), hidden.g(), out.g()});
    const auto refused = [&](MatrixView<const T> first, MatrixView<float> shares) {
        return refusal([&] {
            step_experts(cuda(), StepExperts<T>{scores.g(), bias.gv(), rule, betas, z.g(), first, w3.g(), w2.g(),
                                                experts.g(), shares, hidden.g(), out.g()});
        });
    };
    BOOST_CHECK_EQUAL(
        refused(w1.g().middle_rows(0, inner), weights.g()),
        fmt::format("step_experts: w1 must be [{}, {}], got [{}, {}]", all * inner, latent, inner, latent));
    BOOST_CHECK_EQUAL(refused(w1.g(), weights.g().middle_cols(0, 1)),
                      fmt::format("step_experts: weights must be [{}, {}], got [{}, 1]", tokens, chosen, tokens));
    std::vector<double> gate(to_size(inner)), up(to_size(inner));
    for (Index n = 0; n < tokens; ++n) {
        std::vector<Index> order(to_size(all));
        std::iota(order.begin(), order.end(), Index{0});
        std::ranges::stable_sort(order, [&](Index a, Index b) {
            return static_cast<float>(scores.host(n, a)) + static_cast<float>(bias.host(0, a)) >
                   static_cast<float>(scores.host(n, b)) + static_cast<float>(bias.host(0, b));
        });
        double sum = 0;
        for (Index j = 0; j < chosen; ++j) sum += scores.host(n, order[to_size(j)]);
        for (Index j = 0; j < chosen; ++j) {
            const Index e = order[to_size(j)], pair = n * chosen + j;
            experts.host(n, j) = static_cast<std::int32_t>(e);
            weights.host(n, j) = 2.5 * scores.host(n, e) / sum;
            const MatrixView<double> g(gate.data(), 1, inner), u(up.data(), 1, inner),
                h = hidden.c().middle_rows(pair, 1);
            matmul_nt(cpu(), z.c().middle_rows(n, 1), w1.c().middle_rows(e * inner, inner), g, Add::no);
            matmul_nt(cpu(), z.c().middle_rows(n, 1), w3.c().middle_rows(e * inner, inner), u, Add::no);
            situ_forward(cpu(), g, u, betas, h);
            matmul_nt(cpu(), h, w2.c().middle_rows(e * latent, latent), out.c().middle_rows(pair, 1), Add::no);
        }
    }
    BOOST_TEST_CONTEXT(tokens << " tokens, " << chosen << " of " << all << " experts") {
        check_equal("experts", experts), check_same("weights", weights, 1e-5);
        check_same("hidden", hidden, tolerance), check_same("out", out, tolerance);
    }
}

}  // namespace

BOOST_AUTO_TEST_SUITE(conformance_steps)

BOOST_AUTO_TEST_CASE(products) {
    for (const Index tokens : {1, 3, 8, 9, 70})
        for (const auto& [width, out, second, count] : {std::array<Index, 4>{48, 5, 20, 3},
                                                        {7, 17, 3, 2},
                                                        {640, 40, 64, 8},
                                                        {320, 33, 576, 5},
                                                        {24, 16, 40, 31}}) {
            check_products<Both>(tokens, width, out, second, count, 1e-5);
            check_products<Half>(tokens, width, out, second, count, 8e-3);
        }
}
BOOST_AUTO_TEST_CASE(products_of_many_rows) {
    for (const auto& [tokens, width, out] : {std::array<Index, 3>{1, 640, 4500},
                                             {8, 640, 4300},
                                             {40, 640, 4300},
                                             {1, 3072, 640},
                                             {8, 3072, 640},
                                             {40, 3072, 2200}}) {
        check_many_rows<Both>(tokens, width, out, 1e-5);
        check_many_rows<Half>(tokens, width, out, 8e-3);
    }
}
BOOST_AUTO_TEST_CASE(kimi_delta_attention) {
    for (const Index count : {1, 5})
        for (const auto& [dim, rank, taps] :
             {std::array<Index, 3>{16, 16, 4}, {32, 7, 1}, {64, 64, 2}, {128, 128, 4}, {128, 200, 3}}) {
            check_kda<Both>(count, 3, dim, rank, taps, rank != 64, 1e-5);
            check_kda<Half>(count, 3, dim, rank, taps, rank != 64, 6e-3);
        }
}
BOOST_AUTO_TEST_CASE(latent_attention_with_its_products) {
    for (const Index past : {0, 1, 63, 64, 300})
        for (const Index count : {1, 4}) {
            check_latent<Both>(count, {3, 16, 8, 16}, 16, past, true, 1e-5);
            check_latent<Both>(count, {2, 128, 64, 128}, 128, past, false, 1e-5);
            check_latent<Half>(count, {3, 16, 8, 24}, 24, past, true, 1e-2);
            check_latent<Half>(count, {5, 128, 64, 128}, 128, past, true, 1e-2);
        }
}
BOOST_AUTO_TEST_CASE(experts) {
    for (const Index tokens : {1, 2, 8, 9, 40}) {
        check_experts<Both>(tokens, 8, 2, 24, 20, 1e-5);
        check_experts<Both>(tokens, 64, 4, 40, 33, 1e-5);
        check_experts<Half>(tokens, 8, 2, 24, 20, 8e-3);
        check_experts<Half>(tokens, 64, 4, 320, 288, 8e-3);
    }
}
BOOST_AUTO_TEST_CASE(refused_products) { check_refused_products(); }

BOOST_AUTO_TEST_SUITE_END()
