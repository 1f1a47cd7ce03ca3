#pragma once
// The body of kimik3-eval for one preset: loss, perplexity and bits per byte of texts, and multiple choice.

#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "choice_questions.hpp"
#include "kimik3/generate/score.hpp"
#include "kimik3/io/checkpoint.hpp"
#include "kimik3/kimik3.hpp"
#include "open_tokenizer.hpp"
#include "terminal.hpp"

namespace kimik3 {

/// The ids of context and ending as one text. The ending's tokens are those from the first on that the context alone
/// does not have, so that a token across the border is the ending's. A space stands between where neither brings one.
inline Ending split_ending(const Tokenizer& tokenizer, Specials specials, const std::string& context,
                           const std::string& ending) {
    const std::string_view spaces = " \n\t\r";
    const auto is_space = [spaces](char letter) { return spaces.find(letter) != std::string_view::npos; };
    const bool apart = context.empty() || is_space(context.back()) || is_space(ending.front());
    const std::vector<std::int32_t> before = tokenizer.encode(context, specials),
                                    whole = tokenizer.encode(context + (apart ? "" : " ") + ending, specials);
    const auto border = std::ranges::mismatch(before, whole).in2;
    return {{whole.begin(), border}, {border, whole.end()}};
}

template <class Model>
class EvalProgram {
public:
    explicit EvalProgram(const EvalArguments& arguments)
        : a_(arguments), tokenizer_(find_tokenizer(a_, Model::config.vocab_size)), model_(Context<Cpu>(a_.threads)) {
        load_model(find_checkpoint(a_.checkpoint), model_);
        if (tokenizer_) begin_id_ = begin_of_text(*tokenizer_);
        options_.window = a_.window > 0 ? a_.window : (std::min)(Index{256}, Index{Model::config.max_seq_len});
        options_.stride = a_.stride > 0 ? a_.stride : (std::max)(Index{1}, options_.window / 2);
        options_.batch = a_.batch;
        options_.begin_id = begin_id_;
        result_["checkpoint"] = find_checkpoint(a_.checkpoint).string();
    }

    void run() {
        score_texts();
        if (!a_.choices.empty()) score_choices();
        if (a_.json) fmt::print("{}\n", result_.dump(2, ' ', false, Json::error_handler_t::replace));
        finish_output();
    }

private:
    using Json = nlohmann::ordered_json;
    using Ids = std::vector<std::int32_t>;

    /// bytes: of the tokens that were counted, where a tokenizer tells.
    struct Scored {
        TextScore score{};
        std::optional<Index> bytes = 0;
    };

    void score_texts() {
        Scored all;
        Index texts = 0;
        const auto add = [&](const std::string& name, const Scored& scored) {
            all.score += scored.score;
            if (all.bytes && scored.bytes) *all.bytes += *scored.bytes;
            else all.bytes.reset();
            show(name, scored);
            result_["texts"].push_back(json_of(name, scored));
            ++texts;
        };
        if (!a_.texts.empty()) {
            result_["window"] = options_.window;
            result_["stride"] = options_.stride;
        }
        for (const std::filesystem::path& path : a_.texts) {
            if (std::filesystem::is_directory(path)) {
                for (const auto& shard : list_shards(path, "val")) add(shard.string(), score_shard(shard));
            } else {
                add(path.string(), path.extension() == ".bin" ? score_shard(path) : score_file(path));
            }
        }
        if (texts > 1) {
            show("all", all);
            result_["all"] = json_of("all", all);
        }
    }

    Scored score_shard(const std::filesystem::path& path) {
        const Shard shard(path, Model::config.vocab_size);
        return score_tokens(shard);
    }

    Scored score_file(const std::filesystem::path& path) {
        const std::string text = kimik3::read_text_file(path.string(), Index{1} << 31);
        const Ids ids = need_tokenizer().encode(text, specials_of(a_));
        return score_tokens(Shard(path.string(), ids, Model::config.vocab_size));
    }

    Scored score_tokens(const Shard& shard) {
        Scored scored;
        scored.score = score_text(model_, shard, options_);
        require(scored.score.tokens > 0, "{}: there is no token to count: it has {}, and the first counts only where "
                "the tokenizer has a token that begins or ends texts", shard.name(), shard.tokens());
        scored.bytes = bytes_of(shard, begin_id_ ? 0 : 1);
        return scored;
    }

    /// Bytes of text in the tokens from one on; special tokens stand for none.
    std::optional<Index> bytes_of(const Shard& shard, Index first) const {
        if (!tokenizer_) return {};
        Index bytes = 0;
        Ids ids;
        for (; first < shard.tokens(); first += static_cast<Index>(ids.size())) {
            ids.resize(to_size((std::min)(Index{1} << 16, shard.tokens() - first)));
            shard.read(first, ids);
            for (const std::int32_t id : ids)
                if (!tokenizer_->is_special(id)) bytes += static_cast<Index>(tokenizer_->token_bytes(id).size());
        }
        return bytes;
    }

    void show(const std::string& name, const Scored& scored) const {
        if (a_.json) return;
        const TextScore& score = scored.score;
        fmt::print("{}\n", name);
        print_table({{"tokens", fmt::format("{}", score.tokens)},
                     {"loss", fmt::format("{:.4f} nats a token", score.loss())},
                     {"perplexity", fmt::format("{:.3f}", score.perplexity())},
                     {"bits per byte", scored.bytes && *scored.bytes > 0
                          ? fmt::format("{:.4f} over {} bytes", score.bits_per_byte(*scored.bytes), *scored.bytes)
                          : "not known without a tokenizer"}});
    }

    static Json json_of(const std::string& name, const Scored& scored) {
        const bool bytes = scored.bytes && *scored.bytes > 0;
        return {{"name", name},
                {"tokens", scored.score.tokens},
                {"loss", scored.score.loss()},
                {"perplexity", scored.score.perplexity()},
                {"bytes", bytes ? Json(*scored.bytes) : Json(nullptr)},
                {"bits_per_byte", bytes ? Json(scored.score.bits_per_byte(*scored.bytes)) : Json(nullptr)}};
    }

    const Tokenizer& need_tokenizer() const {
        if (!tokenizer_) open_tokenizer(a_, Model::config.vocab_size);  // says what is missing
        return *tokenizer_;
    }

    /// The endings of a question as ids. A context that is too long loses its beginning.
    std::vector<Ending> endings_of(const ChoiceQuestion& question) {
        std::vector<Ending> endings;
        bool cut = false;
        for (const std::string& text : question.endings) {
            Ending each = split_ending(need_tokenizer(), specials_of(a_), question.context, text);
            const Index room = Model::config.max_seq_len + 1 - static_cast<Index>(each.ending.size());
            require(!each.ending.empty(), "{}:{}: an ending has at least one token, '{}' has none", a_.choices.string(),
                    question.line, text.substr(0, 80));
            require(room >= 1, "{}:{}: an ending has at most {} tokens, this one has {}", a_.choices.string(),
                    question.line, Model::config.max_seq_len, each.ending.size());
            if (begin_id_) each.context.insert(each.context.begin(), *begin_id_);
            require(!each.context.empty(), "{}:{}: an empty context needs a tokenizer with a token that begins or ends "
                    "texts", a_.choices.string(), question.line);
            const Index surplus = static_cast<Index>(each.context.size()) - room;
            if (surplus > 0) each.context.erase(each.context.begin(), each.context.begin() + surplus), cut = true;
            endings.push_back(std::move(each));
        }
        cut_ += cut ? 1 : 0;
        return endings;
    }

    void score_choices() {
        const std::vector<ChoiceQuestion> questions = read_questions(a_.choices);
        std::vector<Ending> endings;
        for (const ChoiceQuestion& question : questions)
            for (Ending& each : endings_of(question)) endings.push_back(std::move(each));
        const std::vector<double> scores = score_endings(model_, endings, a_.batch);
        Index right[3] = {};  // by sum, by token, by byte
        auto score = scores.begin();
        auto ending = endings.begin();
        for (const ChoiceQuestion& question : questions) {
            std::vector<double> ranked[3];
            for (const std::string& text : question.endings) {
                ranked[0].push_back(*score);
                ranked[1].push_back(*score / static_cast<double>(ending->ending.size()));
                ranked[2].push_back(*score / static_cast<double>(text.size()));
                ++score, ++ending;
            }
            for (std::size_t way = 0; way < 3; ++way) {
                const auto best = std::ranges::max_element(ranked[way]) - ranked[way].begin();
                right[way] += best == question.label ? 1 : 0;
            }
        }
        const double count = static_cast<double>(questions.size());
        const auto part = [&](std::size_t way) { return static_cast<double>(right[way]) / count; };
        result_["choices"] = {{"name", a_.choices.string()}, {"questions", questions.size()}, {"cut_contexts", cut_},
                              {"accuracy", part(0)}, {"accuracy_by_token", part(1)}, {"accuracy_by_byte", part(2)}};
        if (a_.json) return;
        fmt::print("{}\n", a_.choices.string());
        const auto shown = [&](std::size_t way) { return fmt::format("{:.4f}  ({} right)", part(way), right[way]); };
        print_table({{"questions", fmt::format("{}", questions.size())},
                     {"by sum", shown(0)},
                     {"by token", shown(1)},
                     {"by byte", shown(2)}});
        if (cut_ > 0) print_table({{"cut", fmt::format("{} contexts were too long and lost their beginning", cut_)}});
    }

    EvalArguments a_;
    std::optional<Tokenizer> tokenizer_;
    Model model_;
    std::optional<std::int32_t> begin_id_;
    TextScoreOptions options_;
    Index cut_ = 0;
    Json result_;
};

template <ModelConfig config, Device device, class Number>
bool ModelPrograms<config, device, Number>::evaluate(const EvalArguments& arguments) {
    if constexpr (device == Device::cpu) EvalProgram<KimiK3<config>>(arguments).run();
    else fail("kimik3-eval runs on the CPU");
    return true;
}

}  // namespace kimik3
