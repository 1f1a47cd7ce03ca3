#pragma once
// JSON that is not guessed at: what parses it, and for tokenizers' files what reads one, and typed access to an
// object's members.

#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "kimik3/core/error.hpp"

namespace kimik3::detail {

using Json = nlohmann::json;

/// The value of a text that nests at most 64 deep: to copy or print a value takes a place on the stack for every level.
/// No object has a key twice, of which the parser would keep the last. what is how messages call the text.
inline Json parse_json(std::string_view text, std::string_view what) {
    require(text.find('\0') == text.npos, "{} has a zero byte", what);  // which the parser takes for the end
    std::vector<std::unordered_set<std::string>> keys;
    try {
        return Json::parse(text, [&](int depth, Json::parse_event_t event, Json& value) {
            using Event = Json::parse_event_t;
            require(depth <= 64, "{} nests more than 64 deep", what);
            if (event == Event::object_start) keys.emplace_back();
            if (event == Event::object_end) keys.pop_back();
            if (event == Event::key)
                require(keys.back().insert(value.get<std::string>()).second,
                        "{} has the key '{:.120}' twice in one object", what, value.get_ref<const std::string&>());
            return true;
        });
    } catch (const Json::exception& error) {
        fail("{} is not valid JSON: {:.200}", what, error.what());
    }
}

/// Without the byte order mark that some editors put in front.
inline std::string read_text_file(const std::string& path) {
    constexpr std::string_view mark = "\xEF\xBB\xBF";
    std::ifstream file(path, std::ios::binary);
    require(file.good(), "cannot open '{}'", path);
    std::string text{std::istreambuf_iterator<char>(file), {}};
    require(!file.bad(), "cannot read '{}'", path);
    if (text.starts_with(mark)) text.erase(0, mark.size());
    return text;
}

/// Typed access to the members of one object; `where` names it in errors.
class JsonObject {
public:
    JsonObject(const Json& value, std::string where) : value_(&value), where_(std::move(where)) {
        require(value.is_object(), "tokenizer.json: {} must be an object, is {}", where_, value.type_name());
    }

    const std::string& where() const { return where_; }

    /// The member, or nullptr where it is absent or null.
    const Json* find(const char* name) const {
        const auto found = value_->find(name);
        return found == value_->end() || found->is_null() ? nullptr : &*found;
    }
    const Json& at(const char* name) const {
        const Json* found = find(name);
        require(found != nullptr, "tokenizer.json: {} has no member '{}'", where_, name);
        return *found;
    }
    JsonObject object(const char* name) const { return {at(name), where_ + "." + name}; }
    std::string string(const char* name) const {
        const Json& value = at(name);
        require(value.is_string(), "tokenizer.json: {}.{} must be a string, is {}", where_, name, value.type_name());
        return value.get<std::string>();
    }
    bool boolean(const char* name, bool otherwise) const {
        const Json* value = find(name);
        require(value == nullptr || value->is_boolean(), "tokenizer.json: {}.{} must be true or false", where_, name);
        return value == nullptr ? otherwise : value->get<bool>();
    }
    const Json& array(const char* name) const {
        const Json& value = at(name);
        require(value.is_array(), "tokenizer.json: {}.{} must be an array, is {}", where_, name, value.type_name());
        return value;
    }

private:
    const Json* value_;
    std::string where_;
};

}  // namespace kimik3::detail
