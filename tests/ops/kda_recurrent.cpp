#include <boost/test/unit_test.hpp>
#include <cmath>

#include "support/differences.hpp"
#include "support/golden.hpp"
#include "support/kda_case.hpp"

namespace kimik3::test {
namespace {

/// The recurrence as written, on one head of one sequence in double: rows of o, then the final state.
std::vector<double> by_hand(KdaCase<double>& c, Index s, Index h) {
    const Index K = c.sizes.key, V = c.sizes.value;
    std::vector<double> state(to_size(K * V)), o;
    for (Index e = 0; e < K * V; ++e) state[to_size(e)] = c.sizes.with_state ? c.initial(s, h * K * V + e) : 0.0;
    const auto S = [&](Index a, Index b) -> double& { return state[to_size(a * V + b)]; };
    for (Index n = c.seq.begin(s); n < c.seq.end(s); ++n) {
        std::vector<double> u(to_size(V));
        for (Index b = 0; b < V; ++b) {
            double predicted = 0;
            for (Index a = 0; a < K; ++a)
                predicted += (S(a, b) *= std::exp(c.g(n, h * K + a))) * c.unit_k(n, h * K + a);
            u[to_size(b)] = c.beta(n, h) * (c.v(n, h * V + b) - predicted);
        }
        for (Index b = 0; b < V; ++b) {
            double read = 0;
            for (Index a = 0; a < K; ++a)
                read += (S(a, b) += c.unit_k(n, h * K + a) * u[to_size(b)]) * c.unit_q(n, h * K + a);
            o.push_back(read / std::sqrt(static_cast<double>(K)));
        }
    }
    o.insert(o.end(), state.begin(), state.end());
    return o;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(kda_recurrent)

BOOST_AUTO_TEST_CASE(it_is_the_recurrence_as_written) {
    for (Index key : {1, 3, 16, 33}) {
        KdaCase<double> c({5, 0, 1, 70}, {.heads = 3, .key = key, .value = 7});
        c.forward(Context<Cpu>(2), KdaWay::recurrent, 16);
        for (Index s = 0; s < 4; ++s) {
            for (Index h = 0; h < 3; ++h) {
                std::vector<double> got;
                for (Index n = c.seq.begin(s); n < c.seq.end(s); ++n)
                    for (Index b = 0; b < 7; ++b) got.push_back(c.o(n, h * 7 + b));
                for (Index e = 0; e < key * 7; ++e) got.push_back(c.final(s, h * key * 7 + e));
                KIMIK3_CHECK_CLOSE(got, by_hand(c, s, h), 1e-13);
            }
        }
    }
}

BOOST_AUTO_TEST_CASE(b19_every_gradient_agrees_with_differences_in_every_head_and_sequence) {
    const Context<Cpu> ctx(2);
    for (DecayGate gate : {DecayGate::bounded, DecayGate::softplus}) {
        KdaCase<double> c({20, 20}, {.heads = 3, .key = 4, .value = 5, .gate = {gate, -5.0}});
        for (Index n = 0; n < c.rows; ++n)
            for (Index h = 0; h < 3; ++h)
                for (Index a = 0; a < 4; ++a) c.z(n, h * 4 + a) *= 0.1 + 0.58 * static_cast<double>(n / 20 * 3 + h);
        c.run(ctx, KdaWay::recurrent, 16);
        const auto loss = [&] {
            KdaCase<double> other = c;
            other.forward(ctx, KdaWay::recurrent, 16);
            return other.loss();
        };
        for (const auto& field : c.fields())
            KIMIK3_CHECK_CLOSE_NAMED(field.name, field.grad->values(), difference_gradient(field.in->span(), loss),
                                     1e-8);
    }
}

BOOST_AUTO_TEST_CASE(a_head_is_at_most_256_wide_and_shapes_are_checked) {
    KdaCase<double> wide({1}, {.heads = 1, .key = 257, .value = 1});
    BOOST_CHECK_THROW(wide.forward(Context<Cpu>(1), KdaWay::recurrent, 16), Error);
    KdaCase<double> c({2}, {});
    c.o = Matrix<double>(2, 3);
    BOOST_CHECK_THROW(kda_recurrent_forward(Context<Cpu>(1), c.seq, 2, {c.q, c.k, c.v, c.z, c.b}, c.o.view(), {}),
                      Error);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace kimik3::test
