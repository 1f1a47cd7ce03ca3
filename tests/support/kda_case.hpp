#pragma once
// One problem of Kimi Delta Attention from raw projections to output, final state and every gradient, computed in any
// of the three ways: token by token, in chunks, fused.

#include <string>

#include "kimik3/ops/cpu/decay_gate.hpp"
#include "kimik3/ops/cpu/kda_chunk.hpp"
#include "kimik3/ops/cpu/kda_fused.hpp"
#include "kimik3/ops/cpu/kda_recurrent.hpp"
#include "kimik3/ops/cpu/l2_norm.hpp"
#include "kimik3/ops/cpu/sigmoid.hpp"
#include "support/matrix.hpp"

namespace kimik3::test {

enum class KdaWay { recurrent, chunk, fused };

struct KdaSizes {
    Index heads = 2, key = 16, value = 16;
    Index slack = 0;         // rows after the last sequence
    bool with_state = true;  // initial states that are read, and probed final states
    DecayGateForm gate{};
    double gate_scale = 1.0;  // of the decay logits
};

template <class T>
struct KdaCase {
    KdaCase(std::vector<Index> lengths, KdaSizes s, std::uint64_t seed = 1)
        : sizes(s),
          seq(sequences(lengths, s.with_state)),
          rows(seq.tokens() + s.slack),
          slots(s.with_state ? seq.count() : 0),
          wide(s.heads * s.key),
          deep(s.heads * s.value),
          q(Matrix<T>::random(rows, wide, seed)),
          k(Matrix<T>::random(rows, wide, seed + 1)),
          v(Matrix<T>::random(rows, deep, seed + 2)),
          z(Matrix<T>::random(rows, wide, seed + 3, s.gate_scale)),
          b(Matrix<T>::random(rows, s.heads, seed + 4)),
          A_log(Matrix<T>::random(1, s.heads, seed + 5, 0.3)),
          dt_bias(Matrix<T>::random(1, wide, seed + 6, 0.5)),
          initial(Matrix<T>::random(slots, state_size(), seed + 7, 0.3)),
          probe_o(Matrix<T>::random(rows, deep, seed + 8)),
          probe_final(Matrix<T>::random(slots, state_size(), seed + 9)) {
        for (Matrix<T>* m : {&q, &k, &v, &z, &b})
            for (Index n = seq.tokens(); n < rows; ++n)
                for (Index c = 0; c < m->cols(); ++c) (*m)(n, c) = std::numeric_limits<T>::quiet_NaN();
    }

    static Sequences sequences(const std::vector<Index>& lengths, bool with_state) {
        std::vector<Index> offsets{0};
        for (Index length : lengths) offsets.push_back(offsets.back() + length);
        if (!with_state) return Sequences(offsets);
        return Sequences(offsets, {}, std::vector<Index>(lengths.size(), 1));
    }
    Index state_size() const { return sizes.heads * sizes.key * sizes.value; }

    /// Outputs and final states. What is not kept for a backward pass is not asked for.
    void forward(const Context<Cpu>& ctx, KdaWay way, Index chunk, bool keep = true) {
        prepare(chunk, keep);
        if (way == KdaWay::fused)
            return kda_fused_forward(ctx, seq, form(chunk), raw(), o.view(), final.view(), states.view());
        l2_norm_forward(ctx, sizes.heads, q, unit_q.view(), q_r.view());
        l2_norm_forward(ctx, sizes.heads, k, unit_k.view(), k_r.view());
        decay_gate_forward(ctx, sizes.gate, z, A_log.vector(), dt_bias.vector(), g.view());
        sigmoid_forward(ctx, b, beta.view());
        if (way == KdaWay::recurrent)
            kda_recurrent_forward(ctx, seq, sizes.heads, unit(), o.view(), final.view());
        else
            kda_chunk_forward(ctx, seq, sizes.heads, chunk, unit(), o.view(), final.view(), states.view());
    }

    /// Every gradient of sum(o probe_o) + sum(final probe_final), after forward.
    void backward(const Context<Cpu>& ctx, KdaWay way, Index chunk) {
        if (way == KdaWay::fused) {
            const KdaRawGradient<T> gradient{dq, dk, dv, dz, db, dA_log.vector(), ddt_bias.vector(), dinitial};
            return kda_fused_backward(ctx, seq, form(chunk), raw(), states, probe_o, probe_final, gradient);
        }
        const KdaGradient<T> gradient{dq, dk, dv, dz, db, dinitial};
        if (way == KdaWay::recurrent)
            kda_recurrent_backward(ctx, seq, sizes.heads, unit(), probe_o, probe_final, gradient);
        else
            kda_chunk_backward(ctx, seq, sizes.heads, chunk, unit(), states, probe_o, probe_final, gradient);
        // Slack rows hold NaN in the inputs; the operations on single tokens have no business there.
        const Index used = seq.tokens();
        const auto part = [&](Matrix<T>& m) { return m.view().middle_rows(0, used); };
        l2_norm_backward(ctx, sizes.heads, part(dq), part(unit_q), part(q_r), part(dq));
        l2_norm_backward(ctx, sizes.heads, part(dk), part(unit_k), part(k_r), part(dk));
        decay_gate_backward(ctx, sizes.gate, part(dz), part(z), A_log.vector(), dt_bias.vector(), part(dz),
                            dA_log.vector(), ddt_bias.vector());
        sigmoid_backward(ctx, part(db), part(beta), part(db));
    }

    void run(const Context<Cpu>& ctx, KdaWay way, Index chunk) {
        forward(ctx, way, chunk);
        backward(ctx, way, chunk);
    }

    double loss() { return probed(o, probe_o) + probed(final, probe_final); }

    /// Name, input and gradient of everything that has one.
    struct Field {
        std::string name;
        Matrix<T>*in, *grad;
    };
    std::vector<Field> fields() {
        std::vector<Field> all{{"q", &q, &dq},
                               {"k", &k, &dk},
                               {"v", &v, &dv},
                               {"gate", &z, &dz},
                               {"beta", &b, &db},
                               {"A_log", &A_log, &dA_log},
                               {"dt_bias", &dt_bias, &ddt_bias}};
        if (sizes.with_state) all.push_back({"initial_state", &initial, &dinitial});
        return all;
    }

    KdaSizes sizes;
    Sequences seq;
    Index rows, slots, wide, deep;
    Matrix<T> q, k, v, z, b, A_log, dt_bias, initial, probe_o, probe_final;
    Matrix<T> unit_q{0, 0}, unit_k{0, 0}, q_r{0, 0}, k_r{0, 0}, g{0, 0}, beta{0, 0}, o{0, 0}, final{0, 0}, states{0, 0};
    Matrix<T> dq{0, 0}, dk{0, 0}, dv{0, 0}, dz{0, 0}, db{0, 0}, dA_log{0, 0}, ddt_bias{0, 0}, dinitial{0, 0};

private:
    /// Results are NaN to begin with, but for those that are added to.
    void prepare(Index chunk, bool keep) {
        for (Matrix<T>* m : {&unit_q, &unit_k, &g, &dq, &dk, &dz}) *m = Matrix<T>(rows, wide);
        for (Matrix<T>* m : {&q_r, &k_r, &beta, &db}) *m = Matrix<T>(rows, sizes.heads);
        for (Matrix<T>* m : {&o, &dv}) *m = Matrix<T>(rows, deep);
        for (Matrix<T>* m : {&final, &dinitial}) *m = Matrix<T>(slots, state_size());
        states = Matrix<T>(keep ? kda_chunks(seq, chunk) : 0, state_size());
        dA_log = Matrix<T>(1, sizes.heads);
        ddt_bias = Matrix<T>(1, wide);
        dA_log.fill(T(0));
        ddt_bias.fill(T(0));
    }

    KdaFusedForm form(Index chunk) const { return {sizes.heads, chunk, sizes.gate.lower_bound}; }
    KdaRawInput<T> raw() { return {q, k, v, z, b, A_log.vector(), dt_bias.vector(), initial}; }
    KdaInput<T> unit() { return {unit_q, unit_k, v, g, beta, initial}; }
};

}  // namespace kimik3::test
