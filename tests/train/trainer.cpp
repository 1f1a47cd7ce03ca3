#include "kimik3/train/trainer.hpp"

#include <boost/test/unit_test.hpp>

#include <limits>

#include "support/models.hpp"

using namespace kimik3;

namespace {

using Model = KimiK3<presets::golden>;

TokenLoader some_data(Index batch = 2) {
    Philox random(2);
    std::vector<std::int32_t> ids(400);
    for (auto& id : ids) id = static_cast<std::int32_t>(random.below(8));
    std::vector<Shard> shards;
    shards.emplace_back("made up", ids, presets::golden.vocab_size);
    return TokenLoader(TokenWindows(std::move(shards), 12), batch, Order::shuffled, 1);
}

TrainingOptions options() {
    TrainingOptions o;
    o.schedule = {.kind = ScheduleKind::constant, .max_lr = 3e-3, .total_steps = 100};
    return o;
}

std::vector<float> copy(VectorView<float> flat) { return {flat.begin(), flat.end()}; }

}  // namespace

BOOST_AUTO_TEST_SUITE(trainer)

BOOST_AUTO_TEST_CASE(the_loss_falls) {
    Model model(Context<Cpu>(2), 1);
    Trainer trainer(model, some_data(8), options());
    double first = 0, last = 0;
    for (int step = 0; step < 30; ++step) {
        const TrainingStep report = trainer.step();
        BOOST_CHECK_EQUAL(report.step, step);
        BOOST_CHECK_EQUAL(report.tokens, 8 * 12);
        BOOST_CHECK(report.applied);
        (step == 0 ? first : last) = report.loss;
    }
    BOOST_CHECK_LT(last, first - 1);
    BOOST_CHECK_EQUAL(trainer.position().tokens, 30 * 8 * 12);
}

BOOST_AUTO_TEST_CASE(micro_batches_are_one_batch) {
    Model whole(Context<Cpu>(2), 1), parts(Context<Cpu>(2), 1);
    TrainingOptions cut = options();
    cut.accumulation = 4;
    Trainer one(whole, some_data(8), options()), four(parts, some_data(2), cut);
    for (int step = 0; step < 3; ++step) BOOST_CHECK_CLOSE(one.step().loss, four.step().loss, 1e-3);
    KIMIK3_CHECK_CLOSE(copy(whole.weights()), copy(parts.weights()), 1e-3);
}

BOOST_AUTO_TEST_CASE(b47_a_weight_that_is_not_finite_ends_the_run_by_name_and_changes_nothing) {
    Model model(Context<Cpu>(2), 1);
    Trainer trainer(model, some_data(), options());
    trainer.step();
    const ParameterInfo& tensor = model.parameters()[20];
    model.weights()[tensor.offset + 1] = std::numeric_limits<float>::quiet_NaN();
    std::vector<float> before = copy(model.weights());
    const auto names_it = [&](const Error& error) {
        const std::string text = error.what();
        return text.find("step 1") != text.npos && text.find(tensor.name) != text.npos;
    };
    BOOST_CHECK_EXCEPTION(trainer.step(), Error, names_it);
    const std::vector<float> after = copy(model.weights());
    BOOST_CHECK(std::memcmp(before.data(), after.data(), before.size() * sizeof(float)) == 0);
    BOOST_CHECK_EQUAL(trainer.optimizer().steps(), 1);
    for (const Balance& balance : model.balances())
        for (std::int64_t load : balance.load) BOOST_REQUIRE_EQUAL(load, 0);
}

BOOST_AUTO_TEST_CASE(a_spike_is_skipped_and_the_run_goes_on) {
    Model model(Context<Cpu>(2), 1);
    TrainingOptions guarded = options();
    guarded.spike_guard = {.factor = 1.01, .memory = 0.5, .warmup = 1};
    Trainer trainer(model, some_data(), guarded);
    Index skipped = 0;
    for (int step = 0; step < 20; ++step) {
        const std::vector<float> before = copy(model.weights());
        const TrainingStep report = trainer.step();
        skipped += report.applied ? 0 : 1;
        BOOST_CHECK_EQUAL(report.applied, copy(model.weights()) != before);
    }
    BOOST_CHECK_GT(skipped, 0);
    BOOST_CHECK_EQUAL(trainer.position().step, 20);
    BOOST_CHECK_EQUAL(trainer.position().optimizer_steps, 20 - skipped);
}

BOOST_AUTO_TEST_CASE(b54_an_evaluation_counts_every_example) {
    Model model(Context<Cpu>(2), 1);
    std::vector<Shard> shards;
    shards.emplace_back("ten windows", std::vector<std::int32_t>(10 * 12 + 1, 3), presets::golden.vocab_size);
    const TokenWindows windows(std::move(shards), 12);
    BOOST_CHECK_EQUAL(evaluate(model, windows, 4).counted, 10 * 12);
    for (const Index most : {1, 3, 4, 9})
        for (const Index batch : {1, 4, 16})
            BOOST_CHECK_EQUAL(evaluate(model, windows, batch, most).counted, most * 12);
}

BOOST_AUTO_TEST_SUITE_END()
