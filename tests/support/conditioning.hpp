#pragma once
// How near to the golden model float can come. The model amplifies the rounding of its weights up to several
// thousandfold, so float cannot keep 1e-4 everywhere, however it computes. The law: within 1e-4, or ten times what
// moving every weight by float's epsilon of itself, up or down at random, does in double.

#include <algorithm>

#include "support/models.hpp"

namespace kimik3::test {

class Conditioning {
public:
    explicit Conditioning(const Golden& golden) : model_(Context<Cpu>(2)) {
        const auto tokens = golden.ids("in.tokens"), targets = golden.ids("in.targets");
        const Index batch = golden.shape("in.tokens").front();
        for (std::uint64_t draw = 0; draw < 8; ++draw) {
            load_parameters(model_, golden, "param.");
            Philox random(draw);
            for (double& w : model_.weights()) w *= random.below(2) == 0 ? 1 + 0x1p-23 : 1 - 0x1p-23;
            model_.zero_gradients();
            const Loss loss = model_.forward(tokens, targets, batch);
            widen(loss_, std::vector{loss.loss}, golden.values("out.loss"));
            widen(logits_, elements(model_.logits()), golden.values("out.logits"));
            model_.backward();
            gradients_.emplace_back(model_.gradients().begin(), model_.gradients().end());
        }
    }

    double loss() const { return loss_; }
    double logits() const { return logits_; }
    double gradient(const ParameterInfo& tensor, const std::vector<double>& expected) const {
        double allowed = least;
        for (const std::vector<double>& moved : gradients_)
            widen(allowed, std::span(moved).subspan(to_size(tensor.offset), to_size(tensor.count)), expected);
        return allowed;
    }

private:
    static constexpr double least = 1e-4;

    template <class Moved>
    static void widen(double& allowed, const Moved& moved, const std::vector<double>& expected) {
        allowed = std::max(allowed, 10 * relative_error(moved, expected));
    }

    KimiK3<presets::golden, Cpu, double> model_;
    double loss_ = least, logits_ = least;
    std::vector<std::vector<double>> gradients_;
};

}  // namespace kimik3::test
