#include <boost/test/unit_test.hpp>

#include <clocale>
#include <locale>

#include "io/files.hpp"
#include "kimik3/config/presets.hpp"
#include "kimik3/io/config_json.hpp"
#include "kimik3/io/safetensors.hpp"
#include "kimik3/io/safetensors_writer.hpp"

using namespace kimik3;
using namespace kimik3::test;

namespace {

struct Commas : std::numpunct<char> {
    char do_decimal_point() const override { return ','; }
    char do_thousands_sep() const override { return '.'; }
    std::string do_grouping() const override { return "\3"; }
};

/// While it lives numbers are written as in German: by C's functions where that locale is installed, by C++'s always.
class GermanNumbers {
public:
    GermanNumbers() : before_(std::locale::global(std::locale(std::locale::classic(), new Commas))) {
        if (std::setlocale(LC_ALL, "de_DE.UTF-8") == nullptr)
            BOOST_TEST_MESSAGE("the locale de_DE.UTF-8 is not installed");
    }
    GermanNumbers(const GermanNumbers&) = delete;
    GermanNumbers& operator=(const GermanNumbers&) = delete;
    ~GermanNumbers() {
        std::setlocale(LC_ALL, "C");
        std::locale::global(before_);
    }

private:
    std::locale before_;
};

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
