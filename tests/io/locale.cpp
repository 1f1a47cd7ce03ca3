#include <boost/test/unit_test.hpp>

#include "io/files.hpp"
#include "kimik3/config/presets.hpp"
#include "kimik3/io/config_json.hpp"
#include "kimik3/io/safetensors.hpp"
#include "kimik3/io/safetensors_writer.hpp"
#include "support/german_numbers.hpp"

using namespace kimik3;
using namespace kimik3::test;

namespace {

std::string safetensors_bytes() {
    const TemporaryFolder folder;
    const std::vector<float> values(12345, 0.5f);
    write_safetensors(folder / "x", {tensor_in_memory("w", {12345}, values.data())}, {{"step", "1000000"}});
    return get(folder / "x");
}

}  // namespace

BOOST_AUTO_TEST_SUITE(locale)

BOOST_AUTO_TEST_CASE(b78_files_do_not_depend_on_the_locale) {
    ModelConfig config = presets::k3_300m;
    config.rms_norm_eps = 0.1;
    config.max_seq_len = 1048576;
    const std::string text = format_config_json(config), tensors = safetensors_bytes();
    const GermanNumbers german;
    BOOST_TEST((format_config_json(config) == text));
    BOOST_TEST((parse_config_json(text) == config));
    BOOST_TEST((safetensors_bytes() == tensors));
    const TemporaryFolder folder;
    put(folder / "x", tensors);
    float values[12345];
    SafetensorsFile(folder / "x").read("w", values, 12345);
    BOOST_TEST(values[12344] == 0.5f);
    KIMIK3_CHECK_REFUSED(SafetensorsFile(folder / "x").read("w", values, 1234), "has 12345 elements, 1234 are wanted");
}

BOOST_AUTO_TEST_SUITE_END()
