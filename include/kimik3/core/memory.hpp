#pragma once
// Memory of the host: owned, aligned, zero at the start. Not a template, so that all types of numbers share its code.

#include <cstring>
#include <memory>
#include <new>

#include "kimik3/core/error.hpp"

namespace kimik3 {

/// Every buffer and every view from an arena begins at a multiple of this.
inline constexpr Index alignment_bytes = 64;

namespace detail {

class Memory {
public:
    Memory() = default;
    [[gnu::noinline]] Memory(Index count, std::size_t element_bytes) : count_(count) {
        if (count == 0) return;
        require(count > 0 && to_size(count) <= SIZE_MAX / element_bytes, "a buffer holds 0 to {} elements, got {}",
                SIZE_MAX / element_bytes, count);
        const std::size_t bytes = to_size(count) * element_bytes;
        data_.reset(::operator new (bytes, std::align_val_t{to_size(alignment_bytes)}, std::nothrow));
        require(data_ != nullptr, "out of memory: {} bytes were asked for", bytes);
        std::memset(data_.get(), 0, bytes);
    }

    void* data() const { return data_.get(); }
    /// Elements.
    Index count() const { return count_; }

private:
    struct Release {
        void operator()(void* memory) const { ::operator delete(memory, std::align_val_t{to_size(alignment_bytes)}); }
    };
    std::unique_ptr<void, Release> data_;
    Index count_ = 0;
};

}  // namespace detail
}  // namespace kimik3
