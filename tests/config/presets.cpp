#include <boost/test/unit_test.hpp>

#include "kimik3/config/presets.hpp"

using namespace kimik3;

static_assert(valid<presets::golden> && valid<presets::tiny> && valid<presets::small> && valid<presets::k3_300m>);
static_assert(valid<presets::linear_tiny> && valid<presets::kimi_linear_48b>);

BOOST_AUTO_TEST_SUITE(presets_by_name)

BOOST_AUTO_TEST_CASE(every_preset_keeps_the_invariants_and_is_found_by_its_name) {
    for (const presets::Named& preset : presets::all) {
        BOOST_CHECK_NO_THROW(check_invariants(preset.config));
        BOOST_TEST(&presets::find(preset.name) == &preset.config);
    }
}

BOOST_AUTO_TEST_CASE(an_unknown_name_is_refused_with_the_list_of_names) {
    BOOST_CHECK_EXCEPTION(presets::find("huge"), Error, [](const Error& error) {
        return std::string_view(error.what()) ==
               "the presets are golden, tiny, small, k3_300m, linear_tiny, kimi_linear_48b; there is none named "
               "\"huge\"";
    });
}

BOOST_AUTO_TEST_CASE(the_nearest_preset_is_the_one_of_nearest_width_and_depth) {
    for (const presets::Named& preset : presets::all) {
        ModelConfig config = preset.config;
        BOOST_TEST(presets::nearest(config).name == preset.name);
        config.vocab_size += 1;
        config.hidden_size += 8;
        BOOST_TEST(presets::nearest(config).name == preset.name);
    }
}

BOOST_AUTO_TEST_CASE(a_pattern_reads_the_same_with_and_without_spaces) {
    static_assert(LayerPattern("KKKM KKKM M") == LayerPattern("KKKMKKKMM"));
    static_assert(LayerPattern("KKKM M").size() == 5 && LayerPattern("KM")[1] == 'M');
}

BOOST_AUTO_TEST_SUITE_END()
