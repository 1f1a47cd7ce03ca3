// Training steps of k3_300m in bf16 on random tokens, as the Trainer makes them, recorded: milliseconds, tokens a
// second, memory, and the share of the measured rate of bf16 products that 6 operations a token and active parameter
// are.
//   train [--batch 16] [--seq 2048] [--steps 20] [--muon] [--recompute] [--profile] [--json FILE]
// --profile: also the milliseconds of each part of a recorded pass, by events between the parts.

#include <chrono>
#include <map>
#include <string_view>

#include "cuda/timing.cuh"
#include "kimik3/cuda.cuh"

namespace kimik3 {

/// The kind of layer that it names, with a mark before and after its passes.
template <class Kind>
struct Marked : Kind {};

class Marks {
public:
    /// From here on the time of what is being recorded belongs to the part.
    void set(const Context<Cuda>& ctx, const std::string& part) {
        cudaStreamCaptureStatus status;
        KIMIK3_CUDA(cudaStreamIsCapturing(ctx.stream(), &status));
        if (status != cudaStreamCaptureStatusActive) return;
        cudaEvent_t event;
        KIMIK3_CUDA(cudaEventCreate(&event));
        KIMIK3_CUDA(cudaEventRecordWithFlags(event, ctx.stream(), cudaEventRecordExternal));
        marks_.emplace_back(part, event);
    }
    /// Adds the milliseconds of the last run of the recording to the parts.
    void add_to(std::map<std::string, double>& parts) const {
        for (std::size_t m = 0; m + 1 < marks_.size(); ++m) {
            float ms = 0;
            KIMIK3_CUDA(cudaEventElapsedTime(&ms, marks_[m].second, marks_[m + 1].second));
            std::string part = marks_[m].first;
            // what follows the last forward and precedes the first backward
            if (part == "reads forward" && marks_[m + 1].first.ends_with("backward")) part = "head and output read";
            parts[part] += ms;
        }
    }
    static Marks& all() {
        static Marks marks;
        return marks;
    }

private:
    std::vector<std::pair<std::string, cudaEvent_t>> marks_;
};

template <class Kind>
constexpr const char* name_of_kind() {
    if constexpr (requires { Kind::implementation; }) return "KDA ";
    else if constexpr (requires { Kind::letter; }) return "MLA ";
    else return Kind::dense ? "dense " : "MoE ";
}

template <class Kind, class T>
struct LayerFor<Marked<Kind>, Cuda, T> : LayerFor<Kind, Cuda, T> {
    using Layer = LayerFor<Kind, Cuda, T>;

    template <class... Arguments>
    static void forward(const Context<Cuda>& ctx, Arguments&&... arguments) {
        Marks::all().set(ctx, std::string(name_of_kind<Kind>()) + "forward");
        Layer::forward(ctx, std::forward<Arguments>(arguments)...);
        Marks::all().set(ctx, "reads forward");
    }
    template <class... Arguments>
    static void backward(const Context<Cuda>& ctx, Arguments&&... arguments) {
        Marks::all().set(ctx, std::string(name_of_kind<Kind>()) + "backward");
        Layer::backward(ctx, std::forward<Arguments>(arguments)...);
        Marks::all().set(ctx, "reads backward");
    }
};

template <class... Blocks>
LayerList<DecoderBlock<Marked<typename Blocks::Attention>, Marked<typename Blocks::FeedForward>>...> marked(
    LayerList<Blocks...>);

}  // namespace kimik3

using namespace kimik3;

namespace {

struct Arguments {
    Index batch = 16, seq = 2048;
    int steps = 20;
    bool muon = false, recompute = false, profile = false;
    const char* json = nullptr;
};

std::vector<std::int32_t> random_ids(Index count, Index vocabulary) {
    Philox random(7);
    std::vector<std::int32_t> ids(to_size(count));
    for (auto& id : ids) id = static_cast<std::int32_t>(random.below(static_cast<std::uint64_t>(vocabulary)));
    return ids;
}

Index used_bytes() {
    std::size_t free = 0, total = 0;
    KIMIK3_CUDA(cudaMemGetInfo(&free, &total));
    return static_cast<Index>(total - free);
}

constexpr double gib = 1024.0 * 1024.0 * 1024.0;

template <ModelConfig config>
void measure(const Arguments& a) {
    using Model = KimiK3<config, Cuda, bf16>;
    Model model(bench::context(), 1);
    if (a.recompute) model.keep(Keep::sums);
    std::vector<Shard> shards;
    shards.emplace_back("random", random_ids(a.seq * a.batch * 8 + 1, config.vocab_size), config.vocab_size);
    TrainingOptions options;
    options.optimizer.kind = a.muon ? OptimizerKind::muon : OptimizerKind::adamw;
    options.schedule = {.kind = ScheduleKind::constant, .max_lr = 3e-4, .warmup_steps = 0, .total_steps = 1000};
    Trainer<Model> trainer(model, TokenLoader(TokenWindows(std::move(shards), a.seq), a.batch, Order::shuffled, 1),
                           options);
    std::vector<double> times;
    double first_loss = 0, loss = 0;
    for (int step = 0; step < a.steps + 4; ++step) {
        const auto start = std::chrono::steady_clock::now();
        loss = trainer.step().loss;
        if (step == 0) first_loss = loss;
        const double ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
        if (step >= 4) times.push_back(ms);
    }
    std::ranges::sort(times);
    const double ms = times[times.size() / 2], tokens = static_cast<double>(a.batch * a.seq);
    const double active = static_cast<double>(count_parameters(config, model.parameters()).active),
                 floor_ms = 6 * active * tokens / 790e12 * 1e3;
    std::printf("%s, %s, %d x %d tokens: %.2f ms a step (%.2f to %.2f), %.0f tokens/s, %.1f %% of %.0f TFLOP/s by 6N\n",
                bench::context().name().c_str(), a.muon ? "Muon" : "AdamW", static_cast<int>(a.batch),
                static_cast<int>(a.seq), ms, times.front(), times.back(), tokens / ms * 1e3,
                100 * floor_ms / ms, 790.0);
    std::printf("memory: %.2f GiB in use; activations %.2f, scratch %.2f; loss %.4f -> %.4f\n",
                static_cast<double>(used_bytes()) / gib,
                static_cast<double>(model.training_bytes(a.batch, a.seq)) / gib,
                static_cast<double>(model.context().scratch_bytes()) / gib, first_loss, loss);
    if (std::FILE* file = a.json == nullptr ? nullptr : std::fopen(a.json, "w")) {
        std::fprintf(file, "{\"name\": \"train step, %s\", \"ms\": %.6f, \"floor_ms\": %.6f}\n",
                     a.muon ? "Muon" : "AdamW", ms, floor_ms);
        std::fclose(file);
    }
}

template <ModelConfig config>
void profile(const Arguments& a) {
    using Model = KimiK3<config, Cuda, bf16, decltype(marked(schedule_of<config>{}))>;
    const Context<Cuda>& ctx = bench::context();
    Model model(ctx, 1);
    if (a.recompute) model.keep(Keep::sums);
    const auto ids = random_ids(a.batch * a.seq + 1, config.vocab_size);
    model.load(Tokens(ids).first(ids.size() - 1), Tokens(ids).subspan(1), a.batch);
    model.training_pass();
    const auto recording = ctx.record([&] {
        Marks::all().set(ctx, "embedding and first read");
        model.training_pass();
        Marks::all().set(ctx, "end");
    });
    std::map<std::string, double> parts;
    constexpr int runs = 10;
    for (int run = -2; run < runs; ++run) {
        recording.start();
        ctx.synchronise();
        if (run >= 0) Marks::all().add_to(parts);
    }
    double sum = 0;
    for (const auto& [part, ms] : parts) std::printf("%-26s %8.3f ms\n", part.c_str(), ms / runs), sum += ms / runs;
    std::printf("%-26s %8.3f ms\n", "forward and backward", sum);
}

}  // namespace

int main(int argc, char** argv) {
    Arguments a;
    for (int at = 1; at < argc; ++at) {
        const std::string_view name = argv[at];
        const auto number = [&] { return at + 1 < argc ? std::atoi(argv[++at]) : 0; };
        if (name == "--batch") a.batch = number();
        else if (name == "--seq") a.seq = number();
        else if (name == "--steps") a.steps = number();
        else if (name == "--muon") a.muon = true;
        else if (name == "--recompute") a.recompute = true;
        else if (name == "--profile") a.profile = true;
        else if (name == "--json" && at + 1 < argc) a.json = argv[++at];
        else return std::fprintf(stderr, "train: unknown argument %s\n", argv[at]), 2;
    }
    try {
        measure<presets::k3_300m>(a);
        if (a.profile) profile<presets::k3_300m>(a);
    } catch (const Error& error) {
        return std::fprintf(stderr, "train: %s\n", error.what()), 1;
    }
}
