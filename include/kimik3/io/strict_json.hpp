#pragma once
// JSON of files that must not be guessed at: a key that stands twice in one object, nesting of more than 32 levels, a
// zero byte and whatever is no JSON in UTF-8 are errors that name the file.

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "kimik3/io/nearest_name.hpp"

namespace kimik3::detail {

/// The value of the text; source is what messages call it.
inline nlohmann::json parse_json_strictly(const std::string& text, const std::string& source) {
    using Event = nlohmann::json::parse_event_t;
    std::vector<std::set<std::string>> keys;
    const auto check = [&](int depth, Event event, nlohmann::json& value) {
        require(depth <= 32, "'{}' nests more than 32 deep", source);
        if (event == Event::object_start) keys.emplace_back();
        if (event == Event::object_end) keys.pop_back();
        if (event == Event::key)
            require(keys.back().insert(value.get<std::string>()).second, "'{}' has the key '{}' twice in one object",
                    source, shown_name(value.get_ref<const std::string&>()));
        return true;
    };
    // The parser takes a zero for the end of its input.
    require(text.find('\0') == text.npos, "'{}' has a zero byte", source);
    try {
        return nlohmann::json::parse(text, check);
    } catch (const nlohmann::json::exception& problem) {
        fail("'{}' is not valid JSON: {}", source, shown_name(problem.what()));
    }
}

}  // namespace kimik3::detail
