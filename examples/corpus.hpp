#pragma once
// The documents of text files, JSONL files and standard input, for kimik3-prepare. Files are read whole (text) or line
// by line (JSONL), as often as they are visited; what cannot be read twice, such as a pipe, is kept in memory.

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kimik3/core/atomic_file.hpp"

namespace kimik3 {

struct CorpusOptions {
    std::string format = "auto";     // text, jsonl, or auto: by the file's name
    std::string field = "text";      // of a JSONL object
    std::string separator = "file";  // of documents in a text file: file (none), blank-line, or this text
    bool skip_bad = false;           // count bad JSONL lines instead of throwing

    bool is_jsonl(const std::string& name) const {
        if (format != "auto") return format == "jsonl";
        return name.ends_with(".jsonl") || name.ends_with(".ndjson");
    }
};

class Corpus {
public:
    Corpus(const std::vector<std::string>& names, CorpusOptions options) : options_(std::move(options)) {
        for (const std::string& name : names) {
            inputs_.push_back({name, {}, options_.is_jsonl(name)});
            if (name == "-") {
                inputs_.back().kept = slurp(std::cin, name);
            } else if (!std::filesystem::is_regular_file(name)) {
                require(!std::filesystem::is_directory(name), "{}: an input is a file, this is a directory", name);
                inputs_.back().kept = slurp(*open(inputs_.back()), name);
            }
        }
    }

    /// Calls visit(text) for every document with more than white space in it; returns how many bad lines were skipped.
    template <class Visit>
    Index for_each_document(Visit&& visit) const {
        Index skipped = 0;
        const auto take = [&](std::string_view text) {
            if (text.find_first_not_of(white_space) != std::string_view::npos) visit(text);
        };
        for (const Input& input : inputs_) {
            const std::unique_ptr<std::istream> stream = open(input);
            if (input.jsonl) {
                skipped += lines(*stream, input.name, take);
            } else {
                pieces(slurp(*stream, input.name), take);
            }
        }
        return skipped;
    }

private:
    struct Input {
        std::string name;
        std::optional<std::string> kept;
        bool jsonl;
    };
    static constexpr const char* white_space = " \t\r\n\f\v";

    static std::unique_ptr<std::istream> open(const Input& input) {
        if (input.kept) return std::make_unique<std::istringstream>(*input.kept);
        auto file = std::make_unique<std::ifstream>(input.name, std::ios::binary);
        if (!file->is_open()) fail("{}: cannot open the input: {}", input.name, detail::system_reason());
        return file;
    }

    static std::string slurp(std::istream& stream, const std::string& name) {
        std::string text;
        for (char block[1 << 16]; stream.read(block, sizeof block), stream.gcount() > 0;) {
            text.append(block, to_size(stream.gcount()));
        }
        require(!stream.bad() && (name != "-" || std::ferror(stdin) == 0), "{}: cannot read the input", name);
        return text;
    }

    template <class Take>
    Index lines(std::istream& stream, const std::string& name, Take&& take) const {
        Index skipped = 0, number = 0;
        for (std::string line; std::getline(stream, line);) {
            ++number;
            if (line.find_first_not_of(white_space) == std::string::npos) continue;
            std::string text;
            if (const std::string fault = parse(line, text); fault.empty()) {
                take(text);
            } else {
                require(options_.skip_bad, "{}:{}: {}", name, number, fault);
                ++skipped;
            }
        }
        require(!stream.bad(), "{}: cannot read the input", name);
        return skipped;
    }

    /// The text of one JSON line; returns what is wrong with the line, or nothing.
    std::string parse(const std::string& line, std::string& text) const {
        // The parser takes a zero for the end of its input.
        if (line.find('\0') != line.npos) return "the line has a zero byte";
        try {
            int fields = 0;  // of that name, of which the parser keeps the last
            const auto count = [&](int depth, nlohmann::json::parse_event_t event, const nlohmann::json& key) {
                fields += depth == 1 && event == nlohmann::json::parse_event_t::key && key == options_.field;
                return true;
            };
            const nlohmann::json object = nlohmann::json::parse(line, count);
            if (fields > 1) return fmt::format("the object has the field \"{}\" {} times", options_.field, fields);
            if (!object.is_object()) return fmt::format("a line is a JSON object, this is {}", object.type_name());
            const auto value = object.find(options_.field);
            if (value == object.end()) return fmt::format("the object has no field \"{}\"", options_.field);
            if (!value->is_string()) {
                return fmt::format("the field \"{}\" is a string, here it is {}", options_.field, value->type_name());
            }
            text = value->get<std::string>();
        } catch (const nlohmann::json::parse_error& error) {
            return fmt::format("not JSON, from byte {} of the line on", error.byte);
        } catch (const nlohmann::json::exception& error) {
            return error.what();
        }
        return {};
    }

    template <class Take>
    void pieces(std::string_view text, Take&& take) const {
        if (options_.separator == "file") return take(text);
        const bool blank = options_.separator == "blank-line";
        for (std::size_t first = 0; first < text.size();) {
            const auto [end, next] = blank ? blank_line(text, first) : literal(text, first);
            take(trimmed(text.substr(first, end - first)));
            first = next;
        }
    }

    /// [begin, end) of the next separator; both the end of the text where there is none.
    std::pair<std::size_t, std::size_t> literal(std::string_view text, std::size_t from) const {
        const std::size_t found = text.find(options_.separator, from);
        if (found == std::string_view::npos) return {text.size(), text.size()};
        return {found, found + options_.separator.size()};
    }
    static std::pair<std::size_t, std::size_t> blank_line(std::string_view text, std::size_t from) {
        while (from < text.size()) {
            const std::size_t end = (std::min)(text.find('\n', from), text.size() - 1) + 1;
            const std::string_view line = text.substr(from, end - from);
            if (line.find_first_not_of(white_space) == std::string_view::npos) return {from, end};
            from = end;
        }
        return {from, from};
    }

    static std::string_view trimmed(std::string_view text) {
        const std::size_t first = text.find_first_not_of(white_space);
        if (first == std::string_view::npos) return {};
        return text.substr(first, text.find_last_not_of(white_space) - first + 1);
    }

    CorpusOptions options_;
    std::vector<Input> inputs_;
};

}  // namespace kimik3
