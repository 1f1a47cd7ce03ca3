// Whole runs on the GPU: recorded steps, and checkpoints between backends.
#include <boost/test/unit_test.hpp>

#include <future>

#include "conformance/device.hpp"
#include "io/files.hpp"
#include "kimik3/cuda.cuh"
#include "kimik3/io/checkpoint.hpp"

using namespace kimik3;
using namespace kimik3::test;

namespace {

template <class Backend>
using ModelOn = KimiK3<presets::golden, Backend, float>;

TokenLoader some_data() {
    Philox random(3);
    std::vector<std::int32_t> ids(12 * 40 + 1);
    for (auto& id : ids) id = static_cast<std::int32_t>(random.below(20));
    std::vector<Shard> shards;
    shards.emplace_back("a", ids, presets::golden.vocab_size);
    return TokenLoader(TokenWindows(std::move(shards), 12), 2, Order::shuffled, 5);
}

TrainingOptions some_options(OptimizerKind kind, Index accumulation) {
    TrainingOptions options;
    options.recorded = false;
    options.accumulation = accumulation;
    options.optimizer.kind = kind;
    options.schedule = {.kind = ScheduleKind::cosine, .max_lr = 1e-2, .warmup_steps = 2, .total_steps = 10};
    options.spike_guard = {.factor = 1.05, .memory = 0.5, .warmup = 2};  // skips some steps
    return options;
}

template <class T, class Backend>
void append(std::string& all, const Context<Backend>& ctx, VectorView<T> values) {
    std::vector<T> memory;
    const auto host = on_host(ctx, VectorView<const T>(values), memory);
    all.append(reinterpret_cast<const char*>(host.data), to_size(host.size) * sizeof(T));
}

template <class Backend>
struct Run {
    static Context<Backend> context() {
        if constexpr (std::is_same_v<Backend, Cpu>) return cpu();
        else return cuda();
    }
    explicit Run(const TrainingOptions& options, std::uint64_t seed = 1, Context<Backend> ctx = context())
        : model(std::move(ctx), seed), trainer(model, some_data(), options) {}

    /// A step's report, every digit.
    std::string step() {
        const TrainingStep s = trainer.step();
        return fmt::format("{}: loss {} lr {} norm {} applied {}", s.step, s.loss, s.lr, s.gradient_norm, s.applied);
    }
    /// Weights and moments, and with the position all that the next step depends on.
    std::string numbers() const {
        std::string all;
        append(all, model.context(), model.weights());
        for (const auto& tensor : trainer.optimizer().state()) append(all, model.context(), tensor.values);
        return all;
    }
    std::string everything() const { return detail::position_json(trainer.position()) + numbers(); }

    ModelOn<Backend> model;
    Trainer<ModelOn<Backend>> trainer;
};

template <class Backend>
std::vector<std::string> steps_of(Run<Backend>& run, int count) {
    std::vector<std::string> reports;
    for (int step = 0; step < count; ++step) reports.push_back(run.step());
    return reports;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(conformance_runs)

BOOST_AUTO_TEST_CASE(recorded_steps_are_the_eager_ones_to_the_bit) {
    for (const OptimizerKind kind : {OptimizerKind::muon, OptimizerKind::adamw})
        for (const Index accumulation : {1, 2})
            for (const Keep keep : {Keep::activations, Keep::sums}) {
                TrainingOptions options = some_options(kind, accumulation);
                Run<Cuda> eager(options);
                options.recorded = true;
                Run<Cuda> recorded(options);
                eager.model.keep(keep), recorded.model.keep(keep);
                BOOST_TEST(steps_of(recorded, 6) == steps_of(eager, 6), boost::test_tools::per_element());
                BOOST_CHECK(recorded.everything() == eager.everything());
            }
}

BOOST_AUTO_TEST_CASE(what_happens_between_recorded_steps_disturbs_none) {
    TrainingOptions options = some_options(OptimizerKind::muon, 1);
    Run<Cuda> plain(options);
    options.recorded = true;
    Run<Cuda> recorded(options);
    const std::vector<std::int32_t> ids(300, 3);
    for (int step = 0; step < 8; ++step) {
        BOOST_CHECK_EQUAL(recorded.step(), plain.step());
        if (step == 2) recorded.model.evaluate(Tokens(ids).first(30), Tokens(ids).first(30));
        if (step == 4) recorded.model.evaluate(Tokens(ids).first(248), Tokens(ids).first(248), 2);  // new memory
        if (step == 5)
            for (std::size_t n = 1; n < 40; ++n)  // as many other layouts
                recorded.model.evaluate(Tokens(ids).first(n), Tokens(ids).first(n));
        if (step == 6) recorded.model.keep(Keep::sums), plain.model.keep(Keep::sums);
    }
    BOOST_CHECK(recorded.everything() == plain.everything());
}

BOOST_AUTO_TEST_CASE(a_whole_step_is_recorded_at_once_and_asks_for_nothing_new) {
    Run<Cuda> run(some_options(OptimizerKind::muon, 1));
    run.step();
    const std::vector<std::int32_t> ids(24, 3);
    run.model.load(ids, ids, 2);
    run.model.training_pass();
    const auto recording = cuda().record([&] { run.model.training_pass(); });
    recording.start();
    BOOST_CHECK(std::isfinite(run.model.mean_loss()));
    const std::vector<Index> fresh{1, 2, 3, 4, 5};
    float number = 0;
    const Buffer<float, Cuda> to(1);
    const Index much = run.model.context().scratch_bytes() + 1;
    const auto refused = [](auto body) { KIMIK3_CHECK_REFUSED(cuda().record(body), "it asks for nothing new"); };
    refused([&] { cuda().on_device(std::span<const Index>(fresh)); });
    refused([&] { cuda().workspace<std::byte>(Scratch::sums, much); });
    refused([&] { copy_from_host(cuda(), std::span<const float>(&number, 1), to.view()); });
    refused([&] { run.model.mean_loss(); });
    BOOST_CHECK(std::isfinite(run.model.forward_backward(ids, ids, 2)));  // what was refused left nothing behind
}

BOOST_AUTO_TEST_CASE(b53_a_run_on_the_gpu_is_resumed_to_the_bit) {
    for (const bool recorded : {false, true}) {
        const TemporaryFolder folder;
        TrainingOptions options = some_options(OptimizerKind::muon, 2);
        options.recorded = recorded;
        Run<Cuda> whole(options), first(options), second(options, 99);
        const auto reports = steps_of(whole, 8);
        steps_of(first, 4);
        save_checkpoint(folder / "saved", first.model, &first.trainer);
        load_checkpoint(folder / "saved", second.trainer);
        BOOST_CHECK(second.everything() == first.everything());
        for (std::size_t step = 4; step < 8; ++step) BOOST_CHECK_EQUAL(second.step(), reports[step]);
        BOOST_CHECK(second.everything() == whole.everything());
    }
}

template <class From, class To>
void check_move() {
    const TemporaryFolder folder;
    const TrainingOptions options = some_options(OptimizerKind::muon, 1);
    Run<From> from(options);
    Run<To> to(options, 99);
    steps_of(from, 3);
    save_checkpoint(folder / "saved", from.model, &from.trainer);
    load_checkpoint(folder / "saved", to.trainer);
    BOOST_CHECK(to.everything() == from.everything());
    save_checkpoint(folder / "again", to.model, &to.trainer);
    for (const char* file : {"config.json", "model.safetensors", "training.safetensors"})
        BOOST_CHECK(get((folder / "again") + "/" + file) == get((folder / "saved") + "/" + file));
    const std::vector<std::int32_t> ids{1, 2, 3, 4, 5, 6, 7, 8};
    const double a = from.model.evaluate(ids, ids).loss, b = to.model.evaluate(ids, ids).loss;
    BOOST_CHECK_SMALL(a / b - 1, 1e-5);
    to.step();
    ModelOn<To> weights_alone(Run<To>::context(), 7);
    load_model(folder / "saved", weights_alone);
    BOOST_CHECK_EQUAL(weights_alone.evaluate(ids, ids).loss, b);
}
BOOST_AUTO_TEST_CASE(b53_a_run_moves_from_the_gpu_to_the_cpu) { check_move<Cuda, Cpu>(); }
BOOST_AUTO_TEST_CASE(b53_a_run_moves_from_the_cpu_to_the_gpu) { check_move<Cpu, Cuda>(); }

BOOST_AUTO_TEST_CASE(a_weight_that_is_not_finite_ends_the_step_by_name_and_changes_nothing) {
    for (const bool recorded : {false, true}) {
        TrainingOptions options = some_options(OptimizerKind::muon, 1);
        options.recorded = recorded;
        Run<Cuda> run(options);
        steps_of(run, 3);
        const ParameterInfo& tensor = run.model.parameters().front();
        const float broken[] = {std::numeric_limits<float>::quiet_NaN()};
        copy_from_host(cuda(), broken, VectorView<float>(run.model.weights().data + tensor.offset, 1));
        const std::string before = run.numbers(), text = refusal([&] { run.step(); });
        BOOST_CHECK_MESSAGE(text.starts_with("step 3: ") && contains(text, "the weight '" + tensor.name + "'"), text);
        BOOST_CHECK(run.numbers() == before);
    }
}

BOOST_AUTO_TEST_CASE(a_run_stays_on_its_gpu_whatever_gpu_is_current, *boost::unit_test::precondition(two_gpus)) {
    TrainingOptions options = some_options(OptimizerKind::muon, 2);
    options.recorded = true;
    Run<Cuda> first(options), second(options, 1, Context<Cuda>(1));
    KIMIK3_CUDA(cudaSetDevice(0));
    const std::vector<std::string> expected = steps_of(first, 6);
    auto found = std::async(std::launch::async, [&] { return steps_of(second, 6); });  // there GPU 0 is current
    BOOST_TEST((found.get() == expected));
    BOOST_TEST((second.numbers() == first.numbers()));
    KIMIK3_CUDA(cudaSetDevice(0));
    auto state = second.model.new_state(1);
    const std::vector<std::int32_t> tokens{1, 2, 3};
    for (int step = 0; step < 3; ++step) {
        KIMIK3_CUDA(cudaSetDevice(0));
        second.model.step(state, tokens);
        const auto copy = state;
        second.model.step(state, Tokens(tokens).first(1));
    }
    second.model.context().synchronise();
    KIMIK3_CUDA(cudaSetDevice(0));
}

BOOST_AUTO_TEST_SUITE_END()
