// Any bytes as a GGUF file: refused with kimik3::Error, or a file whose tensors lie inside it and can be read, whose keys
// come back from a file that is written with them, and whose vocabulary, if it has one, encodes any text.
#include <cstdlib>
#include <vector>

#include "kimik3/io/gguf_tokenizer.hpp"
#include "kimik3/io/gguf_writer.hpp"
#include "support/memory_file.hpp"

namespace {

using namespace kimik3;

void check(bool law) {
    if (!law) std::abort();
}

void check_numbers(const GgufFile& file) {
    for (const auto& [name, tensor] : file.tensors()) try {
            std::vector<float> values(to_size(tensor.count));
            file.read(name, values.data(), tensor.count);
        } catch (const Error&) {  // of another type
        }
}

void check_keys(const GgufFile& file) {
    GgufMetadata keys = file.metadata();
    std::erase_if(keys, [](const auto& entry) { return entry.first == "general.alignment"; });
    const std::string bytes = detail::format_gguf_header(keys, {}).bytes();
    const std::string path = test::memory_file(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
    const GgufMetadata again = GgufFile(path).metadata();
    check(again.size() == keys.size());
    for (std::size_t k = 0; k < keys.size(); ++k)  // by kind: NaN is not equal to itself
        check(again[k].first == keys[k].first && again[k].second.index() == keys[k].second.index());
}

void check_vocabulary(const GgufFile& file) {
    const Tokenizer tokenizer(parse_gguf_tokenizer(file));
    const Tokenizer again(parse_tokenizer_json(write_tokenizer_json(tokenizer)));
    for (const std::string text : {"a <|endoftext|> 12", "\xE2\x80 abab"})
        for (const Specials specials : {Specials::as_text, Specials::recognised})
            check(again.encode(text, specials) == tokenizer.encode(text, specials));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    try {
        const GgufFile file(test::memory_file(data, size));
        for (const auto& entry : file.tensors())
            check(entry.second.file_offset + entry.second.size_bytes <= static_cast<Index>(size));
        check_numbers(file);
        check_keys(file);
        check_vocabulary(file);
    } catch (const Error&) {
    }
    return 0;
}
