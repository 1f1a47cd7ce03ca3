// Any bytes as a file of multiple-choice questions: refused with kimik3::Error, or questions whose label is an ending's
// number.
#include <cstdlib>
#include <unistd.h>

#include "../../examples/choice_questions.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace kimik3;
    static const std::filesystem::path path =
        std::filesystem::temp_directory_path() / ("kimik3_fuzz_choice_questions_" + std::to_string(getpid()));
    std::ofstream(path, std::ios::binary).write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
    try {
        for (const ChoiceQuestion& question : read_questions(path))
            if (question.endings.size() < 2 || question.label < 0 ||
                question.label >= static_cast<Index>(question.endings.size()) || question.line < 1)
                std::abort();
    } catch (const Error&) {
    }
    std::filesystem::remove(path);
    return 0;
}
