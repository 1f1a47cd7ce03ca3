// b68, b74: a program of two files that both use models, in every container and at odd addresses; it checks itself and
// prints numbers that no build flag may change but for rounding.
#include <kimik3/kimik3.hpp>

#include <cstdio>
#include <map>
#include <memory>
#include <optional>

#include "second.hpp"

using namespace kimik3;

static_assert(std::is_nothrow_move_constructible_v<Model> && std::is_nothrow_move_assignable_v<Model>);
static_assert(!std::is_copy_constructible_v<Model>, "a copy would share its weights");

namespace {

const std::vector<std::int32_t> tokens{1, 5, 9, 3, 3, 60, 2, 0, 14, 33, 7, 1, 8, 21, 4, 4, 66, 13, 27, 5};

double loss_of(Model& model) { return model.forward_backward(tokens, tokens, 2); }

bool same(double a, double b, const char* where) {
    if (a == b) return true;
    std::printf("%s: %.9g instead of %.9g\n", where, a, b);
    return false;
}

/// Models in containers, which move them about, compute what a model on the stack does.
bool containers(double expected) {
    bool fine = true;
    std::vector<Model> vector;
    for (int m = 0; m < 3; ++m) vector.emplace_back(Context<Cpu>(2), 1);
    for (Model& model : vector) fine &= same(loss_of(model), expected, "std::vector");
    vector.erase(vector.begin());
    for (Model& model : vector) fine &= same(loss_of(model), expected, "std::vector after erase");
    std::optional<Model> optional;
    optional.emplace(Context<Cpu>(1), 1);
    fine &= same(loss_of(*optional), expected, "std::optional");
    std::map<int, Model> map;
    map.emplace(1, std::move(*optional));
    fine &= same(loss_of(map.at(1)), expected, "std::map");
    const auto unique = std::make_unique<Model>(std::move(map.at(1)));
    fine &= same(loss_of(*unique), expected, "std::make_unique");
    vector.front() = std::move(*unique);
    fine &= same(loss_of(vector.front()), expected, "move assignment");
    std::vector<Model::State> states(3, vector.front().new_state(2));
    for (Model::State& state : states) {
        const auto logits = vector.front().step(state, Tokens(tokens).first(7), 1);
        fine &= same(static_cast<double>(logits(0, 3)),
                     static_cast<double>(vector.back().step(states.back(), Tokens(tokens).first(7), 0)(0, 3)),
                     "std::vector of states");
        states.back().reset(0);
        state.reset(1);
    }
    return fine;
}

/// A product and a norm of a user's buffers that begin one float after an aligned address.
bool odd_addresses() {
    bool fine = true;
    const Context<Cpu> ctx(2);
    for (Index width : {1, 3, 16, 33}) {
        Buffer<float> x(5 * width + 1), w(7 * width + 1), y(5 * 7 + 1), out(5 * width + 1), r(6);
        for (Index e = 0; e < x.size(); ++e) x[e] = static_cast<float>(e % 7) - 3.0f;
        for (Index e = 0; e < w.size(); ++e) w[e] = static_cast<float>(e % 5) - 2.0f;
        const MatrixView<float> odd_x(x.data() + 1, 5, width), odd_w(w.data() + 1, 7, width), odd_y(y.data() + 1, 5, 7);
        linear_forward(ctx, odd_x, odd_w, odd_y);
        for (Index n = 0; n < 5; ++n) {
            for (Index o = 0; o < 7; ++o) {
                double sum = 0;
                for (Index i = 0; i < width; ++i)
                    sum += static_cast<double>(odd_x(n, i)) * static_cast<double>(odd_w(o, i));
                fine &=
                    same(static_cast<double>(odd_y(n, o)), sum, "a product at an odd address");  // small whole numbers
            }
        }
        rms_norm_forward(ctx, odd_x, VectorView<float>(w.data() + 1, width), 1e-5,
                         MatrixView<float>(out.data() + 1, 5, width), VectorView<float>(r.data() + 1, 5));
        for (Index n = 0; n < 5; ++n) fine &= std::isfinite(r[n + 1]);
    }
    return fine;
}

}  // namespace

int main() {
    Model model(Context<Cpu>(2), 1);
    const double loss = loss_of(model);
    double sum = 0;
    for (float g : model.gradients()) sum += std::abs(static_cast<double>(g));
    const bool fine = containers(loss) && odd_addresses() && same(loss_in_second_file(tokens), loss, "the other file");
    std::printf("%.12g %.12g\n", loss, sum);
    return fine ? 0 : 1;
}
