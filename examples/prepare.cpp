// kimik3-prepare: text -> token shards. The input is read up to three times, a file or a line at a time: to count its
// documents, to learn a vocabulary where one is asked for, and to encode. All output is written into a hidden folder
// inside --out and moved into place at the end.

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <numeric>
#include <optional>

#include "command_line.hpp"
#include "corpus.hpp"
#include "kimik3/core/rng.hpp"
#include "kimik3/data/shard.hpp"
#include "kimik3/io/gguf_tokenizer.hpp"
#include "kimik3/text/bpe_trainer.hpp"

namespace fs = std::filesystem;
using kimik3::Corpus;
using kimik3::fail;
using kimik3::Index;
using kimik3::require;
using kimik3::Tokenizer;
using kimik3::to_size;

namespace {

struct Options {
    std::vector<std::string> inputs;
    kimik3::CorpusOptions corpus;
    std::string out, tokenizer = "train:1024";
    double val_fraction = 0.1;
    Index shard_tokens = 100'000'000;
    std::uint64_t seed = 1;
    bool no_end_token = false, overwrite = false;
};

/// A line on a terminal that tells how far a part of the work is, and nothing anywhere else; an interruption ends the
/// work here, so that nothing is left behind.
class Progress {
public:
    Progress(const char* what, Index total) : what_(what), total_(total), shown_(::isatty(STDERR_FILENO) == 1) {}
    Progress(const Progress&) = delete;
    Progress& operator=(const Progress&) = delete;
    ~Progress() {
        if (shown_) fmt::print(stderr, "\r\033[K");
    }

    void show(Index done) {
        kimik3::throw_if_interrupted();
        const auto now = std::chrono::steady_clock::now();
        if (!shown_ || now < next_) return;
        next_ = now + std::chrono::milliseconds(200);
        const double part = static_cast<double>(done) / static_cast<double>(total_);
        fmt::print(stderr, "\r\033[K{}: {:.0f} %", what_, 100 * part);
    }

private:
    const char* what_;
    Index total_;
    bool shown_;
    std::chrono::steady_clock::time_point next_{};
};

// ---- train and validation ----

/// Which documents are for validation: round(fraction * documents) drawn by the seed, at least one and not all. A
/// single document is cut in two instead.
class Split {
public:
    Split(Index documents, double fraction, std::uint64_t seed) : fraction_(fraction), chosen_(to_size(documents)) {
        if (fraction == 0 || documents < 2) return;
        const Index wanted = std::llround(fraction * static_cast<double>(documents));
        std::vector<Index> order(chosen_.size());
        std::iota(order.begin(), order.end(), Index{0});
        kimik3::Philox random(seed);
        for (Index n = 0; n < std::clamp(wanted, Index{1}, documents - 1); ++n) {
            std::swap(order[to_size(n)], order[to_size(n) + random.below(to_size(documents - n))]);
            chosen_[to_size(order[to_size(n)])] = true;
        }
    }

    Index documents() const { return static_cast<Index>(chosen_.size()); }
    Index chosen() const { return std::count(chosen_.begin(), chosen_.end(), true); }

    /// Calls visit(text, is_validation, is_end_of_document) for the one or two parts of a document.
    template <class Visit>
    void parts(Index document, std::string_view text, Visit&& visit) const {
        require(document < documents(), "the input has changed while it was read");
        if (fraction_ == 0 || chosen_.size() > 1) return visit(text, chosen_[to_size(document)], true);
        const std::size_t cut = tail(text);
        visit(text.substr(0, cut), false, false);
        visit(text.substr(cut), true, true);
    }

private:
    /// Where the tail begins: at a line if one begins near by, else at a character.
    std::size_t tail(std::string_view text) const {
        auto cut = static_cast<std::size_t>(static_cast<double>(text.size()) * (1 - fraction_));
        const std::size_t line = text.rfind('\n', cut);
        if (line != std::string_view::npos && line + 200 > cut) cut = line + 1;
        while (cut < text.size() && (static_cast<unsigned char>(text[cut]) & 0xC0) == 0x80) ++cut;
        require(0 < cut && cut < text.size(), "a document of {} bytes is too short for a validation part of {}",
                text.size(), fraction_);
        return cut;
    }

    double fraction_;
    std::vector<bool> chosen_;
};

// ---- writing ----

/// The shards of one split: full ones and a last one with the rest.
class ShardSet {
public:
    ShardSet(fs::path folder, std::string split, Index vocabulary, Index shard_tokens)
        : folder_(std::move(folder)), split_(std::move(split)), vocabulary_(vocabulary), shard_tokens_(shard_tokens) {}

    Index tokens() const { return tokens_; }
    Index shards() const { return shards_; }

    void append(std::span<const std::int32_t> ids) {
        while (!ids.empty()) {
            if (!writer_) writer_.emplace(folder_ / fmt::format("{}_{:06}.bin", split_, shards_++), vocabulary_);
            const auto piece = ids.first((std::min)(ids.size(), to_size(shard_tokens_ - writer_->tokens())));
            writer_->append(piece);
            ids = ids.subspan(piece.size());
            tokens_ += static_cast<Index>(piece.size());
            if (writer_->tokens() == shard_tokens_) finish();
        }
    }

    void finish() {
        if (writer_) writer_->finish();
        writer_.reset();
    }

private:
    fs::path folder_;
    std::string split_;
    Index vocabulary_, shard_tokens_, tokens_ = 0, shards_ = 0;
    std::optional<kimik3::ShardWriter> writer_;
};

/// A hidden folder inside --out, whose files take their places there at publish(). Without it nothing is left behind,
/// and what a killed run left goes with the next one. One run at a time: it holds a lock on --out.
class Staging {
public:
    Staging(const fs::path& out, bool overwrite) : out_(out) {
        require(!out.empty(), "--out is a folder, its name is empty");
        require(!fs::exists(out) || fs::is_directory(out), "{}: --out is a folder, this is a file", out.string());
        for (fs::path made = fs::absolute(out); !fs::exists(made); made = made.parent_path()) made_.push_back(made);
        try {
            fs::create_directories(out);
            lock_ = kimik3::detail::Descriptor(::open(out.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
            const bool locked = lock_.is_open() && kimik3::detail::try_lock(lock_);
            require(locked || errno != EWOULDBLOCK, "{}: another kimik3-prepare is at work in it", out.string());
            if (locked) remove_leftovers();
            for (const fs::path& file : earlier())
                require(overwrite, "{}: is there already; --overwrite replaces earlier output", file.string());
            std::string name = (out / ".prepare-XXXXXX").string();
            if (::mkdtemp(name.data()) == nullptr)
                fail("{}: cannot make a folder in it: {}", out.string(), kimik3::detail::system_reason());
            folder_ = name;
        } catch (...) {
            remove_made();
            throw;
        }
    }
    Staging(const Staging&) = delete;
    Staging& operator=(const Staging&) = delete;
    ~Staging() {
        std::error_code ignored;
        fs::remove_all(folder_, ignored);
        remove_made();
    }

    const fs::path& folder() const { return folder_; }

    void publish() {
        for (const fs::directory_entry& file : fs::directory_iterator(folder_))
            require(kimik3::detail::take_permissions(out_ / file.path().filename(), file),
                    "{}: cannot set the permissions: {}", file.path().string(), kimik3::detail::system_reason());
        for (const fs::path& file : earlier()) fs::remove(file);
        for (const fs::directory_entry& file : fs::directory_iterator(folder_))
            fs::rename(file, out_ / file.path().filename());
    }

private:
    void remove_made() const {
        for (const fs::path& folder : made_) ::rmdir(folder.c_str());  // which fails when it is not empty
    }

    void remove_leftovers() const {
        for (const fs::directory_entry& entry : fs::directory_iterator(out_))
            if (entry.path().filename().string().starts_with(".prepare-")) fs::remove_all(entry);
    }

    std::vector<fs::path> earlier() const {
        std::vector<fs::path> found;
        for (const fs::directory_entry& file : fs::directory_iterator(out_)) {
            const std::string name = file.path().filename().string();
            const bool shard = (name.starts_with("train_") || name.starts_with("val_")) && name.ends_with(".bin");
            if (shard || name == "tokenizer.json" || name == "tokenizer_config.json") found.push_back(file.path());
        }
        return found;
    }

    fs::path out_, folder_;
    std::vector<fs::path> made_;  // the folders that were not there, innermost first
    kimik3::detail::Descriptor lock_;
};

// ---- the work ----

/// Calls visit(part, is_validation, is_end_of_document) for the whole corpus, and shows how far it is.
template <class Visit>
void for_each_part(const Corpus& corpus, const Split& split, const char* what, Index bytes, Visit&& visit) {
    Progress progress(what, bytes);
    Index document = 0, done = 0;
    corpus.for_each_document([&](std::string_view text) {
        split.parts(document++, text, visit);
        progress.show(done += static_cast<Index>(text.size()));
    });
    require(document == split.documents(), "the input has changed while it was read");
}

Index vocabulary_to_train(const std::string& tokenizer) {
    Index size = 0;
    const std::string_view digits = std::string_view(tokenizer).substr(std::string_view("train:").size());
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), size);
    return error == std::errc() && end == digits.data() + digits.size() ? size : 0;
}

Tokenizer make_tokenizer(const Options& options, const Corpus& corpus, const Split& split, Index bytes) {
    if (options.tokenizer == "bytes") return Tokenizer::bytes();
    if (!options.tokenizer.starts_with("train:")) return kimik3::load_any_tokenizer(options.tokenizer);
    kimik3::BpeTrainerOptions training;
    training.vocab_size = vocabulary_to_train(options.tokenizer);
    Progress progress("learning the vocabulary", training.vocab_size);
    training.progress = [&progress](Index done, Index) { progress.show(done); };
    kimik3::BpeTrainer trainer(training);
    for_each_part(corpus, split, "counting words", bytes, [&](std::string_view part, bool validation, bool) {
        if (!validation) trainer.push(part);
    });
    return trainer.train();
}

void prepare(const Options& options) {
    const Corpus corpus(options.inputs, options.corpus);
    kimik3::catch_interruption();
    Staging staging(options.out, options.overwrite);
    Index documents = 0, bytes = 0;
    const Index skipped = corpus.for_each_document([&](std::string_view text) {
        ++documents;
        bytes += static_cast<Index>(text.size());
    });
    require(documents > 0, "there is no text in the input");
    const Split split(documents, options.val_fraction, options.seed);
    const Tokenizer tokenizer = make_tokenizer(options, corpus, split, bytes);
    const std::optional<std::int32_t> end_id = options.no_end_token ? std::nullopt : tokenizer.end_id();
    require(options.no_end_token || end_id, "{}: the tokenizer has no end token; --no-end-token does without one",
            options.tokenizer);

    ShardSet train(staging.folder(), "train", tokenizer.vocab_size(), options.shard_tokens);
    ShardSet validation(staging.folder(), "val", tokenizer.vocab_size(), options.shard_tokens);
    const std::string missing = tokenizer.missing_bytes();
    Index left_out = 0;
    for_each_part(corpus, split, "encoding", bytes, [&](std::string_view part, bool is_validation, bool is_end) {
        if (!missing.empty())
            left_out += std::ranges::count_if(part, [&](char c) { return missing.find(c) != missing.npos; });
        std::vector<std::int32_t> ids = tokenizer.encode(part, kimik3::Specials::as_text);
        if (is_end && end_id) ids.push_back(*end_id);
        (is_validation ? validation : train).append(ids);
    });
    train.finish();
    validation.finish();
    require(train.tokens() + validation.tokens() > 0, "{}: the vocabulary has a token for none of the {} bytes of text",
            options.tokenizer, bytes);
    kimik3::save_tokenizer(tokenizer, staging.folder());
    staging.publish();

    const Index tokens = train.tokens() + validation.tokens();
    fmt::print("documents        {} ({} for validation)\n", documents,
               validation.tokens() > 0 && documents == 1 ? "its tail" : std::to_string(split.chosen()));
    if (options.corpus.skip_bad) fmt::print("bad lines        {} skipped\n", skipped);
    fmt::print("bytes            {}\n", bytes);
    if (left_out > 0) fmt::print("left out         {} bytes that the vocabulary has no token for\n", left_out);
    fmt::print("vocabulary       {}\n", tokenizer.vocab_size());
    fmt::print("tokens           {} ({} train, {} validation)\n", tokens, train.tokens(), validation.tokens());
    fmt::print("bytes per token  {:.3f}\n", static_cast<double>(bytes) / static_cast<double>(tokens));
    fmt::print("shards           {} ({} train, {} validation) in {}\n", train.shards() + validation.shards(),
               train.shards(), validation.shards(), options.out);
}

std::string check_tokenizer(const std::string& tokenizer) {
    if (!tokenizer.starts_with("train:") || vocabulary_to_train(tokenizer) >= 257) return {};
    return fmt::format("train:SIZE has a SIZE of at least 257, the bytes and <|endoftext|>; here is '{}'", tokenizer);
}

void declare(CLI::App& app, Options& options) {
    app.add_option("input", options.inputs, "text or JSONL files; - is standard input")->required();
    app.option_defaults()->always_capture_default();
    app.add_option("-o,--out", options.out, "folder for train_000000.bin ..., val_000000.bin ... and tokenizer.json")
        ->required();
    app.add_option("--tokenizer", options.tokenizer,
                   "train:SIZE learns a byte-level BPE of that size from the training text;\n"
                   "bytes is one token a byte; anything else is a tokenizer.json, .tiktoken,\n"
                   "vocab.json or .gguf file, or a folder with one of the first three")
        ->check(CLI::Validator(check_tokenizer, ""));
    app.add_option("--format", options.corpus.format, "auto: files named .jsonl or .ndjson are JSONL, others are text")
        ->check(CLI::IsMember({"auto", "text", "jsonl"}));
    app.add_option("--field", options.corpus.field, "field of a JSONL object that holds the text");
    app.add_flag("--skip-bad", options.corpus.skip_bad, "skip and count bad JSONL lines instead of failing");
    app.add_option("--document-separator", options.corpus.separator,
                   "what ends a document in a text file: file (each file is one document),\n"
                   "blank-line, or any other text, such as <|endoftext|>")
        ->check(CLI::Validator([](std::string& text) { return text.empty() ? "it is empty" : ""; }, ""));
    app.add_flag("--no-end-token", options.no_end_token,
                 "do not put the tokenizer's end token (<|endoftext|>) behind every document");
    app.add_option("--val-fraction", options.val_fraction,
                   "part of the documents, drawn at random, that is for validation;\n"
                   "with one document, its tail")
        ->check(kimik3::number_from(0, 0.99));
    app.add_option("--shard-tokens", options.shard_tokens, "tokens in a full shard")
        ->check(kimik3::number_from(1, 2147483647));
    app.add_option("--seed", options.seed, "chooses the documents for validation")->check(kimik3::zero_or_above());
    app.add_flag("--overwrite", options.overwrite, "replace the shards and the tokenizer.json that --out has already");
    app.footer("Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted; nothing is written unless it is 0.");
    app.callback([&app, &options] {
        const Index jsonl = std::ranges::count_if(
            options.inputs, [&](const std::string& name) { return options.corpus.is_jsonl(name); });
        for (const char* option : {"--field", "--skip-bad"})
            kimik3::refuse_without_effect(app, option, jsonl == 0,
                                          "no input is JSONL; --format jsonl reads a file of any name as JSONL");
        kimik3::refuse_without_effect(app, "--document-separator", jsonl == std::ssize(options.inputs),
                                      "every input is JSONL, in which each line is a document");
    });
}

}  // namespace

int main(int argc, char** argv) {
    CLI::App app("Turns text into token shards for training.", "kimik3-prepare");
    Options options;
    declare(app, options);
    return kimik3::run_program(app, argc, argv, [&] {
        prepare(options);
        return true;
    });
}
