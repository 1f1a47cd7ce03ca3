// Any bytes as a tokenizer.json: refused with kimik3::Error, or a tokenizer that encodes any text, whose tokens decode,
// and which is written as a file that gives the same ids.
#include <cstdlib>

#include "kimik3/text/tokenizer_json.hpp"

namespace {

void check(bool law) {
    if (!law) std::abort();
}

/// Nothing in the file takes from the text or adds to it.
bool keeps_texts(const kimik3::Tokenizer& tokenizer) {
    const kimik3::TokenizerSpec& spec = tokenizer.spec();
    bool keeps = spec.normalizer.empty() && tokenizer.missing_bytes().empty();
    for (const auto& token : spec.added_tokens) keeps = keeps && !token.lstrip && !token.rstrip;
    for (const auto& step : spec.pre_tokenizer) {
        if (const auto* split = std::get_if<kimik3::SplitStep>(&step))
            keeps = keeps && split->behaviour != kimik3::SplitBehaviour::removed;
        if (const auto* bytes = std::get_if<kimik3::ByteLevelStep>(&step)) keeps = keeps && !bytes->add_prefix_space;
    }
    return keeps;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace kimik3;
    const std::string_view file(reinterpret_cast<const char*>(data), size);
    const std::string texts[] = {"", "a<|endoftext|>b  aab\r\n1234 \xF0\x9F\x98\x80 \xC3\xA9",
                                 std::string("\0\xE2\x80\xFF \xED\xA0\x80", 8), std::string(300, 'a'),
                                 std::string(file.substr(0, 200))};
    try {
        const Tokenizer tokenizer(parse_tokenizer_json(file));
        const Tokenizer again(parse_tokenizer_json(write_tokenizer_json(tokenizer)));
        for (const std::string& text : texts) {
            for (const Specials specials : {Specials::as_text, Specials::recognised}) {
                const auto ids = tokenizer.encode(text, specials);
                check(again.encode(text, specials) == ids);
                check(tokenizer.decode(ids) == text || !keeps_texts(tokenizer));
            }
        }
    } catch (const Error&) {
    }
    return 0;
}
