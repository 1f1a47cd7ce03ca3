#pragma once
// The body of kimik3-inspect for one preset: a text and a prompt pass through the model, and a page and a table show
// what it did with them.

#include <fmt/core.h>

#include "kimik3/generate/score.hpp"
#include "kimik3/io/checkpoint.hpp"
#include "kimik3/io/report.hpp"
#include "kimik3/kimik3.hpp"
#include "open_tokenizer.hpp"
#include "terminal.hpp"

namespace kimik3 {

/// A token's bytes as one visible word: spaces and control characters are written out, what is no UTF-8 as \xNN.
inline std::string visible_token(std::string_view bytes) {
    std::string word;
    for (Index at = 0; at < static_cast<Index>(bytes.size());) {
        const Utf8Unit unit = utf8_unit(bytes, at);
        for (const char letter : bytes.substr(to_size(at), to_size(unit.bytes))) {
            const auto byte = static_cast<unsigned char>(letter);
            if (letter == ' ') word += "\xe2\x90\xa3";  // U+2423, an open box
            else if (letter == '\n') word += "\\n";
            else if (byte >= 0x20 && byte != 0x7f && unit.kind == Utf8Unit::code_point) word += letter;
            else word += fmt::format("\\x{:02x}", byte);
        }
        at += unit.bytes;
    }
    return word;
}

/// A line a token: the experts chosen in each layer that routes, and a letter for each site that mixes, the candidate
/// that weighs most.
inline void print_prompt(const PromptView& prompt) {
    const auto letter_of = [](Index candidate, Index candidates) {
        constexpr std::string_view blocks = "e123456789abcdfghijklmnopqrtuvwxyz";
        if (candidate + 1 == candidates) return 's';
        return candidate < static_cast<Index>(blocks.size()) ? blocks[to_size(candidate)] : '+';
    };
    fmt::print("experts: layer:experts, the highest score first; depth: what each site, in order, reads most of\n"
               "(e: the embedding, 1, 2, ...: a finished block, s: the running sum)\n");
    for (Index t = 0; t < prompt.seen.tokens; ++t) {
        std::string experts, depth;
        for (const RouterChoices& router : prompt.seen.routers) {
            const auto first = router.expert.begin() + t * router.chosen;
            experts += fmt::format(" {}:{}", router.layer, fmt::join(first, first + router.chosen, ","));
        }
        for (const DepthWeights& site : prompt.seen.depth) {
            const auto first = site.weight.begin() + t * site.candidates;
            depth += letter_of(std::max_element(first, first + site.candidates) - first, site.candidates);
        }
        fmt::print("{:>5} {:<14}{}  {}\n", t, prompt.tokens[to_size(t)], experts, depth);
    }
}

template <class Model>
class InspectProgram {
public:
    explicit InspectProgram(const InspectArguments& arguments)
        : a_(arguments), tokenizer_(open_tokenizer(a_, Model::config.vocab_size)), model_(Context<Cpu>(a_.threads)),
          page_(model_report(model_, "")) {
        const Index longest = Model::config.max_seq_len;
        require(a_.seq <= longest, "--seq: this model takes sequences of at most {} tokens, got {}", longest, a_.seq);
        const std::filesystem::path checkpoint = find_checkpoint(a_.checkpoint);
        load_model(checkpoint, model_);
        page_.title = checkpoint.string();
        page_.command = a_.command;
        const ParameterCount count = count_parameters(Model::config, model_.parameters());
        page_.facts = {{"checkpoint", checkpoint.string()},
                       {"parameters", fmt::format("{}, {} active for a token",
                                                  shown_amount(static_cast<double>(count.total)),
                                                  shown_amount(static_cast<double>(count.active)))}};
    }

    void run() {
        if (!a_.text.empty()) look_at_text();
        if (a_.prompt) look_at_prompt();
        write_report(a_.out, page_);
        print_table({{"page", a_.out.string()}});
        finish_output();
    }

private:
    std::vector<std::int32_t> encode(const std::string& text) const { return tokenizer_.encode(text, specials_of(a_)); }

    /// The beginning of the text, in sequences of seq tokens.
    void look_at_text() {
        std::vector<std::int32_t> ids = encode(kimik3::read_text_file(a_.text.string(), Index{1} << 31));
        require(!ids.empty(), "'{}' has no tokens", a_.text.string());
        const Index all = static_cast<Index>(ids.size()), taken = (std::min)(all, a_.max_tokens);
        ids.resize(to_size(taken));
        const Index seq = a_.seq > 0 ? a_.seq : (std::min)(Index{256}, Index{Model::config.max_seq_len});
        Probe probe;
        const Index together = seq * (std::min)(a_.batch, taken / seq + 1);
        for (Index first = 0; first < taken; first += together) {
            const Index count = (std::min)(together, taken - first);
            std::vector<Index> offsets;
            for (Index begin = 0; begin < count; begin += seq) offsets.push_back(begin);
            offsets.push_back(count);
            probe.add(look_inside(model_, Tokens(ids).subspan(to_size(first), to_size(count)), Sequences(offsets)));
        }
        TextScoreOptions options{.window = seq, .stride = seq, .batch = a_.batch};
        options.begin_id = begin_of_text(tokenizer_);
        const TextScore score = score_text(model_, Shard(a_.text.string(), ids, Model::config.vocab_size), options);
        page_.probe = std::move(probe);
        page_.text = fmt::format("{}{} tokens of {}", taken < all ? "the first " : "the ", taken, a_.text.string());
        page_.facts.emplace_back("text", page_.text + fmt::format(", in sequences of {}", seq));
        page_.headline = {{"tokens", fmt::format("{}", taken)},
                          {"loss", fmt::format("{:.3f}", score.loss())},
                          {"perplexity", fmt::format("{:.2f}", score.perplexity())}};
        print_table({{"text", page_.text}, {"loss", fmt::format("{:.4f}", score.loss())}});
    }

    void look_at_prompt() {
        std::vector<std::int32_t> ids = encode(*a_.prompt);
        if (ids.empty()) ids.push_back(begin_of_text(tokenizer_).value_or(0));
        const Index longest = Model::config.max_seq_len, count = static_cast<Index>(ids.size());
        require(count <= longest, "a prompt has at most {} tokens; this one has {}", longest, count);
        PromptView prompt{{}, look_inside(model_, ids)};
        for (const std::int32_t id : ids) prompt.tokens.push_back(visible_token(tokenizer_.token_bytes(id)));
        if (!page_.probe) {
            page_.probe.emplace().add(prompt.seen);
            page_.text = "the prompt";
        }
        page_.facts.emplace_back("prompt", fmt::format("{} tokens", count));
        print_prompt(prompt);
        page_.prompt = std::move(prompt);
    }

    InspectArguments a_;
    Tokenizer tokenizer_;
    Model model_;
    Report page_;
};

template <ModelConfig config, Device device, class Number>
bool ModelPrograms<config, device, Number>::inspect(const InspectArguments& arguments) {
    if constexpr (device == Device::cpu) InspectProgram<KimiK3<config>>(arguments).run();
    else fail("kimik3-inspect runs on the CPU");
    return true;
}

}  // namespace kimik3
