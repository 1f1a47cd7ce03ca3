#pragma once
// The body of kimik3-train for one preset: data and model, the table, the loop with its log and checkpoints.

#include <algorithm>
#include <fstream>

#include "kimik3/io/checkpoint.hpp"
#include "kimik3/kimik3.hpp"
#include "kimik3/model/summary.hpp"
#include "kimik3/train/metrics.hpp"
#include "model_programs.hpp"
#include "terminal.hpp"

namespace kimik3 {

/// The shards of one split of a data folder.
inline std::vector<Shard> open_shards(const std::filesystem::path& data, std::string_view split, Index vocabulary) {
    std::vector<Shard> shards;
    for (const auto& path : list_shards(data, split)) shards.emplace_back(path, vocabulary);
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
        : a_(arguments), seq_(a_.seq > 0 ? a_.seq : (std::min)(Index{256}, Index{Model::config.max_seq_len})),
          model_(Context<Cpu>(a_.threads), a_.seed), trainer_(model_, loader(), options()) {
        check();
        if (a_.recompute) model_.keep(Keep::sums);
        if (has_validation()) {
            auto shards = open_shards(a_.data, "val", Model::config.vocab_size);
            val_tokens_ = count_tokens(shards);
            validation_.emplace(std::move(shards), seq_);
        }
        const std::filesystem::path tokenizer = a_.data / "tokenizer.json";
        if (std::filesystem::exists(tokenizer)) extra_files_.push_back(tokenizer);
    }

    bool run() {
        if (a_.resume) resume();
        else require(checkpoint_folders(a_.out).empty(), "'{}' already holds a run: choose another --out, or --resume it", a_.out.string());
        std::filesystem::create_directories(a_.out);
        print_start();
        MetricsFile metrics(a_.out / "metrics.csv", {"loss", "val_loss", "lr", "gradient_norm", "tokens", "tokens_per_second"},
                            trainer_.position().step);
        catch_interruption();
        Stopwatch clock;
        double first_loss = 0, last_loss = 0;
        Index done = 0;
        const Index begin = trainer_.position().step;
        while (trainer_.position().step < a_.steps && interrupted == 0) {
            Stopwatch step_clock;
            const TrainingStep step = trainer_.step();
            const double seconds = step_clock.seconds();
            if (done == 0) first_loss = smooth_ = step.loss;
            smooth_ += 0.1 * (step.loss - smooth_);
            last_loss = smooth_;
            seconds_ += seconds;
            tokens_ += step.tokens;
            ++done;
            const bool end = step.step + 1 == a_.steps;
            show(step, end);
            std::optional<double> val_loss;
            if (validation_ && (end || due(step.step, a_.eval_every))) val_loss = validate(step.step);
            metrics.write(step.step, std::vector<std::optional<double>>{step.loss, val_loss, step.lr, step.gradient_norm,
                                                                        static_cast<double>(trainer_.position().tokens),
                                                                        static_cast<double>(step.tokens) / seconds});
            if (end || due(step.step, a_.save_every)) save();
        }
        if (interrupted != 0) save();
        status_.close();
        finish(begin, done, first_loss, last_loss, clock.seconds());
        return interrupted == 0;
    }

private:
    TokenLoader loader() {
        auto shards = open_shards(a_.data, "train", Model::config.vocab_size);
        train_tokens_ = count_tokens(shards);
        return TokenLoader(TokenWindows(std::move(shards), seq_), a_.batch, a_.sequential ? Order::sequential : Order::shuffled, a_.seed);
    }

    TrainingOptions options() const {
        TrainingOptions o;
        o.accumulation = a_.accumulation;
        o.optimizer.kind = optimizer_from_name(a_.optimizer);
        o.optimizer.weight_decay = a_.weight_decay;
        o.optimizer.clip_norm = a_.clip;
        o.schedule = {schedule_from_name(a_.schedule), a_.lr, a_.min_lr_ratio, a_.warmup.value_or(a_.steps / 50), a_.steps, a_.decay_steps};
        o.spike_guard.factor = a_.spike_factor;
        return o;
    }

    void check() const {
        require(a_.steps >= 1, "--steps is 1 or more, got {}", a_.steps);
        require(a_.keep >= 1, "--keep is 1 or more, got {}", a_.keep);
        require(seq_ <= Model::config.max_seq_len, "--seq: the preset takes sequences of at most {} tokens, got {}",
                Model::config.max_seq_len, seq_);
    }

    void resume() {
        const auto folders = checkpoint_folders(a_.out);
        require(!folders.empty(), "--resume: '{}' holds no checkpoint", a_.out.string());
        load_checkpoint(folders.back(), trainer_);
        require(trainer_.position().step < a_.steps, "--resume: the run has taken all of its {} steps", a_.steps);
        fmt::print("resuming from {}\n", folders.back().string());
    }

    void print_start() const {
        const ParameterCount count = count_parameters(Model::config, model_.parameters());
        const Index state = 3 * model_.weights().size * static_cast<Index>(sizeof(typename Model::A));
        const Index activations = model_.training_bytes(a_.batch, seq_), step_tokens = a_.batch * seq_ * a_.accumulation;
        const double flops = training_flops_per_token(Model::config, model_.parameters(), seq_);
        const auto& layers = Model::config.layer_types;
        print_table({
            {"preset", a_.preset},
            {"layers", fmt::format("{}  (K: KDA, M: Gated MLA)", std::string(layers.letters, to_size(layers.size())))},
            {"parameters", fmt::format("{}, {} active for a token", shown_amount(static_cast<double>(count.total)),
                                       shown_amount(static_cast<double>(count.active)))},
            {"data", fmt::format("{} training tokens, {} for validation", shown_amount(static_cast<double>(train_tokens_)),
                                 shown_amount(static_cast<double>(val_tokens_)))},
            {"a step", fmt::format("{} x {} x {} = {} tokens", a_.accumulation, a_.batch, seq_, step_tokens)},
            {"steps", fmt::format("{}, {} epochs", a_.steps,
                                  fmt::format("{:.2f}", static_cast<double>(a_.steps * step_tokens) / static_cast<double>(train_tokens_)))},
            {"optimizer", fmt::format("{}, lr {} {}, decay {}, clip {}", a_.optimizer, a_.lr, a_.schedule, a_.weight_decay, a_.clip)},
            {"work", fmt::format("{}FLOP a token", shown_amount(flops))},
            {"memory", fmt::format("{}B weights, gradients and moments, {}B activations", shown_amount(static_cast<double>(state)),
                                   shown_amount(static_cast<double>(activations)))},
            {"threads", fmt::format("{}", model_.context().threads())},
        });
    }

    /// Validation is optional: a folder without shards of it trains all the same.
    bool has_validation() const {
        for (const auto& entry : std::filesystem::directory_iterator(a_.data))
            if (entry.path().extension() == ".bin" && entry.path().filename().string().find("val") != std::string::npos) return true;
        return false;
    }

    static bool due(Index step, Index every) { return every > 0 && (step + 1) % every == 0; }

    void show(const TrainingStep& step, bool end) {
        if (!status_.on_terminal() && !end && step.step != 0 && !due(step.step, a_.log_every)) return;
        const double rate = static_cast<double>(tokens_) / seconds_;
        const double left = static_cast<double>(a_.steps - step.step - 1) * static_cast<double>(step.tokens) / rate;
        status_.show(fmt::format("step {:>6}/{}  loss {:.4f}  lr {:.2e}  norm {:.2f}  {:.0f} tokens/s  {} left{}", step.step + 1, a_.steps,
                                 smooth_, step.lr, step.gradient_norm, rate, shown_time(left), step.applied ? "" : "  (spike: skipped)"));
        if (seconds_ > 30) seconds_ *= 0.5, tokens_ /= 2;
    }

    double validate(Index step) {
        const Loss loss = evaluate(model_, *validation_, a_.batch, a_.eval_windows > 0 ? a_.eval_windows : validation_->count());
        status_.close();
        fmt::print("step {:>6}/{}  validation loss {:.4f} over {} tokens\n", step + 1, a_.steps, loss.loss, loss.counted);
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

    void finish(Index begin, Index done, double first_loss, double last_loss, double seconds) const {
        if (interrupted != 0) fmt::print("interrupted after step {}: go on with --resume\n", begin + done);
        fmt::print("checkpoint {}\n", checkpoint_folder(a_.out, trainer_.position().step).string());
        const double tokens = static_cast<double>(done * a_.batch * seq_ * a_.accumulation);
        fmt::print("loss {:.3f} -> {:.3f}, {:.0f} tokens/s\n", first_loss, last_loss, tokens / seconds);
    }

    TrainArguments a_;
    Index seq_;
    Index train_tokens_ = 0, val_tokens_ = 0;
    Model model_;
    Trainer<Model> trainer_;
    std::optional<TokenWindows> validation_;
    std::vector<std::filesystem::path> extra_files_;
    StatusLine status_;
    double smooth_ = 0, seconds_ = 0, best_ = std::numeric_limits<double>::infinity();
    Index tokens_ = 0;
};

template <ModelConfig config>
bool ModelPrograms<config>::train(const TrainArguments& arguments) {
    return TrainProgram<KimiK3<config>>(arguments).run();
}

}  // namespace kimik3
