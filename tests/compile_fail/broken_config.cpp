// The golden config with the change of line ROW of breaks.def; with ROW past the last line it compiles.
#include <limits>

#include "kimik3/config/presets.hpp"
#include "kimik3/config/schedule.hpp"

using namespace kimik3;

constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();
constexpr double infinity = std::numeric_limits<double>::infinity();

constexpr ModelConfig config = [] {
    ModelConfig c = presets::golden;
    int row = 0;
#define BREAK(...) \
    if (row++ == ROW) { __VA_ARGS__; }
#include "config/breaks.def"
    return c;
}();

using Layers = schedule_of<config>;  // asserts valid<config>, as the model does
