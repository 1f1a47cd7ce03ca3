#pragma once
// Buffers and bulk memory of the CUDA backend (tensor/arena.hpp, tensor/transfer.hpp), and the places of sequences as a
// kernel reads them.

#include "kimik3/backend/cuda.cuh"
#include "kimik3/tensor/arena.hpp"
#include "kimik3/tensor/sequences.hpp"
#include "kimik3/tensor/transfer.hpp"

namespace kimik3 {

/// Owned memory of the current GPU, zero at the start. The host does not read through data().
template <class T>
class Buffer<T, Cuda> {
public:
    Buffer() = default;
    explicit Buffer(Index count) : memory_(count * static_cast<Index>(sizeof(T))), size_(count) {
        // The legacy stream comes before that of any context, also where a program's default stream is another.
        if (count > 0) KIMIK3_CUDA(cudaMemsetAsync(memory_.data(), 0, to_size(memory_.bytes()), cudaStreamLegacy));
    }

    T* data() const { return reinterpret_cast<T*>(memory_.data()); }
    Index size() const { return size_; }
    VectorView<T> view() const { return {data(), size_}; }

private:
    DeviceMemory memory_;
    Index size_ = 0;
};

template <class T>
void clear(const Context<Cuda>& ctx, VectorView<T> v) {
    if (v.size > 0) KIMIK3_CUDA(cudaMemsetAsync(v.data, 0, to_size(v.size) * sizeof(T), ctx.stream()));
}
template <class T>
void clear(const Context<Cuda>& ctx, MatrixView<T> m) {
    if (m.size() == 0) return;
    if (m.rows == 1 || m.stride == m.cols) return clear(ctx, VectorView<T>(m.data, m.size()));  // of any length
    KIMIK3_CUDA(cudaMemset2DAsync(m.data, to_size(m.stride) * sizeof(T), 0, to_size(m.cols) * sizeof(T),
                                  to_size(m.rows), ctx.stream()));
}

namespace detail {

template <class T>
void copy_rows(const Context<Cuda>& ctx, MatrixView<const T> from, MatrixView<T> to, cudaMemcpyKind kind) {
    require_shape("copy: from", from, to.rows, to.cols);
    if (to.size() == 0) return;
    if (to.rows == 1 || (from.stride == to.cols && to.stride == to.cols)) {  // dense: no limit of the pitch applies
        KIMIK3_CUDA(cudaMemcpyAsync(to.data, from.data, to_size(to.size()) * sizeof(T), kind, ctx.stream()));
        return;
    }
    KIMIK3_CUDA(cudaMemcpy2DAsync(to.data, to_size(to.stride) * sizeof(T), from.data, to_size(from.stride) * sizeof(T),
                                  to_size(to.cols) * sizeof(T), to_size(to.rows), kind, ctx.stream()));
}

}  // namespace detail

template <class T>
void copy(const Context<Cuda>& ctx, In<T> from, Out<T> to) {
    detail::copy_rows<T>(ctx, from, to, cudaMemcpyDeviceToDevice);
}

template <class T>
void copy_from_host(const Context<Cuda>& ctx, std::type_identity_t<std::span<const T>> from, VectorView<T> to) {
    require_size("copy_from_host: to", to, static_cast<Index>(from.size()));
    ctx.require_not_recording();
    detail::copy_rows<T>(ctx, {from.data(), 1, to.size}, {to.data, 1, to.size}, cudaMemcpyHostToDevice);
}

template <class T>
MatrixView<const T> on_host(const Context<Cuda>& ctx, MatrixView<const T> m, std::vector<T>& memory) {
    ctx.require_not_recording();
    memory.resize(to_size(m.size()));
    detail::copy_rows<T>(ctx, m, {memory.data(), m.rows, m.cols}, cudaMemcpyDeviceToHost);
    ctx.synchronise();
    return {memory.data(), m.rows, m.cols};
}
template <class T>
VectorView<const T> on_host(const Context<Cuda>& ctx, VectorView<const T> v, std::vector<T>& memory) {
    return {on_host(ctx, MatrixView<const T>(v.data, 1, v.size), memory).data, v.size};
}

inline Sequences placed_in_memory(const Context<Cuda>& ctx, const Sequences& seq, Index bound,
                                  Buffer<Index, Cuda>& memory) {
    const Index size = static_cast<Index>(seq.packed().size());
    ctx.make_current();
    if (memory.size() < size) memory = Buffer<Index, Cuda>(size);
    copy_from_host(ctx, seq.packed(), VectorView<Index>(memory.data(), size));
    return seq.placed_at(memory.data(), bound);
}

/// Sequences as a kernel reads them.
struct DeviceSequences {
    const Index *offsets, *slots, *pasts;
    Index count, tokens;

    DeviceSequences(const Context<Cuda>& ctx, const Sequences& seq)
        : offsets(seq.placed() != nullptr ? seq.placed() : ctx.on_device(seq.packed())),
          slots(offsets + seq.count() + 1),
          pasts(slots + seq.count()),
          count(seq.count()),
          tokens(seq.tokens()) {}

    KIMIK3_HOST_DEVICE Index begin(Index s) const { return offsets[s]; }
    KIMIK3_HOST_DEVICE Index end(Index s) const { return offsets[s + 1]; }
    KIMIK3_HOST_DEVICE Index length(Index s) const { return end(s) - begin(s); }
    /// The sequence of row n < tokens.
    KIMIK3_HOST_DEVICE Index of(Index n) const {
        Index low = 0, high = count;  // begin(low) <= n < begin(high)
        while (high - low > 1) {
            const Index middle = (low + high) / 2;
            (begin(middle) <= n ? low : high) = middle;
        }
        return low;
    }
};

}  // namespace kimik3
