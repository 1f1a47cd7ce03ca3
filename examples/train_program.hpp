#pragma once
// The body of kimik3-train for one preset: data and model, the table, the loop with its log, checkpoints and report.

#include <sys/resource.h>

#include <algorithm>
#include <numeric>

#include "device.hpp"
#include "kimik3/io/checkpoint.hpp"
#include "kimik3/io/report.hpp"
#include "kimik3/text/tokenizer_files.hpp"
#include "terminal.hpp"

namespace kimik3 {

/// The shards of one split of a data folder, of which one at least holds a sequence of seq tokens. Each is a file that
/// stays open, so the process takes all that it may open.
inline std::vector<Shard> open_shards(const std::filesystem::path& data, std::string_view split, Index vocabulary,
                                      Index seq) {
    rlimit files{};
    if (::getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        ::setrlimit(RLIMIT_NOFILE, &files);
    }
    std::vector<Shard> shards;
    Index longest = 0;
    for (const auto& path : list_shards(data, split)) {
        shards.emplace_back(path, vocabulary);
        longest = (std::max)(longest, shards.back().tokens());
    }
    require(longest > seq,
            "--seq: a sequence of {} tokens and its target need a shard of {}, the longest {} shard in '{}' has {}; "
            "take a smaller --seq, or prepare more text",
            seq, seq + 1, split, data.string(), longest);
    return shards;
}

inline Index count_tokens(const std::vector<Shard>& shards) {
    Index tokens = 0;
    for (const Shard& shard : shards) tokens += shard.tokens();
    return tokens;
}

template <class Model>
class TrainProgram {
public:
    explicit TrainProgram(const TrainArguments& arguments)
        : a_(checked(arguments)), seq_(a_.seq > 0 ? a_.seq : (std::min)(Index{256}, Index{Model::config.max_seq_len})),
          model_(context_for<typename Model::BackendTag>(a_.threads), a_.seed), trainer_(model_, loader(), options()) {
        if (a_.recompute) model_.keep(Keep::sums);
        scratch_ = scratch_of_step(model_, model_.context(), a_.batch, seq_);
        if (!find_shards(a_.data, "val").empty()) {  // a folder without shards of it trains all the same
            auto shards = open_shards(a_.data, "val", Model::config.vocab_size, seq_);
            val_tokens_ = count_tokens(shards);
            validation_.emplace(std::move(shards), seq_);
        }
        read_probe_text();
        for (const char* name : {"tokenizer.json", "tokenizer_config.json"})
            if (std::filesystem::exists(a_.data / name)) extra_files_.push_back(a_.data / name);
    }

    bool run() {
        if (a_.resume) resume();
        std::error_code problem;
        std::filesystem::create_directories(a_.out, problem);
        require(!problem, "--out: '{}' cannot be made a folder: {}", a_.out.string(), problem.message());
        print_table(facts());
        MetricsFile metrics(metrics_path(),
                            {"loss", "val_loss", "lr", "gradient_norm", "tokens", "tokens_per_second"},
                            trainer_.position().step);
        begun_at_ = trainer_.position().step;
        if (a_.resume) best_ = best_in_metrics();
        catch_interruption();
        std::optional<double> first_loss;
        double all_seconds = 0, all_tokens = 0;
        bool end = false, stopped = false;
        while (!end && !stopped) {
            Stopwatch clock;
            const TrainingStep step = trainer_.step();
            const double seconds = clock.seconds();
            if (!first_loss) first_loss = smooth_ = step.loss;
            smooth_ += 0.1 * (step.loss - smooth_);
            seconds_ += seconds, all_seconds += seconds;
            tokens_ += step.tokens, all_tokens += static_cast<double>(step.tokens);
            end = step.step + 1 == a_.steps;
            show(step, end);
            std::optional<double> val_loss;
            if (validation_ && (end || due(step.step, a_.eval_every.value_or(100)))) val_loss = validate(step.step);
            const std::optional<double> row[] = {
                step.loss, val_loss, step.lr, step.gradient_norm, static_cast<double>(trainer_.position().tokens),
                static_cast<double>(step.tokens) / seconds};
            metrics.write(step.step, row);
            stopped = interrupted != 0;
            const bool drawn = end || due(step.step, a_.report_every.value_or((std::max)(Index{1}, a_.steps / 50)));
            if (drawn) report(step.step, true);  // a run that goes on from this step's checkpoint does not do it again
            if (end || stopped || due(step.step, a_.save_every)) save();
            if (stopped && !drawn) report(step.step, false);
        }
        status_.close();
        if (!end) fmt::print("interrupted after step {}: go on with --resume\n", trainer_.position().step);
        fmt::print("checkpoint {}\n", checkpoint_folder(a_.out, trainer_.position().step).string());
        fmt::print("report {}\n", report_path().string());
        fmt::print("loss {:.3f} -> {:.3f}, {:.0f} tokens/s\n", *first_loss, smooth_, all_tokens / all_seconds);
        return end;
    }

private:
    /// Refuses, before a model is built, what would not work.
    static const TrainArguments& checked(const TrainArguments& a) {
        require(std::filesystem::is_directory(a.data),
                "--data: '{}' is not a folder; kimik3-prepare makes one from text", a.data.string());
        const bool begun = !checkpoint_folders(a.out).empty();
        require(a.resume || !begun, "--out: '{}' already holds a run; choose another folder, or go on with --resume",
                a.out.string());
        require(!a.resume || begun, "--resume: '{}' holds no checkpoint; leave --resume out to begin", a.out.string());
        require((a.eval_every.value_or(0) == 0 && !a.eval_windows) || !find_shards(a.data, "val").empty(),
                "--eval-every, --eval-windows: '{}' has no shard val_*.bin to validate on; leave them out, or prepare "
                "with a --val-fraction above 0", a.data.string());
        const Index vocabulary = Model::config.vocab_size, longest = Model::config.max_seq_len;
        require(a.seq <= longest, "--seq: {} takes sequences of at most {} tokens, got {}", a.preset, longest, a.seq);
        if (!std::filesystem::exists(tokenizer_of(a))) return a;
        const Index tokens = load_tokenizer(tokenizer_of(a).string()).vocab_size();
        constexpr Index least = 257;  // tokens that kimik3-prepare learns
        require(tokens <= vocabulary, "--data: '{}' has {} tokens, the preset {} has room for {}; {}",
                tokenizer_of(a).string(), tokens, a.preset, vocabulary,
                vocabulary >= least ? fmt::format("kimik3-prepare --tokenizer train:{} fits", vocabulary)
                                    : "take a preset with room for more");
        return a;
    }

    static std::filesystem::path tokenizer_of(const TrainArguments& a) { return a.data / "tokenizer.json"; }

    TokenLoader loader() {
        auto shards = open_shards(a_.data, "train", Model::config.vocab_size, seq_);
        train_tokens_ = count_tokens(shards);
        return TokenLoader(TokenWindows(std::move(shards), seq_), a_.batch,
                           a_.sequential ? Order::sequential : Order::shuffled, a_.seed);
    }

    TrainingOptions options() const {
        TrainingOptions o;
        o.accumulation = a_.accumulation;
        o.optimizer.kind = optimizer_from_name(a_.optimizer);
        o.optimizer.weight_decay = a_.weight_decay;
        o.optimizer.clip_norm = a_.clip;
        const ScheduleKind kind = schedule_from_name(a_.schedule);
        o.schedule = {kind, a_.lr, a_.min_lr_ratio, a_.warmup.value_or(a_.steps / 50), a_.steps,
                      a_.decay_steps.value_or(kind == ScheduleKind::wsd ? a_.steps / 5 : 0)};
        o.spike_guard.factor = a_.spike_factor;
        o.recorded = !a_.eager;
        return o;
    }

    void resume() {
        const std::filesystem::path newest = checkpoint_folders(a_.out).back();
        load_checkpoint(newest, trainer_);
        const Index taken = trainer_.position().step;
        require(taken < a_.steps, "--resume: the run has taken {} steps already, --steps is {}", taken, a_.steps);
        fmt::print("resuming from {}\n", newest.string());
    }

    std::filesystem::path metrics_path() const { return a_.out / "metrics.csv"; }
    std::filesystem::path report_path() const { return a_.out / "report.html"; }

    /// The lowest validation loss of the steps before the first to come: infinity where there is none.
    double best_in_metrics() const {
        double best = std::numeric_limits<double>::infinity();
        for (const double loss : read_metrics(metrics_path())["val_loss"])
            if (loss < best) best = loss;
        return best;
    }

    /// The text that the report looks at, the same at every step: the beginning of the validation text, or else of the
    /// training text; 4,096 tokens where sequences are shorter, so that looking takes little beside training.
    void read_probe_text() {
        const Index most = (std::max)(Index{1}, 4096 / seq_);
        const auto read = [&](const TokenWindows& windows) {
            std::vector<Index> first(to_size((std::min)({a_.batch, most, windows.count()})));
            std::iota(first.begin(), first.end(), Index{0});
            windows.read(first, probe_batch_);
        };
        if (validation_) read(*validation_);
        else read(TokenWindows(open_shards(a_.data, "train", Model::config.vocab_size, seq_), seq_));
        const char* split = validation_ ? "validation" : "training";
        probe_text_ = fmt::format("the first {} tokens of the {} text", probe_batch_.tokens.size(), split);
    }

    std::vector<std::pair<std::string, std::string>> facts() const {
        const ParameterCount count = count_parameters(Model::config, model_.parameters());
        const Index state = 3 * model_.weights().size * static_cast<Index>(sizeof(typename Model::A));
        const Index activations = model_.training_bytes(a_.batch, seq_);
        const std::string scratch =
            scratch_ == 0 ? "" : ", " + shown_amount(static_cast<double>(scratch_)) + "B scratch";
        const Index step_tokens = a_.batch * seq_ * a_.accumulation;
        const double flops = training_flops_per_token(Model::config, model_.parameters(), seq_);
        const auto& layers = Model::config.layer_types;
        return {
            {"preset", a_.preset},
            {"layers", fmt::format("{}  (K: KDA, M: Gated MLA)", std::string(layers.letters, to_size(layers.size())))},
            {"parameters", fmt::format("{}, {} active for a token", shown_amount(static_cast<double>(count.total)),
                                       shown_amount(static_cast<double>(count.active)))},
            {"data", fmt::format("{} training tokens, {} for validation", train_tokens_, val_tokens_)},
            {"a step", fmt::format("{} x {} x {} = {} tokens", a_.accumulation, a_.batch, seq_, step_tokens)},
            {"steps", fmt::format("{}, {:.2f} epochs", a_.steps,
                                  static_cast<double>(a_.steps) * static_cast<double>(step_tokens) /
                                      static_cast<double>(train_tokens_))},
            {"optimizer", fmt::format("{}, lr {} {}, decay {}, clip {}", a_.optimizer, a_.lr, a_.schedule,
                                      a_.weight_decay, a_.clip)},
            {"work", fmt::format("{}FLOP a token", shown_amount(flops))},
            {"memory", fmt::format("{}B weights, gradients and moments, {}B activations{}",
                                   shown_amount(static_cast<double>(state)),
                                   shown_amount(static_cast<double>(activations)), scratch)},
            {"device", description(model_.context()) + (Model::copies_weights ? ", bf16" : "")},
        };
    }

    static bool due(Index step, Index every) { return every > 0 && (step + 1) % every == 0; }

    void show(const TrainingStep& step, bool end) {
        if (!status_.on_terminal() && !end && step.step != 0 && !due(step.step, a_.log_every)) return;
        const double rate = static_cast<double>(tokens_) / seconds_;
        const double left = static_cast<double>(a_.steps - step.step - 1) * static_cast<double>(step.tokens) / rate;
        status_.show(fmt::format("step {:>6}/{}  loss {:.4f}  lr {:.2e}  norm {:.2f}  {:.0f} tokens/s  {} left{}",
                                 step.step + 1, a_.steps, smooth_, step.lr, step.gradient_norm, rate, shown_time(left),
                                 step.applied ? "" : "  (spike: skipped)"));
        if (seconds_ > 30) seconds_ *= 0.5, tokens_ /= 2;
    }

    double validate(Index step) {
        const Index most = a_.eval_windows.value_or(64), windows = most > 0 ? most : validation_->count();
        const Loss loss = evaluate(model_, *validation_, a_.batch, windows);
        status_.close();
        fmt::print("step {:>6}/{}  validation loss {:.4f} over {} tokens\n", step + 1, a_.steps, loss.loss,
                   loss.counted);
        if (loss.loss < best_) {
            best_ = loss.loss;
            save_model(a_.out / "best", model_, extra_files_);
        }
        return loss.loss;
    }

    void save() {
        save_checkpoint(checkpoint_folder(a_.out, trainer_.position().step), model_, &trainer_, extra_files_);
        auto folders = checkpoint_folders(a_.out);
        for (std::size_t f = 0; f + to_size(a_.keep) < folders.size(); ++f) std::filesystem::remove_all(folders[f]);
    }

    /// Looks into the model and draws report.html; kept: whether the expert load goes down in expert_load.csv.
    void report(Index step, bool kept) {
        Report page = model_report(model_, a_.out.string());
        Probe probe;
        probe.add(look_inside(model_, probe_batch_.tokens, probe_batch_.batch));
        if (!probe.load().empty()) {
            const std::filesystem::path path = a_.out / "expert_load.csv";
            if (!loads_) loads_.emplace(path, load_columns(probe), begun_at_);
            if (kept) loads_->write(step, load_row(probe));
            page.load_history = read_metrics(path);
        }
        page.probe = std::move(probe);
        page.text = probe_text_;
        page.curves = read_metrics(metrics_path());
        double validation = std::numeric_limits<double>::quiet_NaN();
        for (const double loss : (*page.curves)["val_loss"])
            if (!std::isnan(loss)) validation = loss;
        page.headline = {{"step", fmt::format("{} of {}", step + 1, a_.steps)},
                         {"loss, running mean", fmt::format("{:.3f}", smooth_)},
                         {"validation loss", std::isnan(validation) ? "-" : fmt::format("{:.3f}", validation)},
                         {"tokens/s", fmt::format("{:.0f}", (*page.curves)["tokens_per_second"].back())}};
        page.facts = facts();
        page.command = a_.command;
        Index moments = 0;
        for (const auto& tensor : trainer_.optimizer().state()) moments += tensor.values.size;
        page.memory_bytes.emplace_back("optimizer", moments * static_cast<Index>(sizeof(typename Model::A)));
        page.memory_bytes.emplace_back("activations", model_.training_bytes(a_.batch, seq_));
        write_report(report_path(), page);
    }

    TrainArguments a_;
    Index seq_;
    Index train_tokens_ = 0, val_tokens_ = 0, scratch_ = 0;
    Model model_;
    Trainer<Model> trainer_;
    std::optional<TokenWindows> validation_;
    std::vector<std::filesystem::path> extra_files_;
    StatusLine status_;
    Batch probe_batch_;
    std::string probe_text_;
    std::optional<MetricsFile> loads_;
    Index begun_at_ = 0;
    double smooth_ = 0, seconds_ = 0, best_ = std::numeric_limits<double>::infinity();
    Index tokens_ = 0;
};

template <ModelConfig config, Device device, class Number>
bool ModelPrograms<config, device, Number>::train(const TrainArguments& arguments) {
    return TrainProgram<KimiK3<config, BackendOf<device>, Number>>(arguments).run();
}

}  // namespace kimik3
