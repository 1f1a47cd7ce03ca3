#pragma once
// Memory: Buffer owns aligned numbers; Arena hands out views of one block, first to last. A layer lists its activations
// once, in bind_saved(arena, ...). Run with a measuring arena that list gives the bytes needed; run with a real
// one it gives the views. So the peak of a step is known before the first number is computed, and a step allocates
// nothing.

#include <algorithm>
#include <array>

#include "kimik3/backend/cpu.hpp"
#include "kimik3/core/memory.hpp"
#include "kimik3/tensor/view.hpp"

namespace kimik3 {

/// Owned memory of a backend, zero at the start.
template <class T, class Backend = Cpu>
class Buffer;

template <class T>
class Buffer<T, Cpu> {
public:
    Buffer() = default;
    explicit Buffer(Index count) : memory_(count, sizeof(T)) {}

    T* data() const { return static_cast<T*>(memory_.data()); }
    Index size() const { return memory_.count(); }
    T* begin() const { return data(); }
    T* end() const { return data() + size(); }
    T& operator[](Index i) const { return data()[i]; }
    VectorView<T> view() const { return {data(), size()}; }

private:
    detail::Memory memory_;
};

class Arena {
public:
    /// Measures: hands out views without memory and counts.
    Arena() = default;
    /// Hands out the memory at block, capacity_bytes long.
    Arena(std::byte* block, Index capacity_bytes) : block_(block), capacity_bytes_(capacity_bytes) {}

    bool measuring() const { return block_ == nullptr; }
    Index used_bytes() const { return used_bytes_; }
    /// The most that was ever used.
    Index peak_bytes() const { return peak_bytes_; }
    /// Gives back everything handed out since used_bytes() was mark: what comes next shares that memory.
    void rewind(Index mark) { used_bytes_ = mark; }

    template <class T>
    MatrixView<T> matrix(Index rows, Index cols) {
        return {take<T>(rows * cols), rows, cols};
    }
    template <class T>
    VectorView<T> vector(Index count) {
        return {take<T>(count), count};
    }
    /// Matrices side by side, rows apart by the sum of their widths; each begins at a multiple of 32 bytes, so that
    /// what is as wide as that lies right beside the next.
    template <class T, std::size_t count>
    std::array<MatrixView<T>, count> columns(Index rows, const Index (&widths)[count]) {
        constexpr Index unit = 32 / static_cast<Index>(sizeof(T));
        Index stride = 0;
        for (const Index width : widths) stride += round_up(width, unit);
        T* at = take<T>(rows * stride);
        std::array<MatrixView<T>, count> views;
        for (std::size_t v = 0; v < count; ++v) {
            views[v] = {at, rows, widths[v], stride};
            if (at != nullptr) at += round_up(widths[v], unit);
        }
        return views;
    }

private:
    template <class T>
    T* take(Index count) {
        return static_cast<T*>(take_bytes(count * static_cast<Index>(sizeof(T))));
    }
    /// Neither a template nor inline, so that a view costs the compiler one call.
    [[gnu::noinline]] void* take_bytes(Index bytes) {
        const Index begin = used_bytes_;
        used_bytes_ += round_up(bytes, alignment_bytes);
        peak_bytes_ = (std::max)(peak_bytes_, used_bytes_);
        if (measuring()) return nullptr;
        require(used_bytes_ <= capacity_bytes_, "the arena holds {} bytes, {} were asked for", capacity_bytes_,
                used_bytes_);
        return block_ + begin;
    }

    std::byte* block_ = nullptr;
    Index capacity_bytes_ = 0, used_bytes_ = 0, peak_bytes_ = 0;
};

}  // namespace kimik3
