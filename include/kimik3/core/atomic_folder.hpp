#pragma once
// A folder that appears whole or not at all: it is filled under a temporary name beside its target and put in the
// target's place in one step (renameat2 with RENAME_EXCHANGE where an older folder stands there; where a file system
// lacks that, as NFS does, the old folder is renamed to *.tmp.old first). It takes the permission bits of that folder,
// and its files those of the files in whose places they come. Until commit() the old folder is untouched, and a writer
// that is destroyed without commit() removes its temporary. That of a killed writer goes when the next one of the same
// target comes: the living hold a lock on theirs. Linux.

#include <cstdio>

#include "kimik3/core/atomic_file.hpp"

namespace kimik3 {

class AtomicFolder {
public:
    explicit AtomicFolder(std::filesystem::path target) : target_(std::move(target)) {
        if (!target_.has_filename()) target_ = target_.parent_path();  // "runs/x/" is runs/x
        target_ = detail::behind_links(target_);  // the folder that a link leads to is the one replaced
        std::error_code unknown;
        const std::filesystem::file_status status = std::filesystem::status(target_, unknown);
        require(!std::filesystem::exists(status) || std::filesystem::is_directory(status),
                "{}: only a folder is replaced by a folder", target_.string());
        detail::remove_leftovers(target_);
        // A name that exists belongs to another thread.
        for (int attempt = 0;; ++attempt) {
            temporary_ = fmt::format("{}.{}-{}.tmp", target_.string(), ::getpid(), attempt);
            const bool made = ::mkdir(temporary_.c_str(), 0777) == 0;
            check((made || errno == EEXIST) && attempt < 1000, "create");
            if (!made) continue;
            lock_ = open(temporary_);
            if (lock_.is_open() ? detail::lock_own(lock_, temporary_) : errno != ENOENT) break;
        }
        check(detail::take_permissions(target_, temporary_, S_IRWXU), "set the permissions of");
    }
    AtomicFolder(const AtomicFolder&) = delete;
    AtomicFolder& operator=(const AtomicFolder&) = delete;
    ~AtomicFolder() {
        std::error_code ignored;
        if (!temporary_.empty()) std::filesystem::remove_all(temporary_, ignored);
    }

    /// Where to put the files until commit().
    const std::filesystem::path& path() const { return temporary_; }

    void commit() {
        require(!committed_, "{}: a folder is committed once", target_.string());
        for (const auto& file : std::filesystem::directory_iterator(temporary_))
            check(detail::take_permissions(target_ / file.path().filename(), file), "set the permissions in");
        flush(temporary_);
        if (::rename(temporary_.c_str(), target_.c_str()) == 0) {  // nothing stood there, or an empty folder
            temporary_.clear();
        } else {
            check(errno == ENOTEMPTY || errno == EEXIST, "rename");
            exchange();
        }
        committed_ = true;
        flush(detail::folder_of(target_));
    }

private:
    /// Target and temporary change places.
    void exchange() {
        if (::renameat2(AT_FDCWD, temporary_.c_str(), AT_FDCWD, target_.c_str(), RENAME_EXCHANGE) == 0) return;
        check(errno == EINVAL || errno == ENOSYS || errno == EOPNOTSUPP, "replace");
        const std::filesystem::path old = temporary_.string() + ".old";
        std::error_code absent;
        std::filesystem::remove_all(old, absent);  // left by a killed process that had our number
        check(::rename(target_.c_str(), old.c_str()) == 0, "replace");
        if (::rename(temporary_.c_str(), target_.c_str()) != 0) {
            const int reason = errno;
            ::rename(old.c_str(), target_.c_str());
            errno = reason;
            check(false, "replace");
        }
        temporary_ = old;
    }
    void check(bool done, const char* step) const {
        if (!done) fail("{}: cannot {} the folder: {}", target_.string(), step, detail::system_reason());
    }
    static detail::Descriptor open(const std::filesystem::path& folder) {
        return detail::Descriptor(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    }
    static void flush(const std::filesystem::path& folder) {
        const detail::Descriptor directory = open(folder);
        if (directory.is_open()) ::fsync(directory.number());
    }

    std::filesystem::path target_, temporary_;
    detail::Descriptor lock_;  // of the temporary
    bool committed_ = false;
};

}  // namespace kimik3
