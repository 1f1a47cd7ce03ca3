#pragma once
// Fused KDA in bf16 on tensor cores, for heads of 64 or 128 key and as many value channels: chunks in parallel
// (kda_prepare.cuh), states in series (kda_scan.cuh) and, for backward, gradients of chunks in parallel
// (kda_gradients.cuh). Operands of products are bf16; decays, states and sums are float32.

#include "kimik3/ops/cuda/kda_gradients.cuh"
#include "kimik3/ops/cuda/kda_prepare.cuh"
#include "kimik3/ops/cuda/kda_scan.cuh"

namespace kimik3::gpu::kda {

/// Whether a block can have the shared memory that the largest kernel needs.
inline bool enough_memory() {
    return most_shared_bytes() + 4096 >= static_cast<Index>(sizeof(GradientMemory<Chunk<4, 128>>));
}

/// Whether heads have a size that these kernels are for; forward and backward agree on it, since the numbers of a saved
/// state stand in an order of their own.
inline bool suits(Index key, Index value) { return key == value && (key == 64 || key == 128) && enough_memory(); }
inline bool suits(const KdaFusedForm& form, const KdaRawInput<bf16>& in) {
    return suits(in.q.cols / form.heads, in.v.cols / form.heads);
}

/// Stands in for matrices whose rows do not begin at multiples of 16 bytes.
class Aligned {
public:
    template <class... Matrices>
    Aligned(const Context<Cuda>& ctx, const Matrices&... all)
        : ctx_(ctx), next_(ctx.workspace<bf16>(Scratch::widened, (Index{0} + ... + needed(all)))) {}

    MatrixView<const bf16> in(MatrixView<const bf16> m) {
        if (needed(m) == 0) return m;
        const MatrixView<bf16> copied = room(m);
        copy(ctx_, m, copied);
        return copied;
    }
    MatrixView<bf16> out(MatrixView<bf16> m) { return needed(m) == 0 ? m : room(m); }
    void back(MatrixView<bf16> from, MatrixView<bf16> m) const {
        if (from.data != m.data) copy(ctx_, from, m);
    }

private:
    static Index needed(const MatrixView<const bf16>& m) {
        const bool aligned = reinterpret_cast<std::uintptr_t>(m.data) % 16 == 0 && m.stride % 8 == 0;
        return aligned ? 0 : round_up(m.rows * m.cols, 64);
    }
    MatrixView<bf16> room(const MatrixView<const bf16>& m) {
        const MatrixView<bf16> place(next_, m.rows, m.cols);
        next_ += needed(m);
        return place;
    }
    const Context<Cuda>& ctx_;
    bf16* next_;
};

/// The chunks of all sequences: their places, and the first chunk of every sequence.
struct Layout {
    std::vector<Place> places;
    std::vector<Index> starts{0};

    Layout(const Sequences& seq, Index chunk) {
        for (Index s = 0; s < seq.count(); ++s) {
            for (Index row = seq.begin(s); row < seq.end(s); row += chunk)
                places.push_back({row, static_cast<std::int32_t>((std::min)(chunk, seq.end(s) - row)),
                                  static_cast<std::int32_t>(s)});
            starts.push_back(static_cast<Index>(places.size()));
        }
    }
    Index chunks() const { return static_cast<Index>(places.size()); }
};

/// call(std::type_identity<Chunk<..>>) for the form.
template <class Call>
void with_chunk(Index width, Index chunk, Call&& call) {
    if (width == 128 && chunk == 64) return call(std::type_identity<Chunk<4, 128>>{});
    if (width == 128) return call(std::type_identity<Chunk<2, 128>>{});
    if (chunk == 64) return call(std::type_identity<Chunk<4, 64>>{});
    call(std::type_identity<Chunk<2, 64>>{});
}
/// call(std::type_identity<Slice<..>>): half a head a block where whole heads do not fill the GPU.
template <class C, class Call>
void with_slice(Index heads_of_sequences, Call&& call) {
    if constexpr (C::width == 128)
        if (2 * heads_of_sequences > multiprocessors()) return call(std::type_identity<Slice<C, 2>>{});
    call(std::type_identity<Slice<C, 1>>{});
}

template <class... Parameters, class... Arguments>
void launch(const Context<Cuda>& ctx, void (*kernel)(Parameters...), Index blocks, int threads, std::size_t memory,
            const Arguments&... arguments) {
    launch_early(ctx, blocks, threads, static_cast<Index>(memory), kernel, arguments...);
}

/// Hands out arrays, aligned to 128 bytes, of one piece of scratch memory; measures where there is none.
struct Pieces {
    char* memory = nullptr;
    Index used = 0;

    template <class T>
    T* take(Index count) {
        T* piece = reinterpret_cast<T*>(memory + used);
        used += round_up(count * static_cast<Index>(sizeof(T)), 128);
        return memory == nullptr ? nullptr : piece;
    }
};

template <class C>
Prepared prepared(Pieces& pieces, Index units, bool backward) {
    const Index tile = units * C::rows * C::width, square = units * C::rows * C::rows;
    Prepared p{};
    for (bf16** m : {&p.w, &p.u, &p.q, &p.k}) *m = pieces.take<bf16>(tile);
    p.p = pieces.take<bf16>(units * C::rows * 64);
    p.end = pieces.take<float>(units * C::width);
    if (backward) p.lower = pieces.take<bf16>(square), p.inner = pieces.take<bf16>(units * C::rows * 16);
    return p;
}

/// Bytes of what forward prepares for backward, in chunks of the form.
inline Index prepared_bytes(const Sequences& seq, const KdaFusedForm& form, Index width) {
    Pieces pieces;
    with_chunk(width, form.chunk, [&](auto shape) {
        prepared<typename decltype(shape)::type>(pieces, kda_chunks(seq, form.chunk) * form.heads, true);
    });
    return pieces.used;
}
inline void check_prepared(const Sequences& seq, const KdaFusedForm& form, Index width, VectorView<bf16> memory) {
    if (memory.size == 0) return;
    require_size("kda_fused: prepared", memory, prepared_bytes(seq, form, width) / static_cast<Index>(sizeof(bf16)));
}

template <class C>
void prepare(const Context<Cuda>& ctx, const KdaFusedForm& form, const KdaRawInput<bf16>& in, const Layout& layout,
             const Place* places, const Prepared& to) {
    launch(ctx, prepare_kernel<C>, layout.chunks() * form.heads, C::threads, sizeof(PrepareMemory<C>), in, places,
           form.heads, static_cast<float>(form.lower_bound), to, 2 * multiprocessors());
}

inline void fused_forward(const Context<Cuda>& ctx, const Sequences& seq, const KdaFusedForm& form,
                          const KdaRawInput<bf16>& raw, MatrixView<bf16> raw_o, MatrixView<float> final,
                          MatrixView<bf16> raw_states) {
    Aligned aligned(ctx, raw.q, raw.k, raw.v, raw.z, raw_o, raw_states);
    KdaRawInput<bf16> in = raw;
    for (MatrixView<const bf16>* m : {&in.q, &in.k, &in.v, &in.z}) *m = aligned.in(*m);
    const MatrixView<bf16> o = aligned.out(raw_o), states = aligned.out(raw_states);
    const Index width = in.q.cols / form.heads;
    check_prepared(seq, form, width, in.prepared);
    const bool keeps = states.rows != 0 && in.prepared.size != 0;
    with_chunk(width, states.rows != 0 ? form.chunk : Index{64}, [&](auto shape) {
        using C = typename decltype(shape)::type;
        const Layout layout(seq, C::rows);
        const Place* places = ctx.on_device(std::span<const Place>(layout.places));
        const Index* starts = ctx.on_device(std::span<const Index>(layout.starts));
        Pieces pieces;
        prepared<C>(pieces, layout.chunks() * form.heads, keeps);
        pieces = {keeps ? reinterpret_cast<char*>(in.prepared.data)
                        : ctx.workspace<char>(Scratch::composed, pieces.used), 0};
        const Prepared chunks = prepared<C>(pieces, layout.chunks() * form.heads, keeps);
        prepare<C>(ctx, form, in, layout, places, chunks);
        with_slice<C>(seq.count() * form.heads, [&](auto slice) {
            using Sl = typename decltype(slice)::type;
            launch(ctx, scan_forward_kernel<C, Sl>, seq.count() * form.heads * Sl::count, Sl::threads,
                   scan_bytes<C, Sl>, chunks, places, starts, DeviceSequences(ctx, seq), form.heads, in.initial, o,
                   final, states);
        });
    });
    clear_rows_from(ctx, seq.tokens(), o);
    aligned.back(o, raw_o), aligned.back(states, raw_states);
}

inline void fused_backward(const Context<Cuda>& ctx, const Sequences& seq, const KdaFusedForm& form,
                           const KdaRawInput<bf16>& raw, MatrixView<const bf16> raw_states,
                           MatrixView<const bf16> raw_d_o, MatrixView<const float> dfinal,
                           const KdaRawGradient<bf16>& raw_to) {
    Aligned aligned(ctx, raw.q, raw.k, raw.v, raw.z, raw_states, raw_d_o, raw_to.q, raw_to.k, raw_to.v, raw_to.z);
    KdaRawInput<bf16> in = raw;
    KdaRawGradient<bf16> to = raw_to;
    for (MatrixView<const bf16>* m : {&in.q, &in.k, &in.v, &in.z}) *m = aligned.in(*m);
    for (MatrixView<bf16>* m : {&to.q, &to.k, &to.v, &to.z}) *m = aligned.out(*m);
    const MatrixView<const bf16> states = aligned.in(raw_states), d_o = aligned.in(raw_d_o);
    check_prepared(seq, form, in.q.cols / form.heads, in.prepared);
    const bool kept = in.prepared.size != 0;
    with_chunk(in.q.cols / form.heads, form.chunk, [&](auto shape) {
        using C = typename decltype(shape)::type;
        const Layout layout(seq, C::rows);
        const Place* places = ctx.on_device(std::span<const Place>(layout.places));
        const Index* starts = ctx.on_device(std::span<const Index>(layout.starts));
        const Index units = layout.chunks() * form.heads;
        Prepared chunks{};
        bf16 *dvalues = nullptr, *dstates = nullptr;
        float* gate_parts = nullptr;
        const auto take = [&](Pieces pieces) {
            Pieces before{reinterpret_cast<char*>(in.prepared.data), 0};
            chunks = prepared<C>(kept ? before : pieces, units, true);
            dvalues = pieces.take<bf16>(units * C::rows * C::width);
            dstates = pieces.take<bf16>(units * C::state);
            gate_parts = pieces.take<float>(units * 2 * C::width);
            return pieces.used;
        };
        take({ctx.workspace<char>(Scratch::composed, take({})), 0});
        if (!kept) prepare<C>(ctx, form, in, layout, places, chunks);
        with_slice<C>(seq.count() * form.heads, [&](auto slice) {
            using Sl = typename decltype(slice)::type;
            launch(ctx, scan_backward_kernel<C, Sl>, seq.count() * form.heads * Sl::count, Sl::threads,
                   scan_bytes<C, Sl>, chunks, places, starts, DeviceSequences(ctx, seq), form.heads, d_o, dfinal,
                   to.initial, dvalues, dstates);
        });
        launch(ctx, gradient_kernel<C>, units, GradientMemory<C>::threads, sizeof(GradientMemory<C>), in, places,
               form.heads, static_cast<float>(form.lower_bound), chunks, states, d_o, dvalues, dstates, to, gate_parts,
               multiprocessors());
        if (layout.chunks() > 0)
            launch(ctx, gate_gradient_kernel<C::width>, form.heads, 1024, 0, gate_parts, layout.chunks(), form.heads,
                   to.A_log, to.dt_bias);
    });
    for (const MatrixView<bf16>& m : {to.q, to.k, to.v, to.z, to.b}) clear_rows_from(ctx, seq.tokens(), m);
    aligned.back(to.q, raw_to.q), aligned.back(to.k, raw_to.k), aligned.back(to.v, raw_to.v),
        aligned.back(to.z, raw_to.z);
}

}  // namespace kimik3::gpu::kda

namespace kimik3 {

template <>
struct KdaPrepared<Cuda, bf16> {
    static Index size(const Sequences& seq, const KdaFusedForm& form, Index key, Index value) {
        if (!gpu::kda::suits(key, value)) return 0;
        return gpu::kda::prepared_bytes(seq, form, key) / static_cast<Index>(sizeof(bf16));
    }
};

}  // namespace kimik3
