#pragma once
// Token shards in llm.c's two formats (github.com/karpathy/llm.c, dev/data/data_common.py): a header of 256 int32 and
// then the ids, all little-endian. header[0] is the magic, [1] the version, [2] the number of ids; the rest is zero.
//   magic 20240520, version 1: uint16 ids, for a vocabulary of at most 65,536
//   magic 20240801, version 7: uint32 ids
// A shard is opened by its header alone and read piece by piece with pread, so a file that shrinks meanwhile is an
// error and not a signal. Every fault names the file and the byte.

#include <algorithm>
#include <array>
#include <bit>
#include <filesystem>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kimik3/core/atomic_file.hpp"
#include "kimik3/core/error.hpp"

namespace kimik3 {

namespace detail {

static_assert(std::endian::native == std::endian::little, "kimik3: shards are read and written in memory order");

struct ShardFormat {
    std::int32_t magic, version;
    Index token_bytes;
};
inline constexpr ShardFormat shard16{20240520, 1, 2}, shard32{20240801, 7, 4};

using ShardHeader = std::array<std::int32_t, 256>;
inline constexpr Index shard_header_bytes = sizeof(ShardHeader);

inline void require_vocabulary(const std::string& name, Index vocabulary) {
    require(1 <= vocabulary && vocabulary <= (Index{1} << 31), "{}: a vocabulary has 1 to 2^31 entries, not {}", name,
            vocabulary);
}

}  // namespace detail

/// The ids of one shard file, or of a list in memory under a name of its own; every id read is below the vocabulary.
class Shard {
public:
    Shard(const std::filesystem::path& path, Index vocabulary) : name_(path.string()), vocabulary_(vocabulary) {
        detail::require_vocabulary(name_, vocabulary);
        open();
    }
    Shard(std::string name, std::vector<std::int32_t> tokens, Index vocabulary)
        : name_(std::move(name)), vocabulary_(vocabulary), tokens_(static_cast<Index>(tokens.size())),
          memory_(std::move(tokens)) {
        detail::require_vocabulary(name_, vocabulary);
        for (Index t = 0; t < tokens_; ++t) {
            const std::int32_t id = memory_[to_size(t)];
            require(0 <= id && id < vocabulary_, "{}: token {}: id {} is not below the vocabulary of {}", name_, t, id,
                    vocabulary_);
        }
    }

    const std::string& name() const { return name_; }
    Index tokens() const { return tokens_; }

    /// Reads ids [first, first + out.size()).
    void read(Index first, std::span<std::int32_t> out) const {
        const Index count = static_cast<Index>(out.size());
        require(first >= 0 && count <= tokens_ && first <= tokens_ - count,
                "{}: {} tokens from token {} on lie outside the {} of the shard", name_, count, first, tokens_);
        if (!file_.is_open()) {
            std::copy_n(memory_.begin() + first, count, out.begin());
        } else if (token_bytes_ == detail::shard16.token_bytes) {
            read_ids<std::uint16_t>(first, out);
        } else {
            read_ids<std::uint32_t>(first, out);
        }
    }

private:
    void open() {
        // O_NONBLOCK: a pipe is refused below instead of waited for
        file_ = detail::Descriptor(::open(name_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
        struct stat info {};
        if (!file_.is_open() || ::fstat(file_.number(), &info) != 0) {
            fail("{}: byte 0: cannot open the shard: {}", name_, detail::system_reason());
        }
        require(!S_ISDIR(info.st_mode), "{}: byte 0: a shard is a file, this is a directory", name_);
        require(S_ISREG(info.st_mode), "{}: byte 0: a shard is a regular file", name_);
        const Index size = info.st_size;
        require(size > 0, "{}: byte 0: the file is empty", name_);
        require(size >= detail::shard_header_bytes, "{}: byte {}: the file ends inside its header of {} bytes", name_,
                size, detail::shard_header_bytes);
        detail::ShardHeader header;
        read_bytes(0, header.data(), detail::shard_header_bytes);
        read_header(header, size);
    }

    void read_header(const detail::ShardHeader& header, Index size) {
        const bool narrow = header[0] == detail::shard16.magic;
        require(narrow || header[0] == detail::shard32.magic, "{}: byte 0: the magic of a shard is {} or {}, not {}",
                name_, detail::shard16.magic, detail::shard32.magic, header[0]);
        const detail::ShardFormat& format = narrow ? detail::shard16 : detail::shard32;
        require(header[1] == format.version, "{}: byte 4: the version of a shard with magic {} is {}, not {}", name_,
                format.magic, format.version, header[1]);
        require(header[2] >= 0, "{}: byte 8: the token count {} is negative", name_, header[2]);
        token_bytes_ = format.token_bytes;
        const Index body = size - detail::shard_header_bytes;
        require(body % token_bytes_ == 0, "{}: byte {}: the file ends inside a token of {} bytes", name_, size,
                token_bytes_);
        tokens_ = header[2];
        require(tokens_ <= body / token_bytes_, "{}: byte 8: the header counts {} tokens, more than the {} in the file",
                name_, tokens_, body / token_bytes_);
        require(tokens_ == body / token_bytes_,
                "{}: byte 8: the header counts {} tokens, fewer than the {} in the file", name_, tokens_,
                body / token_bytes_);
    }

    template <class Word>
    void read_ids(Index first, std::span<std::int32_t> out) const {
        std::array<Word, 4096> words;
        while (!out.empty()) {
            const std::span<std::int32_t> piece = out.first((std::min)(words.size(), out.size()));
            const Index offset = detail::shard_header_bytes + first * token_bytes_;
            read_bytes(offset, words.data(), static_cast<Index>(piece.size()) * token_bytes_);
            for (std::size_t t = 0; t < piece.size(); ++t) {
                require(words[t] < vocabulary_, "{}: byte {}: id {} is not below the vocabulary of {}", name_,
                        offset + static_cast<Index>(t) * token_bytes_, words[t], vocabulary_);
                piece[t] = static_cast<std::int32_t>(words[t]);
            }
            first += static_cast<Index>(piece.size());
            out = out.subspan(piece.size());
        }
    }

    void read_bytes(Index offset, void* data, Index bytes) const {
        char* next = static_cast<char*>(data);
        while (bytes > 0) {
            const ssize_t count = ::pread(file_.number(), next, to_size(bytes), offset);
            if (count < 0 && errno == EINTR) continue;
            if (count < 0) fail("{}: byte {}: cannot read: {}", name_, offset, detail::system_reason());
            require(count > 0, "{}: byte {}: the file ends here, it was longer when it was opened", name_, offset);
            next += count;
            offset += count;
            bytes -= count;
        }
    }

    std::string name_;
    Index vocabulary_, tokens_ = 0, token_bytes_ = 0;
    detail::Descriptor file_;
    std::vector<std::int32_t> memory_;
};

/// Writes one shard: uint16 ids when the vocabulary has at most 65,536 entries, else uint32. The file appears under its
/// name at finish(), whole.
class ShardWriter {
public:
    ShardWriter(const std::filesystem::path& path, Index vocabulary)
        : file_(path), name_(path.string()), vocabulary_(vocabulary),
          format_(vocabulary <= 65536 ? detail::shard16 : detail::shard32) {
        detail::require_vocabulary(name_, vocabulary);
        file_.write(header_.data(), sizeof header_);
    }

    Index tokens() const { return tokens_; }

    void append(std::span<const std::int32_t> ids) {
        require(tokens_ + static_cast<Index>(ids.size()) <= (std::numeric_limits<std::int32_t>::max)(),
                "{}: a shard has at most 2^31 - 1 tokens, not {}", name_, tokens_ + static_cast<Index>(ids.size()));
        if (format_.token_bytes == detail::shard16.token_bytes) {
            append_words<std::uint16_t>(ids);
        } else {
            append_words<std::uint32_t>(ids);
        }
    }

    void finish() {
        header_[0] = format_.magic;
        header_[1] = format_.version;
        header_[2] = static_cast<std::int32_t>(tokens_);
        file_.rewrite(0, header_.data(), sizeof header_);
        file_.commit();
    }

private:
    template <class Word>
    void append_words(std::span<const std::int32_t> ids) {
        std::vector<Word> words(ids.size());
        for (std::size_t t = 0; t < ids.size(); ++t) {
            require(0 <= ids[t] && ids[t] < vocabulary_, "{}: byte {}: id {} is not below the vocabulary of {}", name_,
                    detail::shard_header_bytes + (tokens_ + static_cast<Index>(t)) * format_.token_bytes, ids[t],
                    vocabulary_);
            words[t] = static_cast<Word>(ids[t]);
        }
        file_.write(words.data(), words.size() * sizeof(Word));
        tokens_ += static_cast<Index>(ids.size());
    }

    AtomicFile file_;
    std::string name_;
    Index vocabulary_, tokens_ = 0;
    detail::ShardFormat format_;
    detail::ShardHeader header_{};
};

/// The shards of one split ("train", "val") in a folder, by name: files whose name ends in .bin and has the split as a
/// word, such as train_000000.bin or tiny_shakespeare_val.bin. Hidden files, such as those that macOS puts beside others
/// (._train_000000.bin), are none.
inline std::vector<std::filesystem::path> find_shards(const std::filesystem::path& folder, std::string_view split) {
    std::error_code error;
    std::vector<std::filesystem::path> found;
    std::filesystem::directory_iterator entry(folder, error);
    for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
        if (entry->path().extension() != ".bin" || entry->path().filename().string().starts_with('.')) continue;
        const std::string words = fmt::format("_{}_", entry->path().stem().string());
        if (words.find(fmt::format("_{}_", split)) != std::string::npos) found.push_back(entry->path());
    }
    require(!error, "{}: cannot list the folder: {}", folder.string(), error.message());
    std::sort(found.begin(), found.end());
    return found;
}

/// The same; at least one.
inline std::vector<std::filesystem::path> list_shards(const std::filesystem::path& folder, std::string_view split) {
    std::vector<std::filesystem::path> found = find_shards(folder, split);
    require(!found.empty(), "{}: no shard {}_*.bin in the folder", folder.string(), split);
    return found;
}

}  // namespace kimik3
