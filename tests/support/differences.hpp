#pragma once
// Gradients by 4-point central differences, against which hand-written backwards are held.

#include <span>
#include <vector>

namespace kimik3::test {

/// d loss() / d values, one element at a time; values are as before afterwards. In double, with the default step and
/// values near 1, right to about 1e-10.
template <class Loss>
std::vector<double> difference_gradient(std::span<double> values, Loss&& loss, double step = 1e-3) {
    std::vector<double> gradient;
    for (double& value : values) {
        const double kept = value;
        const auto at = [&](double offset) {
            value = kept + offset;
            return loss();
        };
        const double near = at(step) - at(-step), far = at(2 * step) - at(-2 * step);
        value = kept;
        gradient.push_back((8 * near - far) / (12 * step));
    }
    return gradient;
}

}  // namespace kimik3::test
