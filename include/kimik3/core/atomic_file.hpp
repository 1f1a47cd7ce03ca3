#pragma once
// A file that appears whole or not at all: it is written under a temporary name in the same folder, flushed to the
// disk and renamed over the target. Every call is checked; until commit() the old file is untouched, and a writer
// that is destroyed without commit() removes its temporary. POSIX.

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "kimik3/core/error.hpp"

namespace kimik3 {

namespace detail {

/// Owns a file descriptor; -1 when there is none.
class Descriptor {
public:
    explicit Descriptor(int number = -1) : number_(number) {}
    Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
    Descriptor& operator=(Descriptor&& other) noexcept {
        std::swap(number_, other.number_);
        return *this;
    }
    ~Descriptor() { close(); }

    int number() const { return number_; }
    bool is_open() const { return number_ >= 0; }
    bool close() { return number_ < 0 || ::close(std::exchange(number_, -1)) == 0; }

private:
    int number_;
};

/// The sentence of the last failed system call; read it before anything else is called.
inline std::string system_reason() { return std::generic_category().message(errno); }

}  // namespace detail

class AtomicFile {
public:
    explicit AtomicFile(std::filesystem::path target) : target_(std::move(target)) {
        std::error_code unknown;
        const std::filesystem::file_status status = std::filesystem::status(target_, unknown);
        require(!std::filesystem::exists(status) || std::filesystem::is_regular_file(status),
                "{}: only a regular file is replaced", target_.string());
        // A name that exists belongs to another thread, or was left by a killed process that had our number.
        for (int attempt = 0; !file_.is_open(); ++attempt) {
            temporary_ = fmt::format("{}.{}-{}.tmp", target_.string(), ::getpid(), attempt);
            file_ = detail::Descriptor(::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
            check(file_.is_open() || (errno == EEXIST && attempt < 1000), "create");
        }
    }
    AtomicFile(const AtomicFile&) = delete;
    AtomicFile& operator=(const AtomicFile&) = delete;
    ~AtomicFile() {
        if (!committed_) ::unlink(temporary_.c_str());
    }

    const std::filesystem::path& target() const { return target_; }

    /// Appends bytes.
    void write(const void* data, std::size_t bytes) {
        write_at(size_, data, bytes);
        size_ += static_cast<Index>(bytes);
    }

    /// Overwrites bytes that have been written already, such as a header whose counts are known at the end.
    void rewrite(Index offset, const void* data, std::size_t bytes) {
        require(0 <= offset && offset <= size_ && static_cast<Index>(bytes) <= size_ - offset,
                "{}: {} bytes to rewrite from byte {} on lie outside the {} written", target_.string(), bytes, offset,
                size_);
        write_at(offset, data, bytes);
    }

    /// Makes the file durable and puts it in the target's place.
    void commit() {
        require(file_.is_open(), "{}: a file is committed once", target_.string());
        check(::fsync(file_.number()) == 0, "flush");
        check(file_.close(), "close");
        check(::rename(temporary_.c_str(), target_.c_str()) == 0, "rename");
        committed_ = true;
        const std::filesystem::path folder = target_.has_parent_path() ? target_.parent_path() : ".";
        const detail::Descriptor directory(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
        if (directory.is_open()) ::fsync(directory.number());  // the file is in place whether or not this is possible
    }

private:
    void check(bool done, const char* step) const {
        if (!done) fail("{}: cannot {} the file: {}", target_.string(), step, detail::system_reason());
    }

    void write_at(Index offset, const void* data, std::size_t bytes) {
        const char* next = static_cast<const char*>(data);
        while (bytes > 0) {
            const ssize_t written = ::pwrite(file_.number(), next, bytes, offset);
            if (written < 0 && errno == EINTR) continue;
            check(written > 0, "write");
            next += written;
            offset += written;
            bytes -= static_cast<std::size_t>(written);
        }
    }

    std::filesystem::path target_, temporary_;
    detail::Descriptor file_;
    Index size_ = 0;
    bool committed_ = false;
};

/// Writes a file as a whole.
inline void write_text_file(const std::filesystem::path& path, std::string_view text) {
    AtomicFile file(path);
    file.write(text.data(), text.size());
    file.commit();
}

}  // namespace kimik3
