#include "kimik3/ops/cpu/causal_attention.hpp"

#include <boost/test/unit_test.hpp>

#include "support/differences.hpp"
#include "support/golden.hpp"
#include "support/matrix.hpp"

namespace kimik3::test {
namespace {

/// Everything that attention reads and writes. The shared keys are the last columns of a wider matrix, as in the layer.
template <class T>
struct Attention {
    Sequences seq;
    MlaHeads heads;
    Matrix<T> q, kv, latent, d_o, o, lse, dq, dkv, dlatent;

    Attention(Sequences sequences, MlaHeads sizes, Index slack = 0, std::uint64_t seed = 1)
        : seq(std::move(sequences)),
          heads(sizes),
          q(Matrix<T>::random(seq.tokens() + slack, heads.count * heads.key(), seed)),
          kv(Matrix<T>::random(q.rows(), heads.count * (heads.nope + heads.value), seed + 1)),
          latent(Matrix<T>::random(q.rows(), heads.shared + 3, seed + 2)),
          d_o(Matrix<T>::random(q.rows(), heads.count * heads.value, seed + 3)),
          o(q.rows(), d_o.cols()),
          lse(q.rows(), heads.count),
          dq(q.rows(), q.cols()),
          dkv(q.rows(), kv.cols()),
          dlatent(q.rows(), latent.cols()) {}

    MatrixView<T> shared(Matrix<T>& m) { return m.view().middle_cols(3, heads.shared); }
    void forward(const Context<Cpu>& ctx) {
        causal_attention_forward(ctx, seq, heads, q, kv, shared(latent), o.view(), lse.view());
    }
    void backward(const Context<Cpu>& ctx) {
        causal_attention_backward(ctx, seq, heads, d_o, q, kv, shared(latent), o, lse, dq.view(), dkv.view(),
                                  shared(dlatent));
    }
    std::vector<T> results() {
        std::vector<T> all = o.values();
        for (Matrix<T>* m : {&lse, &dq, &dkv, &dlatent}) {
            const std::vector<T> more = m->values();
            all.insert(all.end(), more.begin(), more.end());
        }
        return all;
    }

    /// The formula, term by term.
    std::vector<double> expected() {
        std::vector<double> all;
        for (Index s = 0; s < seq.count(); ++s)
            for (Index i = seq.begin(s); i < seq.end(s); ++i)
                for (Index h = 0; h < heads.count; ++h) {
                    const auto row = expected_row(seq.begin(s), i, h);
                    all.insert(all.end(), row.begin(), row.end());
                }
        return all;
    }
    std::vector<double> expected_row(Index first, Index i, Index h) {
        std::vector<double> sum(to_size(heads.value));
        const Index wide = heads.nope + heads.value;
        double total = 0;
        for (Index j = first; j <= i; ++j) {
            double score = 0;
            for (Index k = 0; k < heads.key(); ++k) {
                const T key = k < heads.nope ? kv(j, h * wide + k) : latent(j, 3 + k - heads.nope);
                score += static_cast<double>(q(i, h * heads.key() + k)) * static_cast<double>(key);
            }
            const double weight = std::exp(score / std::sqrt(static_cast<double>(heads.key())));
            total += weight;
            for (Index c = 0; c < heads.value; ++c)
                sum[to_size(c)] += weight * static_cast<double>(kv(j, h * wide + heads.nope + c));
        }
        for (double& value : sum) value /= total;
        return sum;
    }
};

const MlaHeads sizes[] = {{1, 1, 1, 1},      {3, 3, 2, 3},    {2, 16, 8, 16},
                          {1, 128, 64, 128}, {2, 32, 16, 33}, {1, 5, 30, 130}};

}  // namespace

BOOST_AUTO_TEST_SUITE(causal_attention)

BOOST_AUTO_TEST_CASE(outputs_equal_the_formula_for_any_lengths_and_head_sizes) {
    for (const MlaHeads& heads : sizes) {
        Attention<double> exact(Sequences({0, 1, 1, 8, 72, 202}), heads);
        exact.forward(Context<Cpu>(2));
        KIMIK3_CHECK_CLOSE(exact.o.values(), exact.expected(), 1e-12);
        Attention<float> single(Sequences({0, 1, 1, 8, 72, 202}), heads);
        single.forward(Context<Cpu>(2));
        KIMIK3_CHECK_CLOSE(single.o.values(), single.expected(), 1e-5);
    }
}

BOOST_AUTO_TEST_CASE(gradients_equal_differences) {
    const Context<Cpu> ctx(2);
    for (const MlaHeads& heads : {MlaHeads{1, 1, 1, 1}, {3, 3, 2, 3}, {2, 9, 8, 17}}) {
        Attention<double> a(Sequences({0, 1, 1, 8, 13}), heads), moved(a.seq, heads);
        a.forward(ctx);
        a.backward(ctx);
        const auto loss = [&] {
            moved.forward(ctx);
            return probed(moved.o, a.d_o);
        };
        KIMIK3_CHECK_CLOSE(a.dq.values(), difference_gradient(moved.q.span(), loss), 1e-8);
        KIMIK3_CHECK_CLOSE(a.dkv.values(), difference_gradient(moved.kv.span(), loss), 1e-8);
        for (Index n = 0; n < a.seq.tokens(); ++n) {
            const std::span<double> row(moved.shared(moved.latent).row(n), to_size(heads.shared));
            const std::span<double> found(a.shared(a.dlatent).row(n), to_size(heads.shared));
            KIMIK3_CHECK_CLOSE(found, difference_gradient(row, loss), 1e-8);
        }
    }
}

BOOST_AUTO_TEST_CASE(gradients_across_tiles_equal_directional_differences) {
    const Context<Cpu> ctx(2);
    Attention<double> a(Sequences({0, 70, 201}), {2, 16, 8, 16}), moved(a.seq, a.heads);
    a.forward(ctx);
    a.backward(ctx);
    const auto check = [&](MatrixView<double> input, MatrixView<double> base, MatrixView<double> gradient) {
        auto direction = Matrix<double>::random(input.rows, input.cols, 9);
        double expected = 0, step = 0;
        for (Index n = 0; n < input.rows; ++n)
            for (Index c = 0; c < input.cols; ++c) expected += direction(n, c) * gradient(n, c);
        const auto found = difference_gradient({&step, 1}, [&] {
            for (Index n = 0; n < input.rows; ++n)
                for (Index c = 0; c < input.cols; ++c) input(n, c) = base(n, c) + step * direction(n, c);
            moved.forward(ctx);
            return probed(moved.o, a.d_o);
        });
        for (Index n = 0; n < input.rows; ++n) std::copy_n(base.row(n), input.cols, input.row(n));
        KIMIK3_CHECK_CLOSE((std::vector{expected}), found, 1e-8);
    };
    check(moved.q.view(), a.q.view(), a.dq.view());
    check(moved.kv.view(), a.kv.view(), a.dkv.view());
    check(moved.shared(moved.latent), a.shared(a.latent), a.shared(a.dlatent));
}

BOOST_AUTO_TEST_CASE(gradients_may_overwrite_what_they_belong_to) {
    const Context<Cpu> ctx(2);
    Attention<float> apart(Sequences({0, 70, 75}), {2, 5, 3, 7}), inplace(apart.seq, apart.heads);
    apart.forward(ctx);
    apart.backward(ctx);
    inplace.forward(ctx);
    causal_attention_backward(ctx, inplace.seq, inplace.heads, inplace.d_o, inplace.q, inplace.kv,
                              inplace.shared(inplace.latent), inplace.o, inplace.lse, inplace.q.view(),
                              inplace.kv.view(), inplace.shared(inplace.latent));
    BOOST_TEST(same_bits(inplace.q.values(), apart.dq.values()));
    BOOST_TEST(same_bits(inplace.kv.values(), apart.dkv.values()));
    for (Index n = 0; n < 75; ++n)
        BOOST_TEST(std::equal(apart.shared(apart.dlatent).row(n), apart.shared(apart.dlatent).row(n) + 3,
                              inplace.shared(inplace.latent).row(n)));
}

BOOST_AUTO_TEST_CASE(results_do_not_depend_on_threads_bit_for_bit) {
    for (const MlaHeads& heads : sizes) {
        std::vector<float> first;
        for (int threads : {1, 2, 3}) {
            Attention<float> a(Sequences({0, 70, 75}), heads);
            a.forward(Context<Cpu>(threads));
            a.backward(Context<Cpu>(threads));
            if (first.empty()) first = a.results();
            BOOST_TEST(same_bits(first, a.results()));
        }
    }
}

BOOST_AUTO_TEST_CASE(later_tokens_do_not_reach_earlier_ones_bit_for_bit) {
    const Context<Cpu> ctx(2);
    const MlaHeads heads{2, 16, 8, 16};
    Attention<float> whole(Sequences({0, 131}), heads);
    whole.forward(ctx);
    for (Index t : {1, 2, 7, 63, 64, 65, 130}) {
        Attention<float> changed(Sequences({0, 131}), heads);
        for (Matrix<float>* m : {&changed.q, &changed.kv, &changed.latent})
            std::fill_n(m->view().row(t), m->cols(), std::numeric_limits<float>::quiet_NaN());
        changed.forward(ctx);
        BOOST_TEST(same_bits(changed.o.values(0, t), whole.o.values(0, t)));
        BOOST_TEST(std::isnan(changed.o(t, 0)));
        Attention<float> shorter(Sequences({0, t}), heads, 131 - t);
        shorter.forward(ctx);
        BOOST_TEST(same_bits(shorter.o.values(0, t), whole.o.values(0, t)));
    }
}

BOOST_AUTO_TEST_CASE(b12_sequences_do_not_reach_one_another_bit_for_bit) {
    const Context<Cpu> ctx(2);
    const MlaHeads heads{2, 16, 8, 16};
    Attention<float> clean(Sequences({0, 3, 70, 90}), heads), sick(Sequences({0, 3, 70, 90}), heads);
    for (Matrix<float>* m : {&sick.q, &sick.kv, &sick.latent}) {
        for (Index n = 3; n < 70; ++n)
            std::fill_n(m->view().row(n), m->cols(), std::numeric_limits<float>::quiet_NaN());
    }
    for (Attention<float>* a : {&clean, &sick}) {
        a->forward(ctx);
        a->backward(ctx);
    }
    for (auto member :
         {&Attention<float>::o, &Attention<float>::dq, &Attention<float>::dkv, &Attention<float>::dlatent}) {
        BOOST_TEST(same_bits((clean.*member).values(0, 3), (sick.*member).values(0, 3)));
        BOOST_TEST(same_bits((clean.*member).values(70, 90), (sick.*member).values(70, 90)));
    }
}

BOOST_AUTO_TEST_CASE(b14_rows_after_the_last_sequence_become_zero) {
    const Context<Cpu> ctx(2);
    Attention<float> a(Sequences({0, 7, 7, 32}), {2, 5, 3, 5}, 8);
    for (Matrix<float>* m : {&a.q, &a.kv, &a.latent, &a.d_o})
        for (Index n = 32; n < 40; ++n)
            std::fill_n(m->view().row(n), m->cols(), std::numeric_limits<float>::quiet_NaN());
    a.forward(ctx);
    a.backward(ctx);
    const std::vector<float> shared_tail(a.shared(a.dlatent).row(32), a.shared(a.dlatent).row(32) + 3);
    BOOST_TEST(shared_tail == std::vector<float>(3, 0.0f));
    for (Matrix<float>* m : {&a.o, &a.lse, &a.dq, &a.dkv}) {
        BOOST_TEST(m->values(32, 40) == std::vector<float>(to_size(8 * m->cols()), 0.0f));
        for (float value : m->values(0, 32)) BOOST_TEST(std::isfinite(value));
    }
}

BOOST_AUTO_TEST_CASE(scores_of_thousands_stay_finite) {
    Attention<float> a(Sequences({0, 100}), {1, 16, 8, 16});
    for (float& value : a.q.span()) value *= 3000.0f;
    a.forward(Context<Cpu>(1));
    a.backward(Context<Cpu>(1));
    KIMIK3_CHECK_CLOSE(a.o.values(0, 1), (std::vector<float>(a.kv.view().row(0) + 16, a.kv.view().row(0) + 32)), 1e-6);
    for (Matrix<float>* m : {&a.o, &a.dq, &a.dkv})
        for (float value : m->values()) BOOST_TEST(std::isfinite(value));
}

BOOST_AUTO_TEST_CASE(wrong_shapes_are_refused) {
    Attention<float> a(Sequences({0, 3}), {2, 5, 3, 5});
    a.heads.value = 4;
    BOOST_CHECK_THROW(a.forward(Context<Cpu>(1)), Error);
    a.heads.value = 5;
    a.seq = Sequences({0, 4});
    BOOST_CHECK_THROW(a.forward(Context<Cpu>(1)), Error);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace kimik3::test
