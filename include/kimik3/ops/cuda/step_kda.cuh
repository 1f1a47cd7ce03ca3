#pragma once
// A decoding step of KDA on the GPU: a block a head of a sequence, four threads a column of its state, which lies in
// registers before the inputs are there.

#include "kimik3/ops/cuda/few_rows.cuh"
#include "kimik3/ops/cuda/quick_formulas.cuh"
#include "kimik3/ops/l2_norm.hpp"
#include "kimik3/ops/step_kda.hpp"

namespace kimik3 {
namespace gpu {

template <class T>
struct StepKdaWork {
    DeviceSequences seq;
    int heads, taps, rank;
    float lower_bound, eps;
    MatrixView<const T> in[3];
    MatrixView<const float> conv[3];
    MatrixView<float> window[3];
    MatrixView<const T> f_low, f_b, b, gate;
    const float *A_log, *dt_bias, *norm;
    MatrixView<float> state;
    MatrixView<T> y;
};

template <class T, int dim, bool is_wide>
__global__ void __launch_bounds__(4 * dim) step_kda_kernel(const __grid_constant__ StepKdaWork<T> work) {
    constexpr int rows = dim / 4, warps = dim / 8, held = 4;
    constexpr int past = static_cast<int>(StepKda<T>::most_taps) - 1;
    __shared__ float4 row[dim];  // q, k and decay of a channel
    __shared__ float value[dim], predicted[4][dim], read[4][dim], sums[3], squares[warps];
    let_next_begin();
    const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32, part = thread / dim,
              column = thread % dim;
    const int n = static_cast<int>(blockIdx.x) / work.heads, h = static_cast<int>(blockIdx.x) % work.heads;
    const Index slot = work.seq.slots[n];
    const bool fresh = work.seq.pasts[n] == 0;
    const Index wide = Index{work.heads} * dim, at = Index{h} * dim + column;

    float* state = work.state.row(slot) + (Index{h} * dim + part * rows) * dim + column;
    float s[rows];
#pragma unroll
    for (int i = 0; i < rows; ++i) s[i] = fresh ? 0.0f : state[i * dim];
    float before[past] = {}, taps[past + 1] = {};
    float* window = nullptr;
    if (part < 3) {
        window = work.window[part].row(slot) + at;
#pragma unroll
        for (int j = 0; j <= past; ++j) {
            if (j < work.taps) taps[j] = work.conv[part](at, j);
            if (j + 1 < work.taps && j < past && !fresh) before[j] = window[j * wide];
        }
    }
    // Four lanes a channel of the gate.
    const int channel = thread / 4, quarter = thread % 4;
    const T* gate_row = work.f_b.row(Index{h} * dim + channel);
    Octet<T> gate_weights[held];
#pragma unroll
    for (int i = 0; i < held; ++i) gate_weights[i] = load_octet<is_wide>(gate_row, 32 * i + 8 * quarter, work.rank);
    const float bias = work.dt_bias[Index{h} * dim + channel], rate = exp_of<T>(work.A_log[h]);

    await_predecessor();
    const float beta = sigmoid_of<T>(work.b(n, h));
    if (part < 3) {
        const float now = work.in[part](n, at);
        float sum = 0;
#pragma unroll
        for (int j = 0; j <= past; ++j)
            if (j < work.taps) sum += taps[j] * (j + 1 < work.taps ? before[j < past ? j : 0] : now);
        sum *= sigmoid_of<T>(sum);
        if (part == 0) row[column].x = sum;
        if (part == 1) row[column].y = sum;
        if (part == 2) value[column] = sum;
#pragma unroll
        for (int j = 0; j < past; ++j)
            if (j + 1 < work.taps) window[j * wide] = j + 2 < work.taps ? before[j + 1 < past ? j + 1 : 0] : now;
    }
    float logit = 0;
#pragma unroll
    for (int i = 0; i < held; ++i) {
        const Octet<T> x = load_octet<is_wide>(work.f_low.row(n), 32 * i + 8 * quarter, work.rank);
        for (int e = 0; e < 8; ++e) logit += gate_weights[i][e] * x[e];
    }
#pragma unroll 1
    for (int k = 32 * held + 8 * quarter; k < work.rank; k += 32) {
        const Octet<T> w = load_octet<is_wide>(gate_row, k, work.rank),
                       x = load_octet<is_wide>(work.f_low.row(n), k, work.rank);
        for (int e = 0; e < 8; ++e) logit += w[e] * x[e];
    }
    logit = TileLane{}.quad_sum(logit) + bias;
    if (quarter == 0) row[channel].z = exp_of<T>(work.lower_bound * sigmoid_of<T>(rate * logit));
    __syncthreads();

#pragma unroll 1
    for (int which = warp; which < 3; which += warps) {  // q q, k k, q k
        float sum = 0;
        for (int a = lane; a < dim; a += 32)
            sum += (which == 1 ? row[a].y : row[a].x) * (which == 0 ? row[a].x : row[a].y);
        sum = warp_sum(sum);
        if (lane == 0) sums[which] = sum;
    }
    float of_k = 0, of_q = 0;
#pragma unroll
    for (int i = 0; i < rows; ++i) {
        const float4 channels = row[part * rows + i];
        s[i] *= channels.z;
        of_k += channels.y * s[i];
        of_q += channels.x * s[i];
    }
    predicted[part][column] = of_k, read[part][column] = of_q;
    __syncthreads();
    const float q_scale = rsqrtf(sums[0] + static_cast<float>(l2_norm_eps)) * rsqrtf(static_cast<float>(dim)),
                k_scale = rsqrtf(sums[1] + static_cast<float>(l2_norm_eps));
    of_k = of_q = 0;
    for (int p = 0; p < 4; ++p) of_k += predicted[p][column], of_q += read[p][column];
    const float u = beta * (value[column] - k_scale * of_k);
    const float o = q_scale * of_q + q_scale * k_scale * sums[2] * u;
    if (32 * warp < dim) {
        const float sum = warp_sum(part == 0 ? o * o : 0.0f);
        if (lane == 0) squares[warp] = sum;
    }
    __syncthreads();
    if (part == 0) {
        float mean = 0;
        for (int w = 0; 32 * w < dim; ++w) mean += squares[w];
        const float r = rsqrtf(mean / static_cast<float>(dim) + work.eps);
        const float gate = work.gate.cols == 0 ? 1.0f : sigmoid_of<T>(work.gate(n, at));
        work.y(n, at) = static_cast<T>(o * r * work.norm[column] * gate);
    }
#pragma unroll
    for (int i = 0; i < rows; ++i) state[i * dim] = s[i] + row[part * rows + i].y * k_scale * u;
}

}  // namespace gpu

template <class T>
void step_kda(const Context<Cuda>& ctx, const Sequences& seq, const StepKda<T>& in, std::type_identity_t<Out<T>> y) {
    const Index dim = y.cols / in.heads;
    require(StepKda<T>::fits(dim, in.q_conv.cols), "step_kda: no step for heads of {} and {} taps", dim,
            in.q_conv.cols);
    require_shape("step_kda: y", y, seq.count(), in.heads * dim);
    const Index tokens = y.rows, width = y.cols, taps = in.q_conv.cols, slots = in.state.rows;
    require_shape("step_kda: q", in.q, tokens, width);
    require_shape("step_kda: k", in.k, tokens, width);
    require_shape("step_kda: v", in.v, tokens, width);
    require_shape("step_kda: q_conv", in.q_conv, width, taps);
    require_shape("step_kda: k_conv", in.k_conv, width, taps);
    require_shape("step_kda: v_conv", in.v_conv, width, taps);
    require_shape("step_kda: q_window", in.q_window, slots, (taps - 1) * width);
    require_shape("step_kda: k_window", in.k_window, slots, (taps - 1) * width);
    require_shape("step_kda: v_window", in.v_window, slots, (taps - 1) * width);
    require_shape("step_kda: state", in.state, slots, width * dim);
    require_shape("step_kda: f_low", in.f_low, tokens, in.f_low.cols);
    require_shape("step_kda: b", in.b, tokens, in.heads);
    if (in.gate.cols > 0) require_shape("step_kda: gate", in.gate, tokens, width);
    require_size("step_kda: A_log", in.A_log, in.heads);
    require_size("step_kda: dt_bias", in.dt_bias, width);
    require_size("step_kda: norm", in.norm, dim);
    require_shape("step_kda: f_b", in.f_b, width, in.f_low.cols);
    for (Index n = 0; n < tokens; ++n)
        require(seq.slot(n) >= 0 && seq.slot(n) < slots, "step_kda: slots lie in [0, {}), sequence {} asks for {}",
                slots, n, seq.slot(n));
    const gpu::StepKdaWork<T> work{DeviceSequences(ctx, seq),
                                   static_cast<int>(in.heads),
                                   static_cast<int>(in.q_conv.cols),
                                   static_cast<int>(in.f_b.cols),
                                   static_cast<float>(in.lower_bound),
                                   static_cast<float>(in.eps),
                                   {in.q, in.k, in.v},
                                   {in.q_conv, in.k_conv, in.v_conv},
                                   {in.q_window, in.k_window, in.v_window},
                                   in.f_low,
                                   in.f_b,
                                   in.b,
                                   in.gate,
                                   in.A_log.data,
                                   in.dt_bias.data,
                                   in.norm.data,
                                   in.state,
                                   y};
    const bool wide = gpu::is_wide(in.f_low) && gpu::is_wide(in.f_b);
    const auto launch = [&](auto dim_of) {
        gpu::launch_early(ctx, seq.count() * in.heads, 4 * dim_of, 0,
                          wide ? gpu::step_kda_kernel<T, dim_of, true> : gpu::step_kda_kernel<T, dim_of, false>, work);
    };
    if (dim == 16) launch(std::integral_constant<int, 16>{});
    else if (dim == 32) launch(std::integral_constant<int, 32>{});
    else if (dim == 64) launch(std::integral_constant<int, 64>{});
    else launch(std::integral_constant<int, 128>{});
}

}  // namespace kimik3
