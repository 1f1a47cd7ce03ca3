#include <boost/test/unit_test.hpp>

#include "kimik3/config/presets.hpp"
#include "support/golden.hpp"
#include "support/moe_layer.hpp"

namespace kimik3::test {
namespace {

/// The name in the file and the part of that tensor which is one parameter: experts are stacked there.
std::span<const double> part_of(const std::vector<double>& values, const ParameterInfo& entry) {
    const Index begin = entry.experts == 0 ? 0 : std::stoll(entry.name.substr(8)) * entry.count;
    return std::span(values).subspan(to_size(begin), to_size(entry.count));
}
std::string stored_name(const ParameterInfo& entry) {
    return entry.experts == 0 ? entry.name : entry.name.substr(entry.name.find('.', 8) + 1, 2);
}

template <class T>
void fill(std::span<T> to, std::span<const double> from) {
    std::ranges::transform(from, to.begin(), [](double value) { return static_cast<T>(value); });
}

template <class T>
void check(const Golden& golden, double tolerance) {
    const auto& shape = golden.shape("latent_moe.in.x");
    MoeLayer<T> moe(presets::golden, shape[0] * shape[1]);
    fill(moe.x.span(), golden.values("latent_moe.in.x"));
    fill(moe.dy.span(), golden.values("latent_moe.probe.y"));
    for (const ParameterInfo& entry : moe.fields.entries) {
        const std::vector<double> values = golden.values("latent_moe.in." + stored_name(entry));
        fill(moe.fields.weight(entry), part_of(values, entry));
    }
    const Context<Cpu> ctx(2);
    moe.forward(ctx);
    const std::vector<std::int32_t> chosen(moe.saved.experts.data, moe.saved.experts.data + moe.saved.experts.size());
    BOOST_TEST(chosen == golden.ids("latent_moe.out.index"), boost::test_tools::per_element());
    KIMIK3_CHECK_CLOSE((std::span(moe.saved.weights.data, to_size(moe.saved.weights.size()))),
                       golden.values("latent_moe.out.weight"), tolerance);
    KIMIK3_CHECK_CLOSE(moe.y.values(), golden.values("latent_moe.out.y"), tolerance);

    moe.backward(ctx);
    KIMIK3_CHECK_CLOSE(moe.dx.values(), golden.values("latent_moe.grad.x"), tolerance);
    for (const ParameterInfo& entry : moe.fields.entries) {
        if (!entry.rule.trained) continue;
        const std::vector<double> values = golden.values("latent_moe.grad." + stored_name(entry));
        KIMIK3_CHECK_CLOSE_NAMED(entry.name, moe.fields.gradient(entry), part_of(values, entry), tolerance);
    }
}

}  // namespace

BOOST_AUTO_TEST_SUITE(golden_latent_moe)

BOOST_AUTO_TEST_CASE(choice_weights_output_and_every_gradient_agree) {
    const Golden golden("ops");
    check<double>(golden, 1e-9);
    check<float>(golden, 1e-4);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace kimik3::test
