// What compare_tokenizers.py asks of the library:
//   encode_lines encode TOKENIZER FILE off|on   each line of FILE is a JSON string; prints its ids, one line each
//   encode_lines train FILE SIZE OUT            trains on such lines and writes a tokenizer.json
//   encode_lines rewrite TOKENIZER OUT          reads a tokenizer and writes it as tokenizer.json
#include <cstdio>

#include "kimik3/io/gguf_tokenizer.hpp"
#include "kimik3/text.hpp"

namespace {

template <class Take>
void for_each_text(const std::string& path, Take&& take) {
    const std::string lines = kimik3::detail::read_text_file(path);
    kimik3::detail::for_each_line(lines, [&](std::string_view line, kimik3::Index) {
        take(nlohmann::json::parse(line).get<std::string>());
    });
}

void encode(const std::string& tokenizer_path, const std::string& path, bool specials) {
    const kimik3::Tokenizer tokenizer = kimik3::load_any_tokenizer(tokenizer_path);
    for_each_text(path, [&](const std::string& text) {
        const auto ids = tokenizer.encode(text, specials ? kimik3::Specials::recognised : kimik3::Specials::as_text);
        for (std::size_t i = 0; i < ids.size(); ++i) std::printf(i == 0 ? "%d" : " %d", ids[i]);
        std::printf("\n");
    });
}

void train(const std::string& path, kimik3::Index size, const std::string& out) {
    kimik3::BpeTrainer trainer({.vocab_size = size});
    for_each_text(path, [&](const std::string& text) { trainer.push(text); });
    kimik3::save_tokenizer_json(trainer.train(), out);
}

}  // namespace

int main(int count, char** arguments) {
    const std::vector<std::string> a(arguments, arguments + count);
    try {
        if (count == 5 && a[1] == "encode") return encode(a[2], a[3], a[4] == "on"), 0;
        if (count == 5 && a[1] == "train") return train(a[2], std::stol(a[3]), a[4]), 0;
        if (count == 4 && a[1] == "rewrite")
            return kimik3::save_tokenizer_json(kimik3::load_any_tokenizer(a[2]), a[3]), 0;
        std::fprintf(stderr, "see the first lines of encode_lines.cpp\n");
    } catch (const std::exception& error) {
        std::fprintf(stderr, "encode_lines: %s\n", error.what());
    }
    return 1;
}
