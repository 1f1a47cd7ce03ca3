#include <boost/test/unit_test.hpp>

#include <algorithm>

#include "support/models.hpp"

using namespace kimik3;
using namespace kimik3::test;

namespace {

/// Greedy continuation of every golden prompt, token by token from the kept state, against the reference, which
/// computes the whole sequence anew for each token.
template <class Model>
void check_generation(double tolerance) {
    const Golden parameters("model"), golden("generate");
    Model model(Context<Cpu>(2));
    load_parameters(model, parameters, "param.");
    for (const std::string& name : golden.names("prompt")) {
        const std::string length = name.substr(6);
        auto tokens = golden.ids(name);
        const auto expected = golden.ids("greedy" + length);
        const auto logits = golden.values("logits" + length);
        typename Model::State state = model.new_state(1);
        Tokens fresh = tokens;
        std::vector<double> found;
        while (tokens.size() < expected.size()) {
            const auto last = model.step(state, fresh);
            found.insert(found.end(), last.row(0), last.row(0) + last.cols);
            tokens.push_back(
                static_cast<std::int32_t>(std::max_element(last.row(0), last.row(0) + last.cols) - last.row(0)));
            fresh = Tokens(tokens).last(1);
        }
        BOOST_TEST(tokens == expected, name << boost::test_tools::per_element());
        KIMIK3_CHECK_CLOSE_NAMED(name, found, logits, tolerance);
    }
}

}  // namespace

BOOST_AUTO_TEST_SUITE(golden_generate)

BOOST_AUTO_TEST_CASE(greedy_tokens_and_logits_in_double) {
    check_generation<KimiK3<presets::golden, Cpu, double>>(1e-9);
}
BOOST_AUTO_TEST_CASE(greedy_tokens_and_logits_in_double_chunkwise) {
    check_generation<KimiK3<golden_chunkwise, Cpu, double>>(1e-9);
}
BOOST_AUTO_TEST_CASE(greedy_tokens_and_logits_in_float) { check_generation<KimiK3<presets::golden, Cpu, float>>(1e-4); }

BOOST_AUTO_TEST_SUITE_END()
