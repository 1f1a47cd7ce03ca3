#pragma once
// Fused KDA on the CPU: a thread owns a head of a sequence, whose chunks pass through its cache.

#include "kimik3/ops/cpu/decay_gate.hpp"
#include "kimik3/ops/cpu/kda_pairs.hpp"
#include "kimik3/ops/cpu/l2_norm.hpp"
#include "kimik3/ops/kda_fused.hpp"

namespace kimik3 {
namespace detail {

/// FactoredPairs and what the way back through norm and gate needs.
template <class T>
struct FusedPairs : FactoredPairs<T> {
    MatrixView<T> slope;     // [R, K] dg / dz
    VectorView<T> q_r, k_r;  // [R]

    static FusedPairs bind(Arena& arena, const KdaWork<T>& w) {
        FusedPairs p{FactoredPairs<T>::bind(arena, w), {}, {}, {}};
        p.slope = arena.matrix<T>(w.rows, w.key), p.q_r = arena.vector<T>(w.rows), p.k_r = arena.vector<T>(w.rows);
        return p;
    }
};

/// One head of the raw inputs.
template <class T>
struct FusedHead {
    const KdaRawInput<T>& in;
    const KdaShape& shape;
    Index head;
    T rate, bound;  // e^A_log and the lower bound of the log-decay

    FusedHead(const KdaRawInput<T>& input, const KdaShape& sizes, Index h, double lower_bound)
        : in(input),
          shape(sizes),
          head(h),
          rate(std::exp(input.A_log[h])),
          bound(static_cast<T>(lower_bound)) {}

    T scale() const { return T(1) / std::sqrt(static_cast<T>(shape.key)); }

    /// to = from r factor; returns r.
    T unit(const T* from, T factor, T* to) const {
        const T r = l2_scale(from, shape.key);
        for_lanes<T>(shape.key, [&](auto at) { at.store(to, Lane<T>(at.load(from) * (r * factor))); });
        return r;
    }
    T load_q(Index row, T* to) const { return unit(in.q.row(row) + head * shape.key, scale(), to); }
    T load_k(Index row, T* to) const { return unit(in.k.row(row) + head * shape.key, T(1), to); }
    T beta(Index row) const { return sigmoid(in.b(row, head)); }

    /// The log-decay of a row, and its derivative by z unless slope is nullptr.
    void load_decay(Index row, T* g, T* slope) const {
        const T *z = in.z.row(row) + head * shape.key, *bias = in.dt_bias.data + head * shape.key;
        for_lanes<T>(shape.key, [&](auto at) {
            // (KDA-6)
            const Lane<T> s = sigmoid(Lane<T>(rate * (at.load(z) + at.load(bias))));
            at.store(g, Lane<T>(bound * s));
            if (slope != nullptr) at.store(slope, Lane<T>(bound * rate * s * (T(1) - s)));
        });
    }

    void load(KdaWork<T>& w, FusedPairs<T>& p, Index row, Index count, bool backward) const {
        const Index r = w.rows;
        load_rows<T>(in.v, row, count, head * shape.value, shape.value, w.v);
        for (Index i = 0; i < r; ++i) {
            const Index used = i < count ? shape.key : 0;
            if (i < count) {
                p.q_r[i] = load_q(row + i, w.qk.row(i));
                p.k_r[i] = load_k(row + i, w.qk.row(r + i));
                load_decay(row + i, w.c.row(i), backward ? p.slope.row(i) : nullptr);
            }
            w.beta[i] = i < count ? beta(row + i) : T(0);
            for (T* padded : {w.qk.row(i), w.qk.row(r + i), w.c.row(i)}) std::fill(padded + used, padded + w.key, T(0));
        }
    }

    void store(const KdaWork<T>& w, const FusedPairs<T>& p, Index row, Index count, const KdaRawGradient<T>& to) const {
        const Index first = head * shape.key;
        for (Index i = 0; i < count; ++i) {
            const T *q = w.qk.row(i), *dq = w.dqk.row(i), *k = w.qk.row(w.rows + i), *dk = w.dcol.row(i),
                    *dv = w.grad.row(w.rows + i);
            // (KDA-4)
            const T q_along = dot(q, dq, shape.key) / scale(), k_along = dot(k, dk, shape.key), factor = scale();
            for_lanes<T>(shape.key, [&](auto at) {
                at.store(to.q.row(row + i) + first, Lane<T>(p.q_r[i] * (factor * at.load(dq) - at.load(q) * q_along)));
                at.store(to.k.row(row + i) + first, Lane<T>(p.k_r[i] * (at.load(dk) - at.load(k) * k_along)));
                at.store(to.z.row(row + i) + first, Lane<T>(at.load(w.c.row(i)) * at.load(p.slope.row(i))));
            });
            T* dv_out = to.v.row(row + i) + head * shape.value;
            for_lanes<T>(shape.value, [&](auto at) { at.store(dv_out, Lane<T>(-at.load(dv))); });
            // (KDA-5)
            to.b(row + i, head) = w.dbeta[i] * w.beta[i] * (T(1) - w.beta[i]);
        }
    }

    /// One token of a sequence that goes on.
    void step(const Context<Cpu>& ctx, int thread, Index row, const T* from, T* to, T* o) const {
        constexpr Index arrays = KdaToken<T>::arrays;
        T* k = ctx.workspace<T>(thread, (arrays + 1) * shape.key + shape.state());
        const KdaToken<T> token = KdaToken<T>::at(k + shape.key, shape.key);
        load_q(row, token.q);
        load_k(row, k);
        load_decay(row, token.decay, nullptr);
        for_lanes<T>(shape.key, [&](auto at) { at.store(token.decay, Lane<T>(exp(at.load(token.decay)))); });
        T* unkept = k + (arrays + 1) * shape.key;
        kda_step<T>(shape, token, k, in.v.row(row) + head * shape.value, beta(row), from, to != nullptr ? to : unkept,
                    o);
    }
};

/// dA_log += sum of dz (z + dt_bias), ddt_bias += sum of dz, over the tokens of the sequences; threads own heads.
template <class T>
void add_gate_gradients(const Context<Cpu>& ctx, const Sequences& seq, const KdaRawInput<T>& in,
                        const KdaRawGradient<T>& gradient) {
    const Index heads = in.A_log.size, width = in.z.cols / heads;
    ctx.parallel(heads, 1, [&](Index begin, Index end) {
        for (Index h = begin; h < end; ++h) {
            // (KDA-8)
            gradient.A_log[h] += sum_head_lanes<T>(h, width, [&](auto at) -> Lane<T> {
                const Lane<T> bias = at.load(in.dt_bias.data);
                Lane<T> total = at.load(gradient.dt_bias.data), moment = lane(T(0));
                for (Index n = 0; n < seq.tokens(); ++n) {
                    const Lane<T> dz = at.load(gradient.z.row(n));
                    total += dz;
                    moment += dz * (at.load(in.z.row(n)) + bias);
                }
                at.store(gradient.dt_bias.data, total);
                return moment;
            });
        }
    });
}

}  // namespace detail

template <class T>
void kda_fused_forward(const Context<Cpu>& ctx, const Sequences& seq, KdaFusedForm form,
                       std::type_identity_t<KdaRawInput<T>> in, Out<T> o,
                       std::type_identity_t<Out<accumulator_t<T>>> final,
                       std::type_identity_t<Out<accumulator_t<T>>> states) {
    using namespace detail;
    const KdaShape shape = fused_shape<T>(seq, form, in, o, final, states);
    clear_rows_after(seq, o);
    for_sequence_heads(ctx, seq, form.heads, [&](Index s, Index h, int thread) {
        const FusedHead<T> head(in, shape, h, form.lower_bound);
        const T* from = head_state(carried_in<T>(seq, s, in.initial), shape, h);
        T* kept = head_state(carried_out<T>(seq, s, in.initial, final), shape, h);
        if (seq.length(s) == 1 && from != nullptr && states.rows == 0)
            return head.step(ctx, thread, seq.begin(s), from, kept, o.row(seq.begin(s)) + h * shape.value);
        auto [w, pairs] = kda_work<T, FusedPairs<T>>(ctx, thread, shape, (std::min)(form.chunk, seq.length(s)), false);
        FusedPairs<T>& scratch = pairs;
        kda_head_forward<T>(
            w, scratch, shape, seq, s, h, form.chunk, from, kept, states,
            [&](KdaWork<T>& work, Index row, Index count) { head.load(work, scratch, row, count, false); },
            [&](KdaWork<T>& work, Index row, Index count) {
                store_rows<T>(work.read, count, o, row, h * shape.value, shape.value);
            });
    });
}

template <class T>
void kda_fused_backward(const Context<Cpu>& ctx, const Sequences& seq, KdaFusedForm form,
                        std::type_identity_t<KdaRawInput<T>> in, In<accumulator_t<T>> states, In<T> d_o,
                        In<accumulator_t<T>> dfinal, const KdaRawGradient<T>& gradient) {
    using namespace detail;
    const KdaShape shape = fused_shape<T>(seq, form, in, d_o, dfinal, states);
    const MatrixView<T> written[] = {gradient.q, gradient.k, gradient.v, gradient.z, gradient.b};
    for (const MatrixView<T>& m : written) clear_rows_after(seq, m);
    for_sequence_heads(ctx, seq, form.heads, [&](Index s, Index h, int thread) {
        const FusedHead<T> head(in, shape, h, form.lower_bound);
        auto [w, pairs] = kda_work<T, FusedPairs<T>>(ctx, thread, shape, (std::min)(form.chunk, seq.length(s)), true);
        FusedPairs<T>& scratch = pairs;
        kda_head_backward<T>(
            w, scratch, shape, seq, s, h, form.chunk, states,
            dfinal.rows == 0 ? nullptr : head_state(dfinal.row(seq.slot(s)), shape, h),
            gradient.initial.rows == 0 ? nullptr : head_state(gradient.initial.row(seq.slot(s)), shape, h),
            [&](KdaWork<T>& work, Index row, Index count) {
                head.load(work, scratch, row, count, true);
                load_rows<T>(d_o, row, count, h * shape.value, shape.value, work.grad.middle_rows(0, work.rows));
            },
            [&](KdaWork<T>& work, Index row, Index count) { head.store(work, scratch, row, count, gradient); });
    });
    add_gate_gradients(ctx, seq, in, gradient);
}

}  // namespace kimik3
