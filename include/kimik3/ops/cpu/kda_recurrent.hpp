#pragma once
// Token-by-token KDA on the CPU: a thread owns a head of a sequence. Backward keeps the state before every segment of
// tokens and recomputes the states inside a segment.

#include "kimik3/ops/cpu/kda_step.hpp"
#include "kimik3/ops/kda_recurrent.hpp"

namespace kimik3 {
namespace detail {

inline constexpr Index kda_segment = 64;

/// One head of one sequence, with room for a token.
template <class T>
struct KdaHead {
    const KdaInput<T>& in;
    KdaShape shape;
    Index head, begin;  // first row of the sequence
    KdaToken<T> token;

    const T* k(Index t) const { return in.k.row(begin + t) + head * shape.key; }
    const T* v(Index t) const { return in.v.row(begin + t) + head * shape.value; }
    T beta(Index t) const { return in.beta(begin + t, head); }
    T scale() const { return T(1) / std::sqrt(static_cast<T>(shape.key)); }

    void load(Index t) const {
        const T *q = in.q.row(begin + t) + head * shape.key, *g = in.g.row(begin + t) + head * shape.key;
        const T factor = scale();
        for_lanes<T>(shape.key, [&](auto at) {
            at.store(token.q, Lane<T>(at.load(q) * factor));
            at.store(token.decay, Lane<T>(exp(at.load(g))));
        });
    }

    void step(Index t, const T* from, T* state, T* o) const {
        load(t);
        kda_step(shape, token, k(t), v(t), beta(t), from, state, o);
    }
};

/// One token back (KDA-11). before, after [K, V]: the states around token t; G [K, V]: the gradient of `after`, then
/// of `before`; u, du [V]: scratch; d_o [V]; dq, dk, dg [K]; dv [V]. Returns dbeta.
template <class T>
T kda_step_backward(const KdaHead<T>& head, Index t, const T* before, const T* after, const T* d_o, T* u, T* du, T* G,
                    T* dq, T* dk, T* dv, T* dg) {
    const Index key = head.shape.key, value = head.shape.value;
    const T *k = head.k(t), *v = head.v(t);
    const T beta = head.beta(t), scale = head.scale();
    head.load(t);
    std::fill(du, du + value, T(0));
    std::copy(v, v + value, u);
    for (Index a = 0; a < key; ++a) {
        T* row = G + a * value;
        dq[a] = scale * dot(after + a * value, d_o, value);
        for_lanes<T>(value, [&](auto at) {
            const Lane<T> gradient = at.load(row) + head.token.q[a] * at.load(d_o);
            at.store(row, gradient);
            at.store(du, Lane<T>(at.load(du) + k[a] * gradient));
            at.store(u, Lane<T>(at.load(u) - k[a] * head.token.decay[a] * at.load(before + a * value)));
        });
    }
    for_lanes<T>(value, [&](auto at) { at.store(dv, Lane<T>(beta * at.load(du))); });
    for (Index a = 0; a < key; ++a) {
        T* row = G + a * value;
        const T* old = before + a * value;
        dk[a] = beta * dot(row, u, value) - head.token.decay[a] * dot(old, dv, value);
        for_lanes<T>(
            value, [&](auto at) { at.store(row, Lane<T>(head.token.decay[a] * (at.load(row) - k[a] * at.load(dv)))); });
        dg[a] = dot(row, old, value);
    }
    return dot(du, u, value);
}

}  // namespace detail

template <class T>
void kda_recurrent_forward(const Context<Cpu>& ctx, const Sequences& seq, Index heads,
                           std::type_identity_t<KdaInput<T>> in, Out<T> o,
                           std::type_identity_t<Out<accumulator_t<T>>> final) {
    const detail::KdaShape shape = detail::kda_shape<T>(seq, heads, in, o, final);
    detail::clear_rows_after(seq, o);
    detail::for_sequence_heads(ctx, seq, heads, [&](Index s, Index h, int thread) {
        constexpr Index arrays = detail::KdaToken<T>::arrays;
        T* scratch = ctx.workspace<T>(thread, arrays * shape.key + shape.state());
        const detail::KdaHead<T> head{in, shape, h, seq.begin(s), detail::KdaToken<T>::at(scratch, shape.key)};
        const T* from = detail::head_state(detail::carried_in<T>(seq, s, in.initial), shape, h);
        T* kept = detail::head_state(detail::carried_out<T>(seq, s, in.initial, final), shape, h);
        T* state = kept != nullptr ? kept : scratch + arrays * shape.key;
        for (Index t = 0; t < seq.length(s); ++t) {
            head.step(t, t == 0 ? from : state, state, o.row(seq.begin(s) + t) + h * shape.value);
        }
        if (seq.length(s) == 0 && kept != nullptr) {
            for (Index e = 0; e < shape.state(); ++e) kept[e] = from == nullptr ? T(0) : from[e];
        }
    });
}

template <class T>
void kda_recurrent_backward(const Context<Cpu>& ctx, const Sequences& seq, Index heads,
                            std::type_identity_t<KdaInput<T>> in, In<T> d_o, In<accumulator_t<T>> dfinal,
                            const KdaGradient<T>& gradient) {
    using detail::kda_segment;
    const detail::KdaShape shape = detail::kda_shape<T>(seq, heads, in, d_o, dfinal);
    const MatrixView<T> written[] = {gradient.q, gradient.k, gradient.v, gradient.g, gradient.beta};
    for (const MatrixView<T>& m : written)
        detail::clear_rows_after(seq, m);
    detail::for_sequence_heads(ctx, seq, heads, [&](Index s, Index h, int thread) {
        const Index length = seq.length(s), begin = seq.begin(s), size = shape.state(),
                    segments = ceil_div(length, kda_segment);
        const Index key = shape.key, value = shape.value;
        T* G = ctx.workspace<T>(thread,
                                (segments + kda_segment + 2) * size + detail::KdaToken<T>::arrays * key + 2 * value);
        T* starts = G + size;                  // the state before each segment
        T* inside = starts + segments * size;  // the state before each token of a segment, and after its last
        T *token = inside + (kda_segment + 1) * size, *o = token + detail::KdaToken<T>::arrays * key;
        const detail::KdaHead<T> head{in, shape, h, begin, detail::KdaToken<T>::at(token, key)};
        const T* from = detail::head_state(detail::carried_in<T>(seq, s, in.initial), shape, h);
        const T* end = dfinal.rows == 0 ? nullptr : detail::head_state(dfinal.row(seq.slot(s)), shape, h);
        for (Index e = 0; e < size; ++e) inside[e] = from == nullptr ? T(0) : from[e];
        for (Index t = 0; t < length; ++t) {
            if (t % kda_segment == 0) std::copy(inside, inside + size, starts + t / kda_segment * size);
            head.step(t, inside, inside, o);
        }
        for (Index e = 0; e < size; ++e) G[e] = end == nullptr ? T(0) : end[e];
        for (Index segment = segments; segment-- > 0;) {
            const Index first = segment * kda_segment, last = (std::min)(length, first + kda_segment);
            std::copy(starts + segment * size, starts + (segment + 1) * size, inside);
            for (Index t = first; t < last; ++t)
                head.step(t, inside + (t - first) * size, inside + (t - first + 1) * size, o);
            for (Index t = last; t-- > first;) {
                const Index row = begin + t;
                gradient.beta(row, h) = detail::kda_step_backward<T>(
                    head, t, inside + (t - first) * size, inside + (t - first + 1) * size, d_o.row(row) + h * value, o,
                    o + value, G, gradient.q.row(row) + h * key, gradient.k.row(row) + h * key,
                    gradient.v.row(row) + h * value, gradient.g.row(row) + h * key);
            }
        }
        if (gradient.initial.rows != 0)
            std::copy(G, G + size, detail::head_state(gradient.initial.row(seq.slot(s)), shape, h));
    });
}

}  // namespace kimik3
