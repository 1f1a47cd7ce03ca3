#pragma once
// A file that appears whole or not at all: it is written under a temporary name in the same folder, flushed to the
// disk and renamed over the target, or over the file that the target leads to where it is a link, whose permission bits
// it takes. Every call is checked; until commit() the old file is untouched, and a writer that is destroyed without
// commit() removes its temporary. That of a killed writer goes when the next one of the same target comes: the living
// hold a lock on theirs. POSIX.

#include <fcntl.h>
#include <sys/file.h>
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

inline std::filesystem::path folder_of(const std::filesystem::path& path) {
    return path.has_parent_path() ? path.parent_path() : ".";
}

/// The path, or where it is a link what that leads to: this is what a writer replaces.
inline std::filesystem::path behind_links(const std::filesystem::path& path) {
    std::error_code problem;
    if (!std::filesystem::is_symlink(path, problem)) return path;
    const std::filesystem::path place = std::filesystem::canonical(path, problem);
    require(!problem, "{}: leads to nothing: {}", path.string(), problem.message());
    return place;
}

/// Gives what is to take a place the permission bits of what stands there, if something does, and those of more.
inline bool take_permissions(const std::filesystem::path& place, const std::filesystem::path& next, mode_t more = 0) {
    struct stat old {};
    return ::stat(place.c_str(), &old) != 0 || ::chmod(next.c_str(), (old.st_mode & 0777) | more) == 0;
}

inline bool try_lock(const Descriptor& file) { return ::flock(file.number(), LOCK_EX | LOCK_NB) == 0; }

/// Whether the name still leads to what was opened.
inline bool is_named(const Descriptor& opened, const std::filesystem::path& name) {
    struct stat own {}, named {};
    return ::fstat(opened.number(), &own) == 0 && ::stat(name.c_str(), &named) == 0 && named.st_ino == own.st_ino &&
           named.st_dev == own.st_dev;
}

/// Locks a writer's own temporary, where the file system has locks; false where another writer, which came before the
/// lock, takes it for a leftover.
inline bool lock_own(const Descriptor& temporary, const std::filesystem::path& name) {
    return try_lock(temporary) ? is_named(temporary, name) : errno != EWOULDBLOCK;
}

/// Removes the temporaries of killed writers of the target, NAME.PID-N.tmp: nobody holds their locks.
inline void remove_leftovers(const std::filesystem::path& target) {
    std::error_code error;
    const std::string begin = target.filename().string() + ".", end = ".tmp";
    std::filesystem::directory_iterator entry(folder_of(target), error);
    for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
        const std::string name = entry->path().filename().string();
        const bool numbered = name.starts_with(begin) &&
                              name.find_first_not_of("0123456789-", begin.size()) == name.size() - end.size();
        if (!numbered || !name.ends_with(end)) continue;
        const Descriptor left(::open(entry->path().c_str(), O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC));
        std::error_code ignored;
        if (left.is_open() && try_lock(left) && is_named(left, entry->path()))
            std::filesystem::remove_all(entry->path(), ignored);
    }
}

}  // namespace detail

class AtomicFile {
public:
    explicit AtomicFile(std::filesystem::path target) : target_(std::move(target)) {
        std::error_code unknown;
        const std::filesystem::file_status status = std::filesystem::status(target_, unknown);
        require(!std::filesystem::exists(status) || std::filesystem::is_regular_file(status),
                "{}: only a regular file is replaced", target_.string());
        target_ = detail::behind_links(target_);
        detail::remove_leftovers(target_);
        // A name that exists belongs to another thread.
        for (int attempt = 0; !file_.is_open(); ++attempt) {
            temporary_ = fmt::format("{}.{}-{}.tmp", target_.string(), ::getpid(), attempt);
            file_ = detail::Descriptor(::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
            check((file_.is_open() || errno == EEXIST) && attempt < 1000, "create");
            if (file_.is_open() && !detail::lock_own(file_, temporary_)) file_.close();
        }
        check(detail::take_permissions(target_, temporary_), "set the permissions of");
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
        const detail::Descriptor lock(::fcntl(file_.number(), F_DUPFD_CLOEXEC, 0));  // until the file is in place
        check(file_.close(), "close");
        check(::rename(temporary_.c_str(), target_.c_str()) == 0, "rename");
        committed_ = true;
        const detail::Descriptor directory(
            ::open(detail::folder_of(target_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
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
