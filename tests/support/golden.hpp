#pragma once
// Golden files: float64 inputs, outputs and gradients of the reference, read by name, and the measure by which results
// are compared with them.

#include <boost/test/unit_test.hpp>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kimik3/io/safetensors.hpp"

namespace kimik3::test {

/// The folder of the golden files: the environment variable KIMIK3_GOLDEN_DIR, else what the build was told.
inline std::string golden_directory() {
    if (const char* chosen = std::getenv("KIMIK3_GOLDEN_DIR"); chosen != nullptr && *chosen != '\0') return chosen;
#ifdef KIMIK3_GOLDEN_DEFAULT_DIR
    return KIMIK3_GOLDEN_DEFAULT_DIR;
#else
    return "tests/golden";
#endif
}

/// One golden file, <directory>/<name>.safetensors.
class Golden {
public:
    explicit Golden(const std::string& name) : file_(golden_directory() + "/" + name + ".safetensors") {}

    bool has(std::string_view name) const { return file_.contains(name); }

    /// All names that begin with prefix, in order.
    std::vector<std::string> names(std::string_view prefix = "") const {
        std::vector<std::string> result;
        for (const auto& [name, tensor] : file_.tensors())
            if (name.starts_with(prefix)) result.push_back(name);
        return result;
    }

    const std::vector<Index>& shape(std::string_view name) const { return file_.find(name).shape; }

    std::vector<double> values(std::string_view name) const { return read<double>(name); }

    std::vector<std::int32_t> ids(std::string_view name) const { return read<std::int32_t>(name); }

private:
    template <class T>
    std::vector<T> read(std::string_view name) const {
        std::vector<T> result(to_size(file_.find(name).count));
        file_.read(name, result.data(), static_cast<Index>(result.size()));
        return result;
    }

    SafetensorsFile file_;
};

/// max |a - b| / max |b|, or max |a| when b is all zero; infinity when a NaN is anywhere or the sizes differ. Takes
/// anything contiguous: vectors, arrays, spans.
template <class Actual, class Expected>
double relative_error(const Actual& actual, const Expected& expected) {
    const std::span a(actual);
    const std::span b(expected);
    constexpr double infinity = std::numeric_limits<double>::infinity();
    if (a.size() != b.size()) return infinity;
    double difference = 0.0, scale = 0.0;
    for (std::size_t e = 0; e < a.size(); ++e) {
        const double x = static_cast<double>(a[e]), y = static_cast<double>(b[e]), apart = std::abs(x - y);
        if (!(apart < infinity)) return infinity;  // NaN, or an infinity
        difference = std::max(difference, apart);
        scale = std::max(scale, std::abs(y));
    }
    return scale > 0.0 ? difference / scale : difference;
}

}  // namespace kimik3::test

/// Checks that relative_error(actual, expected) <= tolerance; a failure shows the two expressions and the error. The
/// form _NAMED shows a name of the caller's too.
#define KIMIK3_CHECK_CLOSE(actual, expected, tolerance) KIMIK3_CHECK_CLOSE_NAMED("", actual, expected, tolerance)
#define KIMIK3_CHECK_CLOSE_NAMED(name, actual, expected, tolerance)                                                 \
    do {                                                                                                            \
        const double kimik3_error = ::kimik3::test::relative_error(actual, expected);                               \
        BOOST_CHECK_MESSAGE(kimik3_error <= (tolerance), name << " " #actual " ~ " #expected ": relative error "    \
                                                              << kimik3_error << ", allowed " << (tolerance));     \
    } while (false)
