#pragma once
// Multiple choice in HellaSwag's form, a JSON object a line: ctx, endings and label, the number of the right ending.

#include <charconv>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kimik3/core/error.hpp"

namespace kimik3 {

struct ChoiceQuestion {
    Index line = 0;  // in the file, from 1
    std::string context;
    std::vector<std::string> endings;  // at least two, none empty
    Index label = 0;
};

namespace detail {

/// The label is a number, or text that is one.
inline Index label_of(const nlohmann::json& value) {
    if (value.is_number_integer()) return value.get<Index>();
    require(value.is_string(), "the label is a whole number, here it is {}",
            value.is_structured() ? value.type_name() : value.dump());
    const auto& text = value.get_ref<const std::string&>();
    Index label = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), label);
    require(error == std::errc() && end == text.data() + text.size() && !text.empty(),
            "the label is a whole number, here it is \"{}\"", text.substr(0, 80));
    return label;
}

inline ChoiceQuestion parse_question(const std::string& line) {
    // The parser takes a zero for the end of its input.
    require(line.find('\0') == line.npos, "the line has a zero byte");
    const nlohmann::json object = nlohmann::json::parse(line);
    require(object.is_object(), "a line is a JSON object, this is {}", object.type_name());
    for (const char* key : {"ctx", "endings", "label"}) require(object.contains(key), "the object has no \"{}\"", key);
    ChoiceQuestion question;
    require(object.at("ctx").is_string(), "\"ctx\" is a string, here it is {}", object.at("ctx").type_name());
    require(object.at("endings").is_array() && object.at("endings").size() >= 2,
            "\"endings\" is a list of two strings or more, here it is {} of {}", object.at("endings").type_name(),
            object.at("endings").size());
    question.context = object.at("ctx").get<std::string>();
    for (const nlohmann::json& ending : object.at("endings")) {
        require(ending.is_string(), "an ending is a string, number {} is {}", question.endings.size(),
                ending.type_name());
        question.endings.push_back(ending.get<std::string>());
        require(!question.endings.back().empty(), "an ending has at least one token, number {} is empty",
                question.endings.size() - 1);
    }
    question.label = label_of(object.at("label"));
    require(question.label >= 0 && question.label < static_cast<Index>(question.endings.size()),
            "the label is the number of an ending, 0 to {}, got {}", question.endings.size() - 1, question.label);
    return question;
}

}  // namespace detail

inline std::vector<ChoiceQuestion> read_questions(const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    require(file.is_open() && !std::filesystem::is_directory(path), "'{}' cannot be read", path.string());
    std::vector<ChoiceQuestion> questions;
    Index number = 0;
    for (std::string line; std::getline(file, line);) {
        ++number;
        if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
        try {
            questions.push_back(detail::parse_question(line));
        } catch (const nlohmann::json::parse_error& error) {
            fail("{}:{}: not JSON, from byte {} of the line on", path.string(), number, error.byte);
        } catch (const std::exception& error) {
            fail("{}:{}: {}", path.string(), number, error.what());
        }
        questions.back().line = number;
    }
    require(!file.bad(), "'{}' cannot be read", path.string());
    require(!questions.empty(), "'{}' holds no question", path.string());
    return questions;
}

}  // namespace kimik3
