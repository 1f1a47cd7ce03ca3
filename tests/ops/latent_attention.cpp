#include "kimik3/ops/cpu/latent_attention.hpp"

#include <boost/test/unit_test.hpp>

#include "support/golden.hpp"
#include "support/matrix.hpp"

namespace kimik3::test {
namespace {

template <class T>
struct Latent {
    MlaHeads heads;
    Index latent, slots, room;
    Matrix<T> cache;

    Latent(MlaHeads sizes, Index c, Index slot_count, Index max_len)
        : heads(sizes), latent(c), slots(slot_count), room(max_len),
          cache(Matrix<T>::random(slot_count, max_len * (c + sizes.shared), 1)) {}

    std::vector<T> attend(const Sequences& seq, Matrix<T>& q_lat, Matrix<T>& q, int threads = 2) {
        Matrix<T> o(q.rows(), heads.count * latent);
        latent_attention(Context<Cpu>(threads), seq, heads, q_lat, q, cache, o.view());
        return o.values();
    }

    /// The formula, for one token and head.
    std::vector<double> expected(Index slot, Index seen, const T* q_lat, const T* q_shared) {
        std::vector<double> sum(to_size(latent));
        double total = 0;
        for (Index j = 0; j < seen; ++j) {
            const T* row = cache.view().row(slot) + j * (latent + heads.shared);
            double score = 0;
            for (Index k = 0; k < latent; ++k) score += static_cast<double>(q_lat[k]) * static_cast<double>(row[k]);
            for (Index k = 0; k < heads.shared; ++k)
                score += static_cast<double>(q_shared[k]) * static_cast<double>(row[latent + k]);
            const double weight = std::exp(score * heads.scale());
            total += weight;
            for (Index k = 0; k < latent; ++k) sum[to_size(k)] += weight * static_cast<double>(row[k]);
        }
        for (double& value : sum) value /= total;
        return sum;
    }
    std::vector<double> expected(const Sequences& seq, Matrix<T>& q_lat, Matrix<T>& q) {
        std::vector<double> all;
        for (Index s = 0; s < seq.count(); ++s)
            for (Index n = seq.begin(s); n < seq.end(s); ++n)
                for (Index h = 0; h < heads.count; ++h) {
                    const auto row =
                        expected(seq.slot(s), seq.past(s) + n - seq.begin(s) + 1, q_lat.view().row(n) + h * latent,
                                 q.view().row(n) + h * heads.key() + heads.nope);
                    all.insert(all.end(), row.begin(), row.end());
                }
        return all;
    }
};

}  // namespace

BOOST_AUTO_TEST_SUITE(latent_attention_op)

BOOST_AUTO_TEST_CASE(outputs_equal_the_formula_for_any_lengths_and_head_sizes) {
    const Sequences seq({0, 1, 1, 6, 200, 201}, {4, 0, 2, 1, 3}, {700, 3, 0, 130, 0});
    for (const auto& [heads, c] : {std::pair{MlaHeads{1, 1, 1, 1}, Index{1}},
                                   {{3, 5, 3, 3}, 7},
                                   {{4, 32, 16, 32}, 64},
                                   {{5, 8, 64, 8}, 33},
                                   {{96, 3, 2, 3}, 4}}) {
        Latent<double> exact(heads, c, 5, 701);
        auto q_lat = Matrix<double>::random(201, heads.count * c, 2, 0.3),
             q = Matrix<double>::random(201, heads.count * heads.key(), 3);
        KIMIK3_CHECK_CLOSE(exact.attend(seq, q_lat, q), exact.expected(seq, q_lat, q), 1e-12);
        Latent<float> single(heads, c, 5, 701);
        auto q_lat1 = Matrix<float>::random(201, heads.count * c, 2, 0.3),
             q1 = Matrix<float>::random(201, heads.count * heads.key(), 3);
        KIMIK3_CHECK_CLOSE(single.attend(seq, q_lat1, q1), single.expected(seq, q_lat1, q1), 1e-5);
    }
}

BOOST_AUTO_TEST_CASE(results_do_not_depend_on_threads_bit_for_bit) {
    const Sequences seq({0, 1, 40}, {0, 1}, {700, 100});
    const MlaHeads heads{4, 8, 16, 8};
    Latent<float> a(heads, 24, 2, 701);
    auto q_lat = Matrix<float>::random(40, 96, 2), q = Matrix<float>::random(40, 96, 3);
    const auto first = a.attend(seq, q_lat, q, 1);
    for (int threads : {2, 3}) BOOST_TEST(same_bits(first, a.attend(seq, q_lat, q, threads)));
}

BOOST_AUTO_TEST_CASE(neither_later_tokens_nor_other_sequences_reach_a_token_bit_for_bit) {
    const MlaHeads heads{3, 8, 16, 8};
    const Index c = 24, width = c + 16;
    const Sequences seq({0, 40, 41}, {1, 0}, {30, 10});
    auto q_lat = Matrix<float>::random(41, 72, 2), q = Matrix<float>::random(41, 72, 3);
    Latent<float> clean(heads, c, 2, 80), sick(heads, c, 2, 80);
    const Index t = 17;
    const float nan = std::numeric_limits<float>::quiet_NaN();
    std::fill(sick.cache.view().row(1) + (30 + t) * width, sick.cache.view().row(1) + 80 * width, nan);
    const auto a = clean.attend(seq, q_lat, q), b = sick.attend(seq, q_lat, q);
    const auto rows = [&](const std::vector<float>& all, Index begin, Index end) {
        return std::vector<float>(all.begin() + begin * 72, all.begin() + end * 72);
    };
    BOOST_TEST(same_bits(rows(a, 0, t), rows(b, 0, t)));
    BOOST_TEST(std::isnan(rows(b, t, t + 1)[0]));
    BOOST_TEST(same_bits(rows(a, 40, 41), rows(b, 40, 41)));
}

BOOST_AUTO_TEST_CASE(b14_rows_after_the_last_sequence_become_zero) {
    Latent<float> a({2, 3, 2, 3}, 4, 1, 9);
    auto q_lat = Matrix<float>::random(5, 8, 2), q = Matrix<float>::random(5, 10, 3);
    const auto o = a.attend(Sequences({0, 3}), q_lat, q);
    BOOST_TEST(std::vector<float>(o.begin() + 24, o.end()) == std::vector<float>(16, 0.0f));
    BOOST_TEST(a.attend(Sequences({0, 0}), q_lat, q) == std::vector<float>(40, 0.0f));
}

BOOST_AUTO_TEST_CASE(new_rows_are_appended_where_their_sequence_stands) {
    auto latent = Matrix<float>::random(4, 3, 1), shared = Matrix<float>::random(4, 2, 2);
    Matrix<float> cache(3, 4 * 5);
    cache.fill(-1.0f);
    latent_append(Context<Cpu>(2), Sequences({0, 1, 1, 3}, {2, 1, 0}, {3, 0, 1}), latent, shared, cache.view());
    const auto is_row = [&](Index slot, Index position, Index n) {
        const float* row = cache.view().row(slot) + position * 5;
        return std::equal(row, row + 3, latent.view().row(n)) && std::equal(row + 3, row + 5, shared.view().row(n));
    };
    BOOST_TEST((is_row(2, 3, 0) && is_row(0, 1, 1) && is_row(0, 2, 2)));
    BOOST_TEST(std::count(cache.data(), cache.data() + 60, -1.0f) == 45);
}

BOOST_AUTO_TEST_CASE(b66_no_row_is_written_or_read_past_the_end_of_the_cache) {
    Latent<float> a({1, 2, 1, 2}, 2, 2, 16);
    auto latent = Matrix<float>::random(17, 2, 1), shared = Matrix<float>::random(17, 1, 2),
         q = Matrix<float>::random(17, 3, 3);
    Matrix<float> o(17, 2);
    const Context<Cpu> ctx(1);
    const auto refused = [&](Sequences seq, const std::string& sentence) {
        const auto says_so = [&](const Error& error) { return error.what() == sentence; };
        BOOST_CHECK_EXCEPTION(latent_append(ctx, seq, latent, shared, a.cache.view()), Error, says_so);
        BOOST_CHECK_EXCEPTION(latent_attention(ctx, seq, a.heads, latent, q, a.cache, o.view()), Error, says_so);
    };
    refused(Sequences({0, 17}), "a sequence holds at most 16 tokens, sequence 0 has 0 and asks for 17 more");
    refused(Sequences({0, 1, 2}, {}, {15, 16}),
            "a sequence holds at most 16 tokens, sequence 1 has 16 and asks for 1 more");
    refused(Sequences({0, 1}, {}, {-1}), "a sequence holds at most 16 tokens, sequence 0 has -1 and asks for 1 more");
    refused(Sequences({0, 1}, {2}), "slots lie in [0, 2), sequence 0 asks for 2");
    refused(Sequences({0, 1}, {-1}), "slots lie in [0, 2), sequence 0 asks for -1");
    latent_append(ctx, Sequences({0, 16}), latent, shared, a.cache.view());
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace kimik3::test
