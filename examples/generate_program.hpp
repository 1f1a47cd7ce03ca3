#pragma once
// The body of kimik3-generate for one preset: prompts side by side, text streamed as it becomes certain.

#include <fmt/core.h>

#include <numeric>

#include "device.hpp"
#include "kimik3/generate/stop_strings.hpp"
#include "kimik3/io/checkpoint.hpp"
#include "open_tokenizer.hpp"
#include "terminal.hpp"

namespace kimik3 {

/// The text of one sequence on its way out.
class TextStream {
public:
    TextStream(const Tokenizer& tokenizer, const std::vector<std::string>& stops)
        : decoder_(tokenizer), stops_(stops) {}

    std::string push(std::int32_t token) { return stops_.push(decoder_.push(token)); }
    std::string finish() {
        const std::string certain = stops_.push(decoder_.flush());
        return stops_.stopped() ? certain : certain + stops_.finish();
    }
    bool stopped() const { return stops_.stopped(); }

private:
    StreamDecoder decoder_;
    StopStrings stops_;
};

/// A prompt as output shows it: what is not UTF-8 in it is replaced.
inline std::string shown_prompt(const std::string& prompt) {
    Utf8Stream text;
    const std::string whole = text.push(prompt);
    return whole + text.flush();
}

/// What ends a text: the tokenizer's end token, and the tokens that a generation_config.json of the checkpoint names.
inline std::vector<std::int32_t> end_ids(const std::filesystem::path& checkpoint, const Tokenizer& tokenizer) {
    std::vector<std::int32_t> ids;
    if (tokenizer.end_id()) ids.push_back(*tokenizer.end_id());
    const std::string path = (checkpoint / "generation_config.json").string();
    if (!std::filesystem::exists(path)) return ids;
    const auto file = detail::parse_json(kimik3::read_text_file(path, Index{1} << 20), "'" + path + "'");
    require(file.is_object(), "'{}' must hold a JSON object", path);
    const auto named = file.value("eos_token_id", nlohmann::json());  // a number, or several in a list
    for (const nlohmann::json& id : named.is_number() ? nlohmann::json::array({named}) : named) {
        require(id.is_number_unsigned() && id.get<std::uint64_t>() < to_size(tokenizer.vocab_size()) &&
                    tokenizer.has(id.get<std::int32_t>()),
                "'{}': eos_token_id has {}, which is no token of the tokenizer; --ignore-end does without", path,
                detail::shown_name(id.dump()));
        ids.push_back(id.get<std::int32_t>());
    }
    return ids;
}

template <ModelConfig config, Device device, class Number>
bool ModelPrograms<config, device, Number>::generate(const GenerateArguments& a) {
    using Backend = BackendOf<device>;
    const Tokenizer tokenizer = open_tokenizer(a, config.vocab_size);
    KimiK3<config, Backend, Number> model(context_for<Backend>(a.threads));
    load_model(find_checkpoint(a.checkpoint), model);

    GenerateOptions options{.temperature = a.temperature, .top_k = a.top_k, .top_p = a.top_p, .min_p = a.min_p,
                            .repetition_penalty = a.repetition_penalty, .seed = a.seed, .max_tokens = a.max_tokens};
    options.context = a.context;
    options.vocabulary = tokenizer.vocab_size();
    for (std::int32_t id = 0; id < options.vocabulary; ++id)
        if (!tokenizer.has(id)) options.barred.push_back(id);
    options.begin_id = begin_of_text(tokenizer);
    if (!a.ignore_end) options.stop_ids = end_ids(find_checkpoint(a.checkpoint), tokenizer);
    std::vector<std::vector<std::int32_t>> prompts;
    Index prompt_tokens = 0;
    std::vector<std::string> texts;
    for (const std::string& prompt : a.prompts) {
        prompts.push_back(tokenizer.encode(prompt, specials_of(a)));
        texts.push_back(a.no_echo ? "" : shown_prompt(prompt));
        prompt_tokens += static_cast<Index>(prompts.back().size());
    }

    catch_interruption();
    Stopwatch clock;
    BatchGeneration batch(model, prompts, options);
    std::vector<TextStream> streams(prompts.size(), TextStream(tokenizer, a.stop));
    const bool streaming = prompts.size() == 1;
    std::vector<Index> given(prompts.size());
    double prefill_seconds = 0;
    const auto give = [&](std::size_t s, const std::string& text) {
        if (streaming) fmt::print("{}", text);
        else texts[s] += text;
        std::fflush(stdout);
    };
    if (streaming) give(0, texts[0]);
    for (bool going = batch.next(); going && interrupted == 0; going = batch.next()) {
        if (prefill_seconds == 0) prefill_seconds = clock.seconds();
        for (std::size_t s = 0; s < streams.size(); ++s) {
            const auto token = batch.token(static_cast<Index>(s));
            if (!token || streams[s].stopped()) continue;
            ++given[s];
            give(s, streams[s].push(*token));
            if (streams[s].stopped()) batch.stop(static_cast<Index>(s));
        }
    }
    const double seconds = clock.seconds() - prefill_seconds;
    for (std::size_t s = 0; s < streams.size(); ++s) {
        give(s, streams[s].finish());
        if (!streaming) fmt::print("=== {} ===\n{}\n", s + 1, texts[s]);
    }
    if (streaming) fmt::print("\n");
    finish_output();
    for (Index s = 0; s < batch.size(); ++s) {
        require(batch.finish(s) != Finish::failed, "sequence {}: {}", s + 1, batch.error(s));
        if (!a.quiet) fmt::print(stderr, "{}{} tokens, end: {}\n", streaming ? "" : fmt::format("{}: ", s + 1),
                                 given[to_size(s)], name_of(batch.finish(s)));
    }
    if (!a.quiet) {
        // a sequence's first token comes with its prompt
        const Index steps = std::accumulate(given.begin(), given.end(), -batch.size());
        fmt::print(stderr, "prompt {} tokens in {:.2f} s; {:.1f} tokens/s after it\n", prompt_tokens, prefill_seconds,
                   steps > 0 ? static_cast<double>(steps) / seconds : 0.0);
    }
    return interrupted == 0;
}

}  // namespace kimik3
