#include <boost/test/unit_test.hpp>

#include "kimik3/ops/cpu/short_conv.hpp"
#include "support/golden.hpp"
#include "support/matrix.hpp"

namespace kimik3::test {
namespace {

template <class T>
void check(const Golden& golden, const std::string& name, double tolerance) {
    // The weight is stored once for all cases that share it.
    const std::string weight = golden.has(name + ".in.weight") ? name : "short_conv.t11";
    const std::vector<Index>&x = golden.shape(name + ".in.x"), &taps = golden.shape(weight + ".in.weight");
    const Index batch = x[0], length = x[1], channels = x[2], window = (taps[2] - 1) * channels;
    const auto matrix = [&](const std::string& tensor, Index rows, Index cols) {
        return Matrix<T>::of(rows, cols, golden.values(tensor));
    };
    Matrix<T> u = matrix(name + ".in.x", batch * length, channels),
              w = matrix(weight + ".in.weight", channels, taps[2]);
    Matrix<T> initial = matrix(name + ".in.initial_state", batch, window);
    Matrix<T> dy = matrix(name + ".probe.y", batch * length, channels),
              dfinal = matrix(name + ".probe.state", batch, window);
    Matrix<T> y(batch * length, channels), du(batch * length, channels), dw(channels, taps[2]), final(batch, window),
        dinitial(batch, window);
    dw.fill(T(0));

    const Context<Cpu> ctx(2);
    std::vector<Index> offsets;
    for (Index s = 0; s <= batch; ++s) offsets.push_back(s * length);
    const Sequences seq(offsets, {}, std::vector<Index>(to_size(batch), taps[2]));
    short_conv_forward(ctx, seq, u, w, initial, y.view(), final.view());
    short_conv_backward(ctx, seq, dy, u, w, initial, dfinal, du.view(), dw.view(), dinitial.view());
    KIMIK3_CHECK_CLOSE_NAMED(name, y.values(), golden.values(name + ".out.y"), tolerance);
    KIMIK3_CHECK_CLOSE_NAMED(name, final.values(), golden.values(name + ".out.state"), tolerance);
    KIMIK3_CHECK_CLOSE_NAMED(name, du.values(), golden.values(name + ".grad.x"), tolerance);
    KIMIK3_CHECK_CLOSE_NAMED(name, dinitial.values(), golden.values(name + ".grad.initial_state"), tolerance);
    if (golden.has(name + ".grad.weight"))
        KIMIK3_CHECK_CLOSE_NAMED(name, dw.values(), golden.values(name + ".grad.weight"), tolerance);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(golden_short_conv)

BOOST_AUTO_TEST_CASE(outputs_windows_and_every_gradient_agree) {
    const Golden golden("ops");
    int seen = 0;
    for (const std::string& name : golden.names("short_conv.")) {
        if (!name.ends_with(".in.x")) continue;
        check<double>(golden, name.substr(0, name.size() - 5), 1e-9);
        check<float>(golden, name.substr(0, name.size() - 5), 1e-4);
        ++seen;
    }
    BOOST_TEST(seen > 0);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace kimik3::test
