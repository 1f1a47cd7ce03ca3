#include <boost/test/unit_test.hpp>

#include "kimik3/config/presets.hpp"
#include "support/golden.hpp"
#include "support/mla_layer.hpp"

namespace kimik3::test {
namespace {

template <class T>
void fill(std::span<T> to, const std::vector<double>& from) {
    BOOST_REQUIRE_EQUAL(to.size(), from.size());
    std::ranges::transform(from, to.begin(), [](double value) { return static_cast<T>(value); });
}

template <class T>
void check(const Golden& golden, double tolerance) {
    const auto& shape = golden.shape("mla_layer.in.x");
    MlaTest<T> mla(presets::golden, Sequences::uniform(shape[0], shape[1]));
    fill(mla.x.span(), golden.values("mla_layer.in.x"));
    fill(mla.dy.span(), golden.values("mla_layer.probe.y"));
    for (const ParameterInfo& entry : mla.fields.entries)
        fill(mla.fields.weight(entry), golden.values("mla_layer.in." + entry.name));

    const Context<Cpu> ctx(2);
    mla.run(ctx, true);
    KIMIK3_CHECK_CLOSE(mla.y.values(), golden.values("mla_layer.out.y"), tolerance);
    KIMIK3_CHECK_CLOSE(mla.dx.values(), golden.values("mla_layer.grad.x"), tolerance);
    for (const ParameterInfo& entry : mla.fields.entries) {
        KIMIK3_CHECK_CLOSE_NAMED(entry.name, mla.fields.gradient(entry), golden.values("mla_layer.grad." + entry.name),
                                 tolerance);
    }
    KIMIK3_CHECK_CLOSE(MlaDecoder<T>(mla, shape[0], shape[1]).step(ctx, mla.seq, mla.x),
                       golden.values("mla_layer.out.y"), tolerance);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(golden_mla)

BOOST_AUTO_TEST_CASE(output_every_gradient_and_the_absorbed_form_agree) {
    const Golden golden("ops");
    check<double>(golden, 1e-9);
    check<float>(golden, 1e-4);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace kimik3::test
