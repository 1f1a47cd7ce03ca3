#pragma once
// A folder for the files of one test, and what the tests of file formats ask of files and errors.

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>

#include "support/refusal.hpp"

namespace kimik3::test {

/// A new folder, removed with everything in it.
class TemporaryFolder {
public:
    TemporaryFolder() {
        std::string name = (std::filesystem::temp_directory_path() / "kimik3-XXXXXX").string();
        require(::mkdtemp(name.data()) != nullptr, "cannot create the folder {}", name);
        path_ = name;
    }
    TemporaryFolder(const TemporaryFolder&) = delete;
    TemporaryFolder& operator=(const TemporaryFolder&) = delete;
    ~TemporaryFolder() {
        std::error_code ignored;
        std::filesystem::remove_all(path_, ignored);
    }

    std::string operator/(std::string_view name) const { return (path_ / name).string(); }

    /// Entries in the folder.
    Index size() const {
        return std::distance(std::filesystem::directory_iterator(path_), std::filesystem::directory_iterator());
    }

private:
    std::filesystem::path path_;
};

inline void put(const std::string& path, std::string_view bytes) {
    std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

inline std::string get(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

}  // namespace kimik3::test

#define KIMIK3_CHECK_REFUSED(body, part)                                                            \
    do {                                                                                            \
        const std::string kimik3_refusal = ::kimik3::test::refusal([&] { body; });                  \
        BOOST_CHECK_MESSAGE(::kimik3::test::contains(kimik3_refusal, part),                         \
                            #body ": '" << (part) << "' is not in: " << kimik3_refusal);            \
    } while (false)
