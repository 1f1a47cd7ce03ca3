#pragma once
// One operation on both backends. Both<T> holds a matrix as float64 for the CPU and in float32 on the GPU, rounded to
// float32 first so that both see the same numbers; results are poisoned with NaN and stand between guard zones. A test
// includes the operations that it takes, since nvcc compiles all that it sees.

#include "kimik3/tensor/cuda.cuh"
#include "support/golden.hpp"
#include "support/matrix.hpp"

namespace kimik3::test {

inline const Context<Cuda>& cuda() {
    static const Context<Cuda> ctx;
    return ctx;
}
inline const Context<Cpu>& cpu() {
    static const Context<Cpu> ctx(2);
    return ctx;
}

/// For the question what a second GPU does.
inline boost::test_tools::assertion_result two_gpus(boost::unit_test::test_unit_id) {
    int devices = 0;
    return cudaGetDeviceCount(&devices) == cudaSuccess && devices >= 2;
}

/// NaN in all scratch memory, 16 MiB of each: who reads there without having written gets it. (compute-sanitizer's
/// initcheck does not see what cuBLAS's products write and would call them unwritten.)
inline void poison_workspaces(const Context<Cuda>& ctx) {
    const std::vector<float> nan(1 << 22, std::numeric_limits<float>::quiet_NaN());
    const Index size = static_cast<Index>(nan.size());
    for (const Scratch scratch :
         {Scratch::operation, Scratch::walk, Scratch::sums, Scratch::composed, Scratch::widened})
        copy_from_host(ctx, std::span<const float>(nan), VectorView<float>(ctx.workspace<float>(scratch, size), size));
}

/// A matrix in device memory between guard zones, whose harm is reported.
template <class T>
class DeviceMatrix {
public:
    DeviceMatrix(Index rows, Index cols, Index stride)
        : rows_(rows), cols_(cols), stride_(stride), memory_(rows * stride + 2 * margin) {
        host_.assign(to_size(memory_.size()), guard());
        send();
    }
    DeviceMatrix(DeviceMatrix&&) = default;
    DeviceMatrix& operator=(DeviceMatrix&&) = default;
    ~DeviceMatrix() {
        if (memory_.data() == nullptr) return;
        receive();
        Index harmed = 0;
        for (Index e = 0; e < memory_.size(); ++e) {
            const Index inside = e - margin;
            const bool ours = inside >= 0 && inside < rows_ * stride_ && inside % stride_ < cols_;
            harmed += !ours && host_[to_size(e)] != guard();
        }
        BOOST_CHECK_MESSAGE(harmed == 0, harmed << " elements outside of a matrix were written on the GPU");
    }
    MatrixView<T> view() const { return {memory_.data() + margin, rows_, cols_, stride_}; }
    template <class U>
    void set(MatrixView<U> values) {
        for (Index r = 0; r < rows_; ++r)
            for (Index c = 0; c < cols_; ++c) host_[to_size(margin + r * stride_ + c)] = static_cast<T>(values(r, c));
        send();
    }
    std::vector<T> values() {
        receive();
        std::vector<T> all;
        for (Index r = 0; r < rows_; ++r)
            for (Index c = 0; c < cols_; ++c) all.push_back(host_[to_size(margin + r * stride_ + c)]);
        return all;
    }

private:
    static constexpr Index margin = 64;
    static T guard() { return static_cast<T>(123); }
    void send() { copy_from_host(cuda(), std::span<const T>(host_), memory_.view()); }
    void receive() { on_host(cuda(), VectorView<const T>(memory_.view()), host_); }

    Index rows_, cols_, stride_;
    Buffer<T, Cuda> memory_;
    std::vector<T> host_;
};

template <class Cpu_, class Gpu_>
class Pair {
public:
    /// NaN everywhere, or for integers 77.
    Pair(Index rows, Index cols, Index gap = 3) : host(rows, cols, cols + gap), device(rows, cols, cols + gap) {
        if constexpr (std::is_integral_v<Cpu_>) host.fill(77);
        send();
    }
    static Pair random(Index rows, Index cols, std::uint64_t seed, double scale = 1.0, Index gap = 3) {
        Pair p(rows, cols, gap);
        Philox numbers(seed);
        for (Index r = 0; r < rows; ++r)
            for (Index c = 0; c < cols; ++c)
                p.host(r, c) = static_cast<Cpu_>(static_cast<Gpu_>(scale * numbers.normal()));
        p.send();
        return p;
    }
    static Pair zeros(Index rows, Index cols, Index gap = 3) {
        Pair p(rows, cols, gap);
        p.host.fill(0);
        p.send();
        return p;
    }
    void send() { device.set(host.view()); }
    MatrixView<Cpu_> c() { return host.view(); }
    MatrixView<Gpu_> g() { return device.view(); }
    VectorView<Cpu_> cv() { return {host.data(), host.rows() * host.cols()}; }
    VectorView<Gpu_> gv() { return {device.view().data, host.rows() * host.cols()}; }
    std::vector<Cpu_> expected() { return host.values(); }
    std::vector<Gpu_> found() { return device.values(); }

    Matrix<Cpu_> host;
    DeviceMatrix<Gpu_> device;
};

using Both = Pair<double, float>;
using Half = Pair<double, bf16>;
using Ids = Pair<std::int32_t, std::int32_t>;

inline Both vector_of(Index size, std::uint64_t seed, double scale = 1.0) {
    return Both::random(1, size, seed, scale, 0);
}
inline Both empty_vector(Index size) { return Both(1, size, 0); }

/// Within tolerance of the largest element, or of 0.1 where all are smaller: inputs are near 1, and what cancels to
/// zero in float64 leaves rounding in float32.
inline void check_same(const char* name, Both& m, double tolerance = 1e-5) {
    auto found = m.found();
    auto expected = m.expected();
    found.push_back(0.1f), expected.push_back(0.1f);
    const double error = relative_error(found, expected);
    BOOST_CHECK_MESSAGE(error <= tolerance, name << ": relative error " << error << ", allowed " << tolerance);
}
/// In bf16: within tolerance by norm, ||found - expected|| / ||expected||, and finite everywhere. A rounding of bf16 is
/// at most 2^-8 = 0.0039 of a number, 0.0017 by norm.
inline void check_same(const char* name, Half& m, double tolerance = 4e-3) {
    const auto found = m.found();
    const auto expected = m.expected();
    double error = 0, size = 1e-30;
    for (std::size_t i = 0; i < found.size(); ++i) {
        const double apart = static_cast<double>(static_cast<float>(found[i])) - expected[i];
        error += apart * apart, size += expected[i] * expected[i];
    }
    error = std::sqrt(error / size);
    BOOST_CHECK_MESSAGE(error <= tolerance, name << ": relative error by norm " << error << ", allowed " << tolerance);
}
template <class T>
void check_equal(const char* name, Pair<T, T>& m) {
    BOOST_CHECK_MESSAGE(m.found() == m.expected(), name << " differs");
}

/// Ids on the device as operations take them.
inline std::span<const std::int32_t> span_of(MatrixView<std::int32_t> m) { return {m.data, to_size(m.rows * m.cols)}; }

/// Lengths to sequences; past: tokens that every state has taken in.
inline Sequences sequences_of(const std::vector<Index>& lengths, Index past = 0) {
    std::vector<Index> offsets{0}, slots, pasts;
    for (std::size_t s = 0; s < lengths.size(); ++s) {
        offsets.push_back(offsets.back() + lengths[s]);
        slots.push_back(static_cast<Index>(lengths.size() - 1 - s));
        pasts.push_back(s % 2 == 0 ? past : 0);
    }
    return Sequences(std::move(offsets), slots, pasts);
}

}  // namespace kimik3::test
