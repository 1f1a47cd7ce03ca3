#include <boost/test/unit_test.hpp>

#include "kimik3/config/presets.hpp"
#include "support/golden.hpp"
#include "support/kda_layer.hpp"

namespace kimik3::test {
namespace {

template <class T>
void check(KdaImplementation implementation, int chunk, double tolerance) {
    const Golden golden("ops");
    const std::vector<Index>& shape = golden.shape("kda_layer.in.x");
    ModelConfig config = presets::golden;
    config.kda_implementation = implementation;
    config.kda_chunk_size = chunk;
    with_kda_layer<T>(config, Sequences::uniform(shape[0], shape[1]), [&](auto& layer) {
        layer.x = Matrix<T>::of(shape[0] * shape[1], shape[2], golden.values("kda_layer.in.x"));
        layer.dy = Matrix<T>::of(shape[0] * shape[1], shape[2], golden.values("kda_layer.probe.y"));
        for (const ParameterInfo& entry : layer.fields.entries) {
            BOOST_TEST(golden.shape("kda_layer.in." + entry.name) == entry.shape, boost::test_tools::per_element());
            const std::vector<double> values = golden.values("kda_layer.in." + entry.name);
            std::ranges::transform(values, layer.fields.weight(entry).begin(),
                                   [](double value) { return static_cast<T>(value); });
        }
        layer.run(Context<Cpu>(2));
        KIMIK3_CHECK_CLOSE(layer.y.values(), golden.values("kda_layer.out.y"), tolerance);
        KIMIK3_CHECK_CLOSE(layer.dx.values(), golden.values("kda_layer.grad.x"), tolerance);
        for (const ParameterInfo& entry : layer.fields.entries)
            KIMIK3_CHECK_CLOSE_NAMED(entry.name, layer.fields.gradient(entry),
                                     golden.values("kda_layer.grad." + entry.name), tolerance);
    });
}

}  // namespace

BOOST_AUTO_TEST_SUITE(golden_kda_layer)

BOOST_AUTO_TEST_CASE(the_chunkwise_layer_agrees_in_output_and_every_gradient) {
    check<double>(KdaImplementation::chunkwise, 16, 1e-9);
    check<float>(KdaImplementation::chunkwise, 16, 1e-4);
}

BOOST_AUTO_TEST_CASE(the_fused_layer_agrees_in_output_and_every_gradient) {
    check<double>(KdaImplementation::fused, 32, 1e-9);
    check<float>(KdaImplementation::fused, 64, 1e-4);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace kimik3::test
