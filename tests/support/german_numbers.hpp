#pragma once
// A locale with other numbers than C's.

#include <boost/test/unit_test.hpp>
#include <clocale>
#include <locale>
#include <string>

namespace kimik3::test {

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
    struct Commas : std::numpunct<char> {
        char do_decimal_point() const override { return ','; }
        char do_thousands_sep() const override { return '.'; }
        std::string do_grouping() const override { return "\3"; }
    };
    std::locale before_;
};

}  // namespace kimik3::test
