#include <boost/test/unit_test.hpp>

#include "kimik3/ops/cpu/quantile_balance.hpp"
#include "kimik3/ops/cpu/rms_norm.hpp"
#include "kimik3/ops/cpu/router.hpp"
#include "kimik3/ops/cpu/situ.hpp"
#include "support/golden.hpp"
#include "support/matrix.hpp"

namespace kimik3::test {
namespace {

template <class T>
Matrix<T> read(const Golden& golden, const std::string& name) {
    const auto& shape = golden.shape(name);
    const Index cols = shape.back();
    Index rows = 1;
    for (std::size_t d = 0; d + 1 < shape.size(); ++d) rows *= shape[d];
    return Matrix<T>::of(rows, cols, golden.values(name));
}

template <class T>
void check_situ(const Golden& golden, double tolerance) {
    Matrix<T> gate = read<T>(golden, "situ.in.gate"), up = read<T>(golden, "situ.in.up"),
              dy = read<T>(golden, "situ.probe.y");
    Matrix<T> y(gate.rows(), gate.cols()), dgate(gate.rows(), gate.cols()), dup(gate.rows(), gate.cols());
    const Context<Cpu> ctx(2);
    situ_forward(ctx, gate, up, {4.0, 25.0}, y.view());
    situ_backward(ctx, dy, gate, up, {4.0, 25.0}, dgate.view(), dup.view());
    KIMIK3_CHECK_CLOSE(y.values(), golden.values("situ.out.y"), tolerance);
    KIMIK3_CHECK_CLOSE(dgate.values(), golden.values("situ.grad.gate"), tolerance);
    KIMIK3_CHECK_CLOSE(dup.values(), golden.values("situ.grad.up"), tolerance);
}

template <class T>
void check_rms_norm(const Golden& golden, double tolerance) {
    Matrix<T> x = read<T>(golden, "rms_norm.in.x"), w = read<T>(golden, "rms_norm.in.weight"),
              dy = read<T>(golden, "rms_norm.probe.y");
    Matrix<T> y(x.rows(), x.cols()), r(1, x.rows()), dx(x.rows(), x.cols()), dw(1, x.cols());
    dw.fill(T(0));
    const Context<Cpu> ctx(2);
    rms_norm_forward(ctx, x, w.vector(), 1e-5, y.view(), r.vector());
    rms_norm_backward(ctx, dy, x, w.vector(), r.vector(), dx.view(), dw.vector());
    KIMIK3_CHECK_CLOSE(y.values(), golden.values("rms_norm.out.y"), tolerance);
    KIMIK3_CHECK_CLOSE(dx.values(), golden.values("rms_norm.grad.x"), tolerance);
    KIMIK3_CHECK_CLOSE(dw.values(), golden.values("rms_norm.grad.weight"), tolerance);
}

template <class T>
void check_balance(const Golden& golden, double tolerance) {
    constexpr Index chosen = 2;
    Matrix<T> scores = read<T>(golden, "quantile_balance.in.scores"),
              bias = read<T>(golden, "quantile_balance.in.bias");
    const Index tokens = scores.rows(), experts = scores.cols();
    Matrix<std::int32_t> choice(tokens, chosen);
    Matrix<T> cutoff(1, tokens);
    for (Index n = 0; n < tokens; ++n)
        cutoff(0, n) = detail::choose_experts<T>(scores.view().row(n), bias.vector(), choice.view().row(n), chosen);
    Matrix<std::int64_t> histogram(experts, Balance::bins), load(1, experts);
    const Balance balance{histogram, load.vector()};
    const Context<Cpu> ctx(2);
    balance_clear(ctx, balance);
    balance_count<T>(ctx, scores, cutoff.vector(), choice, bias.vector(), {}, balance);
    balance_update(ctx, balance, chosen, bias.vector());
    KIMIK3_CHECK_CLOSE(bias.values(), golden.values("quantile_balance.out.bias"), tolerance);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(golden_feed_forward)

BOOST_AUTO_TEST_CASE(situ_agrees) {
    check_situ<double>(Golden("ops"), 1e-9);
    check_situ<float>(Golden("ops"), 1e-4);
}

BOOST_AUTO_TEST_CASE(rms_norm_agrees) {
    check_rms_norm<double>(Golden("ops"), 1e-9);
    check_rms_norm<float>(Golden("ops"), 1e-4);
}

BOOST_AUTO_TEST_CASE(quantile_balance_agrees) {
    check_balance<double>(Golden("ops"), 1e-9);
    check_balance<float>(Golden("ops"), 1e-4);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace kimik3::test
