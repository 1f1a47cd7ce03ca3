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
#include <system_error>
#include <utility>

#include "kimik3/core/error.hpp"

namespace kimik3 {

namespace detail {

/// The system's sentence for an errno value.
inline std::string errno_text(int code) { return std::generic_category().message(code); }

/// Owns a file descriptor; -1 is none.
class FileDescriptor {
public:
    FileDescriptor() = default;
    explicit FileDescriptor(int number) : number_(number) {}
    FileDescriptor(FileDescriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
    FileDescriptor& operator=(FileDescriptor&& other) noexcept {
        std::swap(number_, other.number_);
        return *this;
    }
    ~FileDescriptor() { close(); }

    int get() const { return number_; }

    /// 0, or the errno of close.
    int close() {
        const int number = std::exchange(number_, -1);
        return number >= 0 && ::close(number) != 0 ? errno : 0;
    }

private:
    int number_ = -1;
};

}  // namespace detail

class InputFile {
public:
    explicit InputFile(std::string path) : path_(std::move(path)) {
        // O_NONBLOCK: opening a pipe must not wait for a writer; it does nothing to a regular file.
        descriptor_ = detail::FileDescriptor(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
        require(descriptor_.get() >= 0, "cannot open '{}' for reading: {}", path_, detail::errno_text(errno));
        struct stat status {};
        require(::fstat(descriptor_.get(), &status) == 0, "cannot examine '{}': {}", path_, detail::errno_text(errno));
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
            const auto got = ::pread(descriptor_.get(), next + done, to_size(piece), offset + done);
            if (got < 0 && errno == EINTR) continue;
            require(got >= 0, "cannot read '{}': {}", path_, detail::errno_text(errno));
            require(got > 0, "'{}' was cut while it was being read: it had {} bytes when it was opened and ends at {}",
                    path_, size_bytes_, offset + done);
            done += got;
        }
    }

private:
    std::string path_;
    detail::FileDescriptor descriptor_;
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
