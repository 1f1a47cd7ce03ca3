#pragma once
// A regular file opened for reading at given places. Reads are exact: a file that ends early, also one that was cut
// after it was opened, is an error that names the file, what was wanted and what is there. Nothing is mapped, so a
// file that shrinks cannot raise SIGBUS.

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

#include "kimik3/core/atomic_file.hpp"

namespace kimik3 {

class InputFile {
public:
    explicit InputFile(std::string path) : path_(std::move(path)) {
        // O_NONBLOCK: opening a pipe must not wait for a writer; it does nothing to a regular file.
        file_ = detail::Descriptor(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
        if (!file_.is_open()) fail("cannot open '{}' for reading: {}", path_, detail::system_reason());
        struct stat status {};
        if (::fstat(file_.number(), &status) != 0) fail("cannot examine '{}': {}", path_, detail::system_reason());
        require(S_ISREG(status.st_mode), "'{}' is {}, not a regular file", path_,
                S_ISDIR(status.st_mode) ? "a directory" : "a device, pipe or socket");
        size_bytes_ = status.st_size;
    }

    const std::string& path() const { return path_; }

    /// When the file was opened.
    Index size_bytes() const { return size_bytes_; }

    /// Fills destination with the bytes [offset, offset + count) of the file. Safe from several threads at once.
    void read(Index offset, void* destination, Index count) const {
        require(offset >= 0 && count >= 0 && offset <= size_bytes_ && count <= size_bytes_ - offset,
                "'{}': bytes [{}, +{}) are wanted, the file has {}", path_, offset, count, size_bytes_);
        constexpr Index largest_piece = Index{1} << 30;
        char* next = static_cast<char*>(destination);
        for (Index done = 0; done < count;) {
            const Index piece = (std::min)(count - done, largest_piece);
            const auto got = ::pread(file_.number(), next + done, to_size(piece), offset + done);
            if (got < 0 && errno == EINTR) continue;
            if (got < 0) fail("cannot read '{}': {}", path_, detail::system_reason());
            require(got > 0, "'{}' was cut while it was being read: it had {} bytes when it was opened and ends at {}",
                    path_, size_bytes_, offset + done);
            done += got;
        }
    }

private:
    std::string path_;
    detail::Descriptor file_;
    Index size_bytes_ = 0;
};

/// The whole of a text file, which must not be larger than limit_bytes.
inline std::string read_text_file(const std::string& path, Index limit_bytes) {
    const InputFile file(path);
    require(file.size_bytes() <= limit_bytes, "'{}' has {} bytes, a file of this kind has at most {}", path,
            file.size_bytes(), limit_bytes);
    std::string text(to_size(file.size_bytes()), '\0');
    file.read(0, text.data(), file.size_bytes());
    return text;
}

}  // namespace kimik3
