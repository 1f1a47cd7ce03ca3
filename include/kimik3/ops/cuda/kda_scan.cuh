#pragma once
// The serial part of KDA: states forward and their gradients back, chunk by chunk (spec 2.5, 2.7). Columns of a state
// are independent, so a block owns a slice of the value channels of one head of one sequence, a warp 16 of them: S^T
// [16, K] in float32 sums. Per chunk, with -W, U, Q+, K-bar and P of kda_prepare.cuh,
//   forward:  V' = U - W S;  O = Q+ S + P V';  S := diag(e^c_C) S + K-bar^T V'
//   backward: dV' = K-bar G + P^T dO;  G := diag(e^c_C) G + Q+^T dO - W^T dV'
// Operands of the next chunk are copied to the other of two stages meanwhile.

#include "kimik3/ops/cuda/carried.cuh"
#include "kimik3/ops/cuda/kda_blocks.cuh"

namespace kimik3::gpu::kda {

/// groups of four warps, of 64 value channels each.
template <class C, int groups_>
struct Slice {
    static constexpr int groups = groups_, threads = 128 * groups, columns = 64 * groups, count = C::width / columns;
};

template <class C, class Sl>
struct ScanStage {
    static constexpr int tile = C::rows * C::width;
    bf16 w[tile], q[tile], k[tile], value[C::rows * Sl::columns];  // value: U, or dO; in the end what is written
    bf16 p[C::rows * 64];
    float end[C::width];
    Arrival arrival;
    char rest[1024 - (4 * C::width + 8) % 1024];  // blocks begin at multiples of 1024 bytes
};
template <class C, class Sl>
inline constexpr std::size_t scan_bytes = 2 * sizeof(ScanStage<C, Sl>) + 1024;

/// The place of a block, and of a thread's warp in it.
template <class C, class Sl>
struct Scanned {
    Index sequence, head, heads;
    Index first_chunk;  // of the sequence
    int chunks;
    int first;   // value channel of the block
    int column;  // of the warp within its 64
    ScanStage<C, Sl>* stages;

    __device__ Scanned(const Index* starts, Index head_count, char* memory)
        : sequence(blockIdx.x / Sl::count / head_count),
          head(blockIdx.x / Sl::count % head_count),
          heads(head_count),
          first_chunk(starts[sequence]),
          chunks(static_cast<int>(starts[sequence + 1] - first_chunk)),
          first(static_cast<int>(blockIdx.x % Sl::count) * Sl::columns),
          column(static_cast<int>(threadIdx.x) / 32 % 4 * 16),
          stages(reinterpret_cast<ScanStage<C, Sl>*>(memory + (1024 - shared_address(memory) % 1024) % 1024)) {}

    __device__ Index unit(int chunk) const { return (first_chunk + chunk) * heads + head; }
    /// The warp's 64 columns of a stage's value.
    __device__ bf16* values(ScanStage<C, Sl>& stage) const { return stage.value + threadIdx.x / 128 * C::rows * 64; }
    /// In a state, the warp's first column.
    __device__ Index state_column() const {
        return head * C::state + first + static_cast<Index>(threadIdx.x / 128 * 64) + column;
    }
    /// number: of the chunk in the order of the pass.
    __device__ ScanStage<C, Sl>& stage(int number) const { return stages[number % 2]; }
    __device__ void begin() const {
        if (threadIdx.x == 0) begin_arrivals(&stages[0].arrival), begin_arrivals(&stages[1].arrival);
        __syncthreads();
    }

    /// Starts to copy the operands of a chunk; without u, value stays as it is.
    __device__ void load(const Prepared& from, int chunk, int number, const bf16* u) const {
        constexpr int tile = C::rows * C::width * 2, pairs = C::rows * 64 * 2, value = C::rows * Sl::columns * 2;
        ScanStage<C, Sl>& to = stage(number);
        const Index at = unit(chunk);
        announce(&to.arrival, 3 * tile + pairs + 4 * C::width + (u != nullptr ? value : 0));
        copy_whole<Sl::threads>(to.w, from.w + at * C::rows * C::width, tile, &to.arrival);
        copy_whole<Sl::threads>(to.k, from.k + at * C::rows * C::width, tile, &to.arrival);
        if (u != nullptr)
            copy_whole<Sl::threads>(to.value, u + at * C::rows * C::width + C::rows * first, value, &to.arrival);
        copy_whole<Sl::threads>(to.q, from.q + at * C::rows * C::width, tile, &to.arrival);
        copy_whole<Sl::threads>(to.p, from.p + at * C::rows * 64, pairs, &to.arrival);
        copy_whole<Sl::threads>(to.end, from.end + at * C::width, 4 * C::width, &to.arrival);
    }
    __device__ void wait(int number) const {
        wait_for_copies<0>();
        show_to_products();
        __syncthreads();
        wait_for_arrival(&stage(number).arrival, number / 2 % 2);
    }
    /// A packed state for the gradient kernel, in the order of the fragments.
    __device__ void keep(const Fragment (&a)[C::width / 16], bf16* to) const {
        const int strip = (first + column) / 16 + static_cast<int>(threadIdx.x) / 128 * 4;
#pragma unroll
        for (int i = 0; i < C::width / 16; ++i)
            as_16_bytes(to + ((strip * (C::width / 16) + i) * 32 + threadIdx.x % 32) * 8) =
                uint4{a[i][0], a[i][1], a[i][2], a[i][3]};
    }
    /// 16 x 16 of the stage's value, transposed.
    __device__ void load_value(Fragment& a, ScanStage<C, Sl>& stage, int tile) const {
        const int lane = threadIdx.x % 32;
        load_matrices_transposed(
            a, values(stage) + swizzled(16 * tile + lane % 8 + lane / 16 * 8, column + lane / 8 % 2 * 8));
    }
    /// The warp puts a result where its columns of value were, and writes them to rows of a token matrix.
    __device__ void put_value(const Fragment& a, ScanStage<C, Sl>& stage, int tile) const {
        const int lane = threadIdx.x % 32;
        __syncwarp();  // all lanes have read what was there
#pragma unroll
        for (int i = 0; i < 4; ++i)
            *reinterpret_cast<std::uint32_t*>(
                values(stage) + swizzled(16 * tile + i / 2 * 8 + lane / 4, column + i % 2 * 8 + lane % 4 * 2)) =
                transposed_8x8(a[i]);
    }
    __device__ void write_value(ScanStage<C, Sl>& stage, bf16* to, Index stride, int count) const {
        const int lane = threadIdx.x % 32, col = column + lane % 2 * 8;
        __syncwarp();
#pragma unroll
        for (int row = lane / 2; row < C::rows; row += 16)
            if (row < count)
                as_16_bytes(to + row * stride + threadIdx.x / 128 * 64 + col) =
                    as_16_bytes(values(stage) + swizzled(row, col));
    }
};

/// A warp's S^T: tiles of 16 channels.
template <class C>
struct State {
    static constexpr int pairs = C::width / 16;
    float s[pairs][2][4];

    /// body(number, row of the state [K, V], column of it within the warp's).
    template <class Body>
    __device__ void each(Body&& body) {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int i = 0; i < pairs; ++i)
#pragma unroll
            for (int n = 0; n < 2; ++n)
#pragma unroll
                for (int e = 0; e < 4; ++e)
                    body(s[i][n][e], 16 * i + 8 * n + lane % 4 * 2 + e % 2, lane / 4 + e / 2 * 8);
    }
    __device__ void load(const float* from) {
        each([&](float& x, int row, int col) { x = from == nullptr ? 0.0f : from[row * C::width + col]; });
    }
    __device__ void store(float* to) {
        each([&](float& x, int row, int col) { to[row * C::width + col] = x; });
    }
    __device__ void pack(Fragment (&a)[pairs]) const {
#pragma unroll
        for (int i = 0; i < pairs; ++i) pack_tile(a[i], s[i]);
    }
    __device__ void decay(const float* end) {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int i = 0; i < 2 * pairs; ++i) {
            const float2 d = *reinterpret_cast<const float2*>(end + 8 * i + lane % 4 * 2);
            float(&x)[4] = s[i / 2][i % 2];
            x[0] *= d.x, x[1] *= d.y, x[2] *= d.x, x[3] *= d.y;
        }
    }
    /// s += a m, the tokens of a chunk one tile after another.
    __device__ void add(const Fragment (&a)[C::tiles], const bf16* m) {
#pragma unroll
        for (int t = 0; t < C::tiles; ++t) multiply_columns<C>(s, a[t], m, t);
    }
};

/// sum += a m^T over the channels.
template <class C>
__device__ void read_state(float (&sum)[C::tiles][2][4], const Fragment (&a)[C::width / 16], const bf16* m) {
#pragma unroll
    for (int i = 0; i < C::width / 16; ++i) multiply_rows<C>(sum, a[i], m, i);
}

template <class C, class Sl>
__global__ void __launch_bounds__(Sl::threads, 1)
    scan_forward_kernel(Prepared from, const Place* places, const Index* starts, DeviceSequences seq, Index heads,
                        MatrixView<const float> initial, MatrixView<bf16> o, MatrixView<float> final,
                        MatrixView<bf16> states) {
    extern __shared__ char memory[];
    begin_in_turn();
    const Scanned<C, Sl> at(starts, heads, memory);
    const auto load = [&](int chunk) {
        if (chunk < at.chunks) at.load(from, chunk, chunk, from.u);
        commit_copies();
    };
    at.begin();
    load(0);
    State<C> state;
    const float* begin = carried_in<float>(seq, at.sequence, initial);
    state.load(begin == nullptr ? nullptr : begin + at.state_column());
    for (int chunk = 0; chunk < at.chunks; ++chunk) {
        ScanStage<C, Sl>& m = at.stage(chunk);
        at.wait(chunk);
        load(chunk + 1);
        Fragment before[C::width / 16], values[C::tiles];
        state.pack(before);
        if (states.rows != 0) at.keep(before, states.row(at.first_chunk + chunk) + at.head * C::state);
        float value[C::tiles][2][4], out[C::tiles][2][4] = {};
#pragma unroll
        for (int t = 0; t < C::tiles; ++t) {
            Fragment u;
            at.load_value(u, m, t);
            unpack_tile(value[t], u);
        }
        begin_products();
        read_state<C>(value, before, m.w);
        commit_products();
        read_state<C>(out, before, m.q);
        commit_products();
        state.decay(m.end);
        wait_for_products<1>();
#pragma unroll
        for (int t = 0; t < C::tiles; ++t) pack_tile(values[t], value[t]);
        begin_products();
        state.add(values, m.k);
        commit_products();
#pragma unroll
        for (int j = 0; j < C::tiles; ++j) multiply_rows<C>(out, values[j], m.p, j);
        commit_products();
        wait_for_products<0>();
#pragma unroll
        for (int t = 0; t < C::tiles; ++t) {
            Fragment packed;
            pack_tile(packed, out[t]);
            at.put_value(packed, m, t);
        }
        const Place place = places[at.first_chunk + chunk];
        at.write_value(m, o.row(place.first) + at.head * C::width + at.first, o.stride, place.count);
    }
    wait_for_copies<0>();
    float* last = carried_out<float>(seq, at.sequence, initial, final);
    if (last != nullptr) state.store(last + at.state_column());
}

/// dvalues: dV' [chunks H, rows, V]; dstates: the gradient of the state after each chunk, as states of forward.
template <class C, class Sl>
__global__ void __launch_bounds__(Sl::threads, 1)
    scan_backward_kernel(Prepared from, const Place* places, const Index* starts, DeviceSequences seq, Index heads,
                         MatrixView<const bf16> d_o, MatrixView<const float> dfinal, MatrixView<float> dinitial,
                         bf16* dvalues, bf16* dstates) {
    extern __shared__ char memory[];
    begin_in_turn();
    const Scanned<C, Sl> at(starts, heads, memory);
    const auto load = [&](int number) {
        if (number < at.chunks) {
            const int chunk = at.chunks - 1 - number;
            const Place place = places[at.first_chunk + chunk];
            at.load(from, chunk, number, nullptr);
            copy_blocks<Sl::threads, C::rows, Sl::groups>(
                at.stage(number).value, d_o.row(place.first) + at.head * C::width + at.first, d_o.stride, place.count);
        }
        commit_copies();
    };
    at.begin();
    load(0);
    State<C> gradient;
    gradient.load(dfinal.rows == 0 ? nullptr : dfinal.row(seq.slots[at.sequence]) + at.state_column());
    for (int number = 0; number < at.chunks; ++number) {
        const int chunk = at.chunks - 1 - number;
        ScanStage<C, Sl>& m = at.stage(number);
        at.wait(number);
        load(number + 1);
        Fragment after[C::width / 16], d_out[C::tiles], values[C::tiles];
        gradient.pack(after);
        at.keep(after, dstates + at.unit(chunk) * C::state);
#pragma unroll
        for (int t = 0; t < C::tiles; ++t) at.load_value(d_out[t], m, t);
        float value[C::tiles][2][4] = {};
        begin_products();
#pragma unroll
        for (int i = 0; i < C::tiles; ++i) multiply_columns<C>(value, d_out[i], m.p, i);
        read_state<C>(value, after, m.k);
        commit_products();
        gradient.decay(m.end);
        wait_for_products<0>();
#pragma unroll
        for (int t = 0; t < C::tiles; ++t) pack_tile(values[t], value[t]);
        begin_products();
        gradient.add(d_out, m.q);
        gradient.add(values, m.w);
        commit_products();
#pragma unroll
        for (int t = 0; t < C::tiles; ++t) at.put_value(values[t], m, t);
        at.write_value(m, dvalues + at.unit(chunk) * C::rows * C::width + at.first, C::width, C::rows);
        wait_for_products<0>();
    }
    wait_for_copies<0>();
    if (dinitial.rows != 0) gradient.store(dinitial.row(seq.slots[at.sequence]) + at.state_column());
}

}  // namespace kimik3::gpu::kda
