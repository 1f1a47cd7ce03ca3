#pragma once
// Matrices of bf16 as float32 in scratch memory: what an operation without
// kernels of its own for bf16 runs on.

#include "kimik3/ops/cuda/launch.cuh"

namespace kimik3::gpu {

template <class From, class To>
void convert(const Context<Cuda>& ctx, MatrixView<From> from, MatrixView<To> to) {
    for_each(ctx, to.size(),
             [=] __device__(Index i) { to(i / to.cols, i % to.cols) = To(float(from(i / to.cols, i % to.cols))); });
}

/// Hands out float32 matrices from one piece of scratch memory. Inputs are
/// converted up to row `used`; results are converted back when they are
/// complete.
class Widened {
public:
    /// Memory for matrices of as many elements as those of like.
    template <class... Matrices>
    Widened(const Context<Cuda>& ctx, Index used, const Matrices&... like)
        : ctx_(ctx), used_(used), next_(ctx.workspace<float>(Scratch::widened, (Index{0} + ... + like.size()))) {}

    MatrixView<const float> of(MatrixView<const bf16> m) {
        const MatrixView<float> wide = room(m.rows, m.cols);
        convert(ctx_, m.middle_rows(0, used_), wide.middle_rows(0, used_));
        return wide;
    }
    MatrixView<const float> whole(MatrixView<const bf16> m) {
        const MatrixView<float> wide = room(m.rows, m.cols);
        convert(ctx_, m, wide);
        return wide;
    }
    MatrixView<float> result(MatrixView<bf16> m) {
        return m.data == nullptr ? MatrixView<float>{} : room(m.rows, m.cols);
    }
    void back(MatrixView<float> wide, MatrixView<bf16> m) const { convert(ctx_, wide, m); }

private:
    MatrixView<float> room(Index rows, Index cols) {
        const MatrixView<float> m(next_, rows, cols);
        next_ += m.size();
        return m;
    }
    const Context<Cuda>& ctx_;
    Index used_;
    float* next_;
};

}  // namespace kimik3::gpu
