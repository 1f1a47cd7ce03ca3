#pragma once
// The router on scores that a test chooses.

#include <cmath>
#include <vector>

#include "kimik3/ops/cpu/quantile_balance.hpp"
#include "kimik3/ops/cpu/router.hpp"
#include "support/matrix.hpp"

namespace kimik3::test {

/// What router_forward makes of scores [N, E]: token n is the n-th unit vector, column n of the weights its logits.
template <class T>
struct Routed {
    Matrix<T> x, w, bias, scores, weights, cutoff;
    Matrix<std::int32_t> experts;
    RouterRule rule;

    Routed(const std::vector<std::vector<double>>& wanted, const std::vector<double>& b, Index chosen,
           RouterRule r = {true, 1.0})
        : Routed(static_cast<Index>(wanted.size()), b, chosen, r) {
        for (Index n = 0; n < x.rows(); ++n) {
            for (Index e = 0; e < w.rows(); ++e) {
                const double s = wanted[to_size(n)][to_size(e)];
                w(e, n) = static_cast<T>(std::log(s / (1.0 - s)));
            }
        }
        forward();
    }
    Routed(Index tokens, const std::vector<double>& b, Index chosen, RouterRule r)
        : x(tokens, tokens),
          w(static_cast<Index>(b.size()), tokens),
          bias(Matrix<T>::of(1, w.rows(), b)),
          scores(tokens, w.rows()),
          weights(tokens, chosen),
          cutoff(1, tokens),
          experts(tokens, chosen),
          rule(r) {
        x.fill(T(0));
        for (Index n = 0; n < tokens; ++n) x(n, n) = T(1);
    }
    void forward(int threads = 2) {
        router_forward(Context<Cpu>(threads), x, w, bias.vector(), rule, scores.view(), experts.view(), weights.view(),
                       cutoff.vector());
    }
    void count(const Balance& balance, VectorView<const std::uint8_t> counted = {}, int threads = 2) {
        balance_count<T>(Context<Cpu>(threads), scores, cutoff.vector(), experts, bias.vector(), counted, balance);
    }
};

/// A Balance with its memory.
struct OwnBalance {
    Matrix<std::int64_t> histogram, load;
    Balance balance;

    explicit OwnBalance(Index experts)
        : histogram(experts, Balance::bins), load(1, experts), balance{histogram, load.vector()} {
        histogram.fill(0);
        load.fill(0);
    }
};

}  // namespace kimik3::test
