// What the three forms of KDA have in common: they are one function, and it keeps its sequences apart.

#include <boost/test/unit_test.hpp>
#include <cmath>

#include "support/golden.hpp"
#include "support/kda_case.hpp"

namespace kimik3::test {
namespace {

struct Form {
    KdaWay way;
    Index chunk;
};
const Form chunked_forms[] = {
    {KdaWay::chunk, 16}, {KdaWay::chunk, 32}, {KdaWay::chunk, 64}, {KdaWay::fused, 32}, {KdaWay::fused, 64}};
const Form all_forms[] = {{KdaWay::recurrent, 16}, {KdaWay::chunk, 16}, {KdaWay::chunk, 64}, {KdaWay::fused, 32}};

template <class T>
void check_against_recurrence(const std::vector<Index>& lengths, const KdaSizes& sizes, double tolerance) {
    const Context<Cpu> ctx(2);
    KdaCase<T> expected(lengths, sizes), c = expected;
    expected.run(ctx, KdaWay::recurrent, 16);
    for (const Form& form : chunked_forms) {
        if (form.way == KdaWay::fused && sizes.gate.kind != DecayGate::bounded) continue;
        c.run(ctx, form.way, form.chunk);
        KIMIK3_CHECK_CLOSE(c.o.values(), expected.o.values(), tolerance);
        KIMIK3_CHECK_CLOSE(c.final.values(), expected.final.values(), tolerance);
        for (std::size_t f = 0; f < c.fields().size(); ++f)
            KIMIK3_CHECK_CLOSE_NAMED(
                c.fields()[f].name << " chunk " << form.chunk << " key " << sizes.key << " tokens " << lengths[0],
                c.fields()[f].grad->values(), expected.fields()[f].grad->values(), tolerance);
    }
}

/// All results of a run, one after another.
template <class T>
std::vector<T> results(KdaCase<T>& c) {
    std::vector<T> all = c.o.values();
    for (T value : c.final.values()) all.push_back(value);
    for (const auto& field : c.fields())
        for (T value : field.grad->values()) all.push_back(value);
    return all;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(kda_agreement)

BOOST_AUTO_TEST_CASE(b07_any_length_at_any_chunk_is_the_recurrence) {
    for (Index length : {0, 1, 2, 15, 16, 17, 31, 63, 64, 65, 127, 130, 500}) {
        const KdaSizes sizes{.heads = 1, .key = 16, .value = 16, .gate_scale = 3.0};
        check_against_recurrence<double>({length}, sizes, 1e-10);
        check_against_recurrence<float>({length}, sizes, 2e-4);
    }
}

BOOST_AUTO_TEST_CASE(both_gates_with_and_without_a_state_are_the_recurrence) {
    for (DecayGate gate : {DecayGate::bounded, DecayGate::softplus}) {
        for (bool with_state : {false, true}) {
            const KdaSizes sizes{
                .heads = 2, .key = 32, .value = 48, .with_state = with_state, .gate = {gate, -5.0}, .gate_scale = 4.0};
            check_against_recurrence<double>({70, 33}, sizes, 1e-10);
        }
    }
}

BOOST_AUTO_TEST_CASE(b06_any_head_size_between_guards_is_the_recurrence) {
    for (Index key : {1, 3, 5, 12, 60, 100}) {
        const KdaSizes sizes{.heads = 2, .key = key, .value = key + 3};
        check_against_recurrence<double>({37, 3}, sizes, 1e-10);
        check_against_recurrence<float>({37, 3}, sizes, 2e-4);
    }
}

BOOST_AUTO_TEST_CASE(decay_at_the_bound_is_the_recurrence) {
    KdaCase<float> expected({130}, {.heads = 1, .key = 16, .value = 8});
    for (float logit : {1e4f, -1e4f}) {  // g = -5 and g = 0 everywhere
        expected.z.fill(logit);
        KdaCase<float> c = expected;
        expected.run(Context<Cpu>(1), KdaWay::recurrent, 16);
        for (const Form& form : chunked_forms) {
            c.run(Context<Cpu>(1), form.way, form.chunk);
            KIMIK3_CHECK_CLOSE(results(c), results(expected), 2e-4);
        }
    }
}

BOOST_AUTO_TEST_CASE(b02_gradients_beside_one_huge_decay_are_those_of_the_recurrence) {
    for (Index step : {1, 2}) {  // all channels, every second
        KdaCase<double> expected({70}, {.heads = 1, .key = 16, .value = 8, .gate = {DecayGate::softplus, -5.0}});
        expected.A_log.fill(0);
        for (Index t : {0, 15, 16, 17, 32, 64})
            for (Index col = 0; col < 16; col += step) expected.z(t, col) = 100;
        KdaCase<double> c = expected;
        expected.run(Context<Cpu>(1), KdaWay::recurrent, 16);
        for (Index chunk : {16, 32, 64}) {
            c.run(Context<Cpu>(1), KdaWay::chunk, chunk);
            for (std::size_t f = 0; f < c.fields().size(); ++f)
                KIMIK3_CHECK_CLOSE_NAMED(c.fields()[f].name, c.fields()[f].grad->values(),
                                         expected.fields()[f].grad->values(), 1e-9);
        }
    }
}

BOOST_AUTO_TEST_CASE(b14_slack_rows_become_zero_and_an_empty_sequence_keeps_its_state) {
    const Context<Cpu> ctx(2);
    for (const Form& form : all_forms) {
        KdaCase<float> c({7, 0, 25}, {.slack = 8});
        BOOST_TEST(c.rows == 40);
        c.run(ctx, form.way, form.chunk);
        for (Matrix<float>* m : {&c.o, &c.dq, &c.dk, &c.dv, &c.dz, &c.db}) {
            for (float value : m->values(0, 32)) BOOST_TEST(std::isfinite(value));
            for (float value : m->values(32, 40)) BOOST_TEST(value == 0.0f);
        }
        for (float value : c.ddt_bias.values()) BOOST_TEST(std::isfinite(value));
        BOOST_TEST(same_bits(c.final.values(1, 2), c.initial.values(1, 2)));
        BOOST_TEST(same_bits(c.dinitial.values(1, 2), c.probe_final.values(1, 2)));
    }
}

BOOST_AUTO_TEST_CASE(b12_nan_in_one_initial_state_stays_in_its_sequence) {
    const Context<Cpu> ctx(2);
    for (const Form& form : all_forms) {
        KdaCase<float> clean({20, 33, 1}, {}), dirty = clean;
        for (Index e = 0; e < dirty.state_size(); ++e) dirty.initial(1, e) = std::numeric_limits<float>::quiet_NaN();
        clean.run(ctx, form.way, form.chunk);
        dirty.run(ctx, form.way, form.chunk);
        BOOST_TEST(std::isnan(dirty.o(20, 0)));
        for (auto [begin, end] : {std::pair<Index, Index>{0, 20}, {53, 54}}) {
            BOOST_TEST(same_bits(dirty.o.values(begin, end), clean.o.values(begin, end)));
            BOOST_TEST(same_bits(dirty.dz.values(begin, end), clean.dz.values(begin, end)));
        }
        BOOST_TEST(same_bits(dirty.final.values(2, 3), clean.final.values(2, 3)));
    }
}

BOOST_AUTO_TEST_CASE(b19_an_all_zero_query_and_key_has_finite_gradients) {
    for (const Form& form : all_forms) {
        KdaCase<float> c({20}, {});
        for (Index col = 0; col < c.wide; ++col) c.q(3, col) = c.k(3, col) = 0.0f;
        c.run(Context<Cpu>(1), form.way, form.chunk);
        for (float value : results(c)) BOOST_TEST(std::isfinite(value));
    }
}

BOOST_AUTO_TEST_CASE(later_tokens_and_longer_sequences_change_no_bit_of_earlier_outputs) {
    for (const Form& form : all_forms) {
        KdaCase<float> whole({100}, {.with_state = false});
        whole.forward(Context<Cpu>(1), form.way, form.chunk);
        for (Index cut : {1, 16, 37, 64, 99}) {
            KdaCase<float> changed = whole;
            for (Matrix<float>* m : {&changed.q, &changed.k, &changed.v, &changed.z, &changed.b})
                for (Index n = cut; n < 100; ++n)
                    for (Index col = 0; col < m->cols(); ++col) (*m)(n, col) = 2.5f;
            changed.forward(Context<Cpu>(1), form.way, form.chunk);
            BOOST_TEST(same_bits(changed.o.values(0, cut), whole.o.values(0, cut)));
            KdaCase<float> shorter({cut}, {.with_state = false});
            const auto copy = [&](Matrix<float>& to, Matrix<float>& from) {
                to = Matrix<float>::of(cut, from.cols(), from.values(0, cut));
            };
            copy(shorter.q, whole.q), copy(shorter.k, whole.k), copy(shorter.v, whole.v), copy(shorter.z, whole.z),
                copy(shorter.b, whole.b);
            shorter.dt_bias = Matrix<float>::of(1, whole.wide, whole.dt_bias.values());
            shorter.A_log = Matrix<float>::of(1, 2, whole.A_log.values());
            shorter.forward(Context<Cpu>(1), form.way, form.chunk);
            BOOST_TEST(same_bits(shorter.o.values(), whole.o.values(0, cut)));
        }
    }
}

BOOST_AUTO_TEST_CASE(threads_change_no_bit) {
    for (const Form& form : all_forms) {
        KdaCase<float> c({40, 0, 17, 70}, {.heads = 3});
        c.run(Context<Cpu>(1), form.way, form.chunk);
        const std::vector<float> alone = results(c);
        for (int threads : {2, 3}) {
            c.run(Context<Cpu>(threads), form.way, form.chunk);
            BOOST_TEST(same_bits(results(c), alone));
        }
    }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace kimik3::test
