#include "kimik3/train/optimizer.hpp"

#include <boost/test/unit_test.hpp>
#include <map>
#include <set>
#include <tuple>

#include "kimik3/core/rng.hpp"
#include "kimik3/ops/cpu/adamw.hpp"
#include "kimik3/ops/cpu/gradient_norm.hpp"
#include "kimik3/ops/cpu/muon.hpp"
#include "support/refusal.hpp"

using namespace kimik3;
using namespace kimik3::test;

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();

/// A small table of every kind of parameter, laid out with gaps as a model lays it out.
struct Table {
    std::vector<ParameterInfo> parameters;
    Index elements = 0;

    Table() {
        add("embed.weight", {50, 12}, {});
        add("norm.weight", {12}, {.init = Init::ones, .decay = false});
        add("q_proj.weight", {8, 12}, {.muon_blocks = {4}});
        add("kv_b_proj.weight", {10, 6}, {.muon_blocks = {3, 2}});
        add("o_proj.weight", {12, 8}, {.muon_blocks = {0}});
        add("q_conv1d.weight", {8, 1, 4}, {.init = Init::conv, .decay = false});
        add("gate.bias", {5}, {.decay = false, .trained = false});
        add("experts.0.w1.weight", {6, 7}, {.muon_blocks = {0}});
        add("experts.1.w1.weight", {6, 7}, {.muon_blocks = {0}});
        add("res_proj.weight", {1, 12}, {.init = Init::zeros, .decay = false});
    }

    void add(const char* name, std::vector<Index> shape, FieldRule rule) {
        Index count = 1;
        for (const Index size : shape) count *= size;
        parameters.push_back({name, std::move(shape), elements, count, 0, std::move(rule)});
        elements += round_up(count, 16);
    }

    /// Random numbers where parameters are, zero in the gaps.
    template <class A>
    Buffer<A> random(std::uint64_t seed, double scale = 1.0) const {
        Buffer<A> values(elements);
        Philox rng(seed);
        for (const ParameterInfo& info : parameters) {
            for (Index e = 0; e < info.count; ++e) values[info.offset + e] = static_cast<A>(scale * rng.normal());
        }
        return values;
    }
};

/// A checkpoint in memory: the shape that restore() reads.
template <class A>
struct Saved {
    struct Entry {
        std::vector<Index> shape;
        std::vector<A> values;
    };
    std::map<std::string, Entry> tensors;

    template <class Optimizer>
    explicit Saved(const Optimizer& optimizer) {
        for (const auto& tensor : optimizer.state()) {
            tensors[tensor.name] = {tensor.shape, {tensor.values.begin(), tensor.values.end()}};
        }
    }
    bool contains(const std::string& name) const { return tensors.count(name) != 0; }
    const Entry& find(const std::string& name) const { return tensors.at(name); }
    void read(const std::string& name, A* destination, Index count) const {
        const Entry& entry = find(name);
        require(static_cast<Index>(entry.values.size()) == count, "{} elements, not {}", entry.values.size(), count);
        std::copy(entry.values.begin(), entry.values.end(), destination);
    }
    bool operator==(const Saved& other) const {
        const auto same = [](const auto& a, const auto& b) {
            return a.first == b.first && a.second.shape == b.second.shape &&
                   std::memcmp(a.second.values.data(), b.second.values.data(), a.second.values.size() * sizeof(A)) == 0;
        };
        return std::equal(tensors.begin(), tensors.end(), other.tensors.begin(), other.tensors.end(), same);
    }
};

template <class A>
bool same_bits(const Buffer<A>& a, const Buffer<A>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), to_size(a.size()) * sizeof(A)) == 0;
}

using Numbers = std::tuple<float, double>;

}  // namespace

BOOST_AUTO_TEST_SUITE(optimizer)

BOOST_AUTO_TEST_CASE(b44_every_parameter_is_in_its_group) {
    const Table table;
    const Optimizer<Cpu, float> muon(table.parameters, table.elements, {});
    std::map<std::string, ParameterGroup> of;
    for (const ParameterGroup& group : muon.groups()) of[group.name] = group;
    BOOST_TEST(of.size() == table.parameters.size());
    const std::set<std::string> by_muon = {"q_proj.weight", "kv_b_proj.weight", "o_proj.weight", "experts.0.w1.weight",
                                           "experts.1.w1.weight"};
    for (const auto& [name, group] : of) {
        const GroupKind expected = by_muon.count(name)   ? GroupKind::muon
                                   : name == "gate.bias" ? GroupKind::none
                                                         : GroupKind::adamw;
        BOOST_TEST((group.kind == expected), name);
        BOOST_TEST(group.decay == (by_muon.count(name) || name == "embed.weight"), name);
    }
    BOOST_TEST(of["q_proj.weight"].blocks == 2);
    BOOST_TEST((of["kv_b_proj.weight"].block_rows == std::vector<Index>{3, 2}));
    BOOST_TEST(of["kv_b_proj.weight"].blocks == 4);
    BOOST_TEST((of["o_proj.weight"].block_rows == std::vector<Index>{12}));
    BOOST_TEST(of["o_proj.weight"].cols == 8);
    BOOST_TEST(muon.newton_schulz_blocks() == 2 + 4 + 1 + 1 + 1);

    const Optimizer<Cpu, float> adamw(table.parameters, table.elements, {.kind = OptimizerKind::adamw});
    BOOST_TEST(adamw.newton_schulz_blocks() == 0);
    for (const ParameterGroup& group : adamw.groups()) BOOST_TEST((group.kind != GroupKind::muon));
}

BOOST_AUTO_TEST_CASE(b44_a_muon_step_is_not_a_gradient_step) {
    const Table table;
    Optimizer<Cpu, double> optimizer(table.parameters, table.elements, {});
    const Buffer<double> gradients = table.random<double>(1);
    Buffer<double> weights = table.random<double>(2), before = table.random<double>(2);
    const Context<Cpu> ctx(1);
    const double lr = 1e-2;
    BOOST_TEST(optimizer.step(ctx, lr, weights.view(), gradients.view()).applied);
    for (const ParameterGroup& group : optimizer.groups()) {
        if (group.kind != GroupKind::muon) continue;
        const auto info = std::find_if(table.parameters.begin(), table.parameters.end(),
                                       [&](const ParameterInfo& p) { return p.name == group.name; });
        double apart = 0.0, size = 0.0;
        for (Index e = info->offset; e < info->offset + info->count; ++e) {
            apart += std::pow(weights[e] - (before[e] - lr * gradients[e]), 2);
            size += std::pow(lr * gradients[e], 2);
        }
        BOOST_TEST(std::sqrt(apart / size) > 1e-3, group.name);
    }
}

BOOST_AUTO_TEST_CASE_TEMPLATE(buffers_and_gaps_are_never_touched_and_gradients_stay, A, Numbers) {
    const Table table;
    Optimizer<Cpu, A> optimizer(table.parameters, table.elements, {});
    Buffer<A> gradients = table.random<A>(1), weights = table.random<A>(2);
    const Buffer<A> before = table.random<A>(2), same = table.random<A>(1);
    for (int step = 0; step < 3; ++step) optimizer.step(Context<Cpu>(2), 1e-2, weights.view(), gradients.view());
    BOOST_TEST(same_bits(gradients, same));
    Index end = 0;
    for (const ParameterInfo& info : table.parameters) {
        for (; end < info.offset; ++end) BOOST_TEST(weights[end] == A(0));
        end = info.offset + info.count;
        bool moved = false;
        for (Index e = info.offset; e < end; ++e) moved |= weights[e] != before[e];
        BOOST_TEST(moved == info.rule.trained, info.name);
    }
}

BOOST_AUTO_TEST_CASE(the_gradient_of_a_buffer_does_not_count) {
    const Table table;
    Optimizer<Cpu, double> optimizer(table.parameters, table.elements, {});
    Buffer<double> gradients(table.elements), weights = table.random<double>(2);
    gradients[0] = 3.0;
    gradients[table.parameters[1].offset] = 4.0;
    gradients[table.parameters[6].offset] = not_a_number;
    const StepReport report = optimizer.step(Context<Cpu>(1), 1e-2, weights.view(), gradients.view());
    BOOST_TEST(report.applied);
    BOOST_TEST(report.gradient_norm == 5.0);
}

BOOST_AUTO_TEST_CASE_TEMPLATE(b47_clipping_survives_gradients_of_1e20, A, Numbers) {
    Table table;
    table.parameters.clear();
    table.elements = 0;
    table.add("w", {100}, {.decay = false});
    Optimizer<Cpu, A> optimizer(table.parameters, table.elements, {.clip_norm = 1.0});
    Buffer<A> gradients(table.elements), weights(table.elements);
    for (Index e = 0; e < 100; ++e) gradients[e] = A(1e20);
    const StepReport report = optimizer.step(Context<Cpu>(2), 1.0, weights.view(), gradients.view());
    BOOST_TEST(report.applied);
    BOOST_TEST(std::abs(report.gradient_norm / 1e21 - 1.0) < 1e-5);
    BOOST_TEST(std::abs(clip_scale(report.gradient_norm, 1.0) * 1e20 - 0.1) < 1e-6);
    // The first moment is (1 - beta1) of the clipped gradient.
    const auto state = optimizer.state();
    for (const A moment : state[0].values) BOOST_TEST(std::abs(double(moment) - 0.1 * 0.1) < 1e-8);
}

BOOST_AUTO_TEST_CASE_TEMPLATE(b47_a_gradient_that_is_not_finite_changes_nothing_and_is_named, A, Numbers) {
    const Table table;
    const Context<Cpu> ctx(2);
    Optimizer<Cpu, A> optimizer(table.parameters, table.elements, {});
    Buffer<A> weights = table.random<A>(2), gradients = table.random<A>(3);
    optimizer.step(ctx, 1e-2, weights.view(), gradients.view());
    Buffer<A> before(table.elements);
    std::copy(weights.begin(), weights.end(), before.begin());
    const Saved<A> state(optimizer);
    for (const double bad : {not_a_number, infinity, -infinity}) {
        for (const std::size_t p : {std::size_t{0}, std::size_t{3}, std::size_t{9}}) {
            const ParameterInfo& info = table.parameters[p];
            Buffer<A> broken = table.random<A>(4);
            broken[info.offset + info.count - 1] = static_cast<A>(bad);
            const StepReport report = optimizer.step(ctx, 1e-2, weights.view(), broken.view());
            BOOST_TEST(!report.applied);
            BOOST_TEST(report.not_finite == info.name);
            BOOST_TEST(!std::isfinite(report.gradient_norm));
        }
    }
    BOOST_TEST(same_bits(weights, before));
    BOOST_TEST((state == Saved<A>(optimizer)));
    BOOST_TEST(optimizer.steps() == 1);
}

BOOST_AUTO_TEST_CASE(b47_without_clipping_a_gradient_whose_square_overflows_is_refused) {
    const Table table;
    Optimizer<Cpu, float> optimizer(table.parameters, table.elements, {.clip_norm = infinity});
    Buffer<float> weights = table.random<float>(2), gradients = table.random<float>(3);
    gradients[table.parameters[1].offset] = 1e20f;
    const StepReport report = optimizer.step(Context<Cpu>(1), 1e-2, weights.view(), gradients.view());
    BOOST_TEST(!report.applied);
    BOOST_TEST(report.not_finite == "norm.weight");
}

BOOST_AUTO_TEST_CASE(b47_the_limits_of_clipping_are_as_documented) {
    BOOST_TEST(clip_scale(2.0, 1.0) == 1.0 / (2.0 + 1e-6));
    BOOST_TEST(clip_scale(0.5, 1.0) == 1.0);
    BOOST_TEST(clip_scale(0.0, 1.0) == 1.0);
    BOOST_TEST(clip_scale(1e30, infinity) == 1.0);
    BOOST_TEST(clip_scale(1e30, 0.0) == 1.0);
    const Table table;
    for (const double bad : {not_a_number, -1.0, -infinity}) {
        BOOST_CHECK_THROW(clip_scale(1.0, bad), Error);
        BOOST_CHECK_THROW((Optimizer<Cpu, float>(table.parameters, table.elements, {.clip_norm = bad})), Error);
    }
}

BOOST_AUTO_TEST_CASE(a_norm_above_the_limit_changes_nothing) {
    const Table table;
    Optimizer<Cpu, double> optimizer(table.parameters, table.elements, {});
    Buffer<double> weights = table.random<double>(2);
    const Buffer<double> before = table.random<double>(2), gradients = table.random<double>(3);
    const StepReport refused = optimizer.step(Context<Cpu>(1), 1e-2, weights.view(), gradients.view(), 1.0);
    BOOST_TEST((!refused.applied && refused.not_finite.empty() && refused.gradient_norm > 1.0));
    BOOST_TEST(same_bits(weights, before));
    BOOST_TEST(optimizer.steps() == 0);
    BOOST_TEST(optimizer.step(Context<Cpu>(1), 1e-2, weights.view(), gradients.view(), refused.gradient_norm).applied);
}

BOOST_AUTO_TEST_CASE_TEMPLATE(steps_do_not_depend_on_the_number_of_threads, A, Numbers) {
    for (const OptimizerKind kind : {OptimizerKind::adamw, OptimizerKind::muon}) {
        Table table;
        table.add("large.weight", {300, 310}, {.muon_blocks = {0}});
        table.add("tall.weight", {700, 100}, {.muon_blocks = {0}});
        Buffer<A> results[3];
        double norms[3];
        for (int threads = 1; threads <= 3; ++threads) {
            const Context<Cpu> ctx(threads);
            Optimizer<Cpu, A> optimizer(table.parameters, table.elements, {.kind = kind});
            Buffer<A> weights = table.random<A>(2, 0.02);
            for (int step = 0; step < 2; ++step) {
                const Buffer<A> gradients = table.random<A>(10 + static_cast<std::uint64_t>(step));
                norms[threads - 1] = optimizer.step(ctx, 1e-2, weights.view(), gradients.view()).gradient_norm;
            }
            results[threads - 1] = std::move(weights);
        }
        BOOST_TEST((same_bits(results[0], results[1]) && same_bits(results[0], results[2])));
        BOOST_TEST((norms[0] == norms[1] && norms[0] == norms[2]));
    }
}

BOOST_AUTO_TEST_CASE_TEMPLATE(b53_a_restored_state_continues_bit_for_bit, A, Numbers) {
    const Table table;
    const Context<Cpu> ctx(2);
    for (const OptimizerKind kind : {OptimizerKind::adamw, OptimizerKind::muon}) {
        const auto make = [&] { return Optimizer<Cpu, A>(table.parameters, table.elements, {.kind = kind}); };
        Optimizer<Cpu, A> whole = make(), first = make(), second = make();
        Buffer<A> straight = table.random<A>(2), resumed = table.random<A>(2);
        const auto gradients = [&](int step) { return table.random<A>(20 + static_cast<std::uint64_t>(step)); };
        for (int step = 0; step < 6; ++step) whole.step(ctx, 1e-2, straight.view(), gradients(step).view());
        for (int step = 0; step < 3; ++step) first.step(ctx, 1e-2, resumed.view(), gradients(step).view());
        second.restore(ctx, first.steps(), Saved<A>(first));
        for (int step = 3; step < 6; ++step) second.step(ctx, 1e-2, resumed.view(), gradients(step).view());
        BOOST_TEST(same_bits(straight, resumed));
        BOOST_TEST((Saved<A>(whole) == Saved<A>(second)));
        BOOST_TEST(whole.steps() == second.steps());
    }
}

BOOST_AUTO_TEST_CASE(the_state_is_named_and_shaped_as_the_parameters) {
    const Table table;
    const Optimizer<Cpu, float> optimizer(table.parameters, table.elements, {});
    std::map<std::string, std::vector<Index>> shapes;
    for (const auto& tensor : optimizer.state()) {
        BOOST_TEST(shapes.emplace(tensor.name, tensor.shape).second);
        Index count = 1;
        for (const Index size : tensor.shape) count *= size;
        BOOST_TEST(tensor.values.size == count);
    }
    BOOST_TEST(shapes.size() == 4u * 2u + 5u);
    BOOST_TEST((shapes.at("adamw.exp_avg_sq.q_conv1d.weight") == std::vector<Index>{8, 1, 4}));
    BOOST_TEST((shapes.at("muon.momentum.experts.1.w1.weight") == std::vector<Index>{6, 7}));
    BOOST_TEST(shapes.count("adamw.exp_avg.gate.bias") == 0u);
}

BOOST_AUTO_TEST_CASE(restoring_refuses_what_is_missing_or_misshapen_by_name_and_changes_nothing) {
    const Table table;
    const Context<Cpu> ctx(1);
    Optimizer<Cpu, float> optimizer(table.parameters, table.elements, {}), other(table.parameters, table.elements, {});
    Buffer<float> weights = table.random<float>(1);
    const Buffer<float> gradients = table.random<float>(2);
    optimizer.step(ctx, 1e-2, weights.view(), gradients.view());
    Saved<float> missing(optimizer), misshapen(optimizer);
    missing.tensors.erase("muon.momentum.o_proj.weight");
    BOOST_TEST(contains(refusal([&] { other.restore(ctx, 1, missing); }), "'muon.momentum.o_proj.weight'"));
    misshapen.tensors.at("adamw.exp_avg_sq.res_proj.weight").shape = {12};
    const std::string text = refusal([&] { other.restore(ctx, 1, misshapen); });
    BOOST_TEST(contains(text, "'adamw.exp_avg_sq.res_proj.weight' must have the shape [1, 12], got [12]"), text);
    Optimizer<Cpu, float> adamw(table.parameters, table.elements, {.kind = OptimizerKind::adamw});
    BOOST_TEST(
        contains(refusal([&] { adamw.restore(ctx, 1, Saved<float>(optimizer)); }), "'adamw.exp_avg.q_proj.weight'"));
    Saved<float> broken(optimizer);
    for (auto& tensor : broken.tensors) {
        std::vector<float>& numbers = tensor.second.values;
        const float last = std::exchange(numbers.back(), std::numeric_limits<float>::quiet_NaN());
        BOOST_TEST(contains(refusal([&] { other.restore(ctx, 1, broken); }), "holds nan"), tensor.first);
        numbers.pop_back();
        BOOST_TEST(contains(refusal([&] { other.restore(ctx, 1, broken); }), "elements"), tensor.first);
        numbers.push_back(last);
    }
    BOOST_CHECK_THROW(other.restore(ctx, -1, Saved<float>(optimizer)), Error);
    BOOST_TEST((Saved<float>(other) == Saved<float>(Optimizer<Cpu, float>(table.parameters, table.elements, {}))));
    BOOST_TEST(other.steps() == 0);
}

BOOST_AUTO_TEST_CASE(wrong_tables_and_options_are_refused_in_a_sentence) {
    const auto make = [](OptimizerOptions options) {
        const Table table;
        Optimizer<Cpu, float>(table.parameters, table.elements, options);
    };
    BOOST_TEST(contains(refusal([&] { make({.beta1 = 1.0}); }), "beta1 must lie in [0, 1), got 1"));
    BOOST_TEST(contains(refusal([&] { make({.beta2 = not_a_number}); }), "beta2"));
    BOOST_TEST(contains(refusal([&] { make({.eps = 0.0}); }), "eps"));
    BOOST_TEST(contains(refusal([&] { make({.momentum = -0.1}); }), "momentum"));
    BOOST_TEST(contains(refusal([&] { make({.newton_schulz_steps = 0}); }), "newton_schulz_steps"));
    BOOST_TEST(contains(refusal([&] { make({.weight_decay = infinity}); }), "weight_decay"));
    make({.beta1 = 0.0, .beta2 = 0.0, .momentum = 0.0, .weight_decay = 0.0});

    const auto take = [](const Table& table) { Optimizer<Cpu, float>(table.parameters, table.elements, {}); };
    Table tiling;
    tiling.add("bad.weight", {10, 4}, {.muon_blocks = {4}});
    BOOST_TEST(contains(refusal([&] { take(tiling); }), "'bad.weight'"));
    Table vector;
    vector.add("bad.bias", {10}, {.muon_blocks = {0}});
    BOOST_TEST(contains(refusal([&] { take(vector); }), "Muon takes matrices"));
    Table overlap;
    overlap.parameters[2].offset -= 20;
    BOOST_TEST(contains(refusal([&] { take(overlap); }), "'q_proj.weight'"));
    const Table table;
    BOOST_CHECK_THROW((Optimizer<Cpu, float>(table.parameters, table.elements - 16, {})), Error);

    Optimizer<Cpu, float> optimizer(table.parameters, table.elements, {});
    Buffer<float> weights = table.random<float>(1), gradients = table.random<float>(2), few(16);
    for (const double lr : {not_a_number, infinity, -1e-3}) {
        BOOST_CHECK_THROW(optimizer.step(Context<Cpu>(1), lr, weights.view(), gradients.view()), Error);
    }
    BOOST_CHECK_THROW(optimizer.step(Context<Cpu>(1), 1e-3, few.view(), gradients.view()), Error);
    BOOST_CHECK_THROW(optimizer.step(Context<Cpu>(1), 1e-3, weights.view(), few.view()), Error);

    BOOST_TEST((optimizer_from_name("muon") == OptimizerKind::muon));
    BOOST_TEST((optimizer_from_name("adamw") == OptimizerKind::adamw));
    BOOST_TEST(contains(refusal([] { optimizer_from_name("sgd"); }), "one of adamw, muon; got 'sgd'"));
}

BOOST_AUTO_TEST_SUITE_END()
