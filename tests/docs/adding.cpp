// The C++ of docs/design/adding.md: tests/docs/snippets.sh holds the page against this file. It adds an operation, a
// backend's overload of it, a kind of layer that uses it, and a model with that layer.

#include <kimik3/kimik3.hpp>

#include <boost/test/unit_test.hpp>

#include "support/differences.hpp"
#include "support/matrix.hpp"

namespace kimik3 {

// Squared ReLU, elementwise over [N, F]: y = max(x, 0)^2.
//   squared_relu_forward (ctx, x, y)
//   squared_relu_backward(ctx, dy, x, dx)   dx = 2 max(x, 0) dy; dx may be dy or x
template <class Backend>
void squared_relu_forward(const Context<Backend>&, ...) {
    static_assert(missing_overload<Backend>,
                  "kimik3: squared_relu_forward(ctx, x, y) has no overload for these arguments");
}
template <class Backend>
void squared_relu_backward(const Context<Backend>&, ...) {
    static_assert(missing_overload<Backend>,
                  "kimik3: squared_relu_backward(ctx, dy, x, dx) has no overload for these arguments");
}

template <class T>
void squared_relu_forward(const Context<Cpu>& ctx, In<T> x, Out<T> y) {
    require_shape("squared_relu: x", x, y.rows, y.cols);
    ctx.parallel(y.rows, 16, [&](Index first, Index last) {
        for (Index n = first; n < last; ++n) {
            detail::for_lanes<T>(y.cols, [&](auto at) {
                const detail::Lane<T> open = larger(at.load(x.row(n)), detail::lane(T(0)));
                at.store(y.row(n), open * open);
            });
        }
    });
}

template <class T>
void squared_relu_backward(const Context<Cpu>& ctx, In<T> dy, In<T> x, Out<T> dx) {
    require_shape("squared_relu: dy", dy, dx.rows, dx.cols);
    require_shape("squared_relu: x", x, dx.rows, dx.cols);
    ctx.parallel(dx.rows, 16, [&](Index first, Index last) {
        for (Index n = first; n < last; ++n) {
            detail::for_lanes<T>(dx.cols, [&](auto at) {
                const detail::Lane<T> open = larger(at.load(x.row(n)), detail::lane(T(0)));
                at.store(dx.row(n), T(2) * open * at.load(dy.row(n)));
            });
        }
    });
}

struct Plain {};

template <>
class Context<Plain> {};

template <class T>
void squared_relu_forward(const Context<Plain>&, In<T> x, Out<T> y) {
    require_shape("squared_relu: x", x, y.rows, y.cols);
    for (Index n = 0; n < y.rows; ++n)
        for (Index f = 0; f < y.cols; ++f) y(n, f) = x(n, f) > 0 ? x(n, f) * x(n, f) : T(0);
}

struct SquaredReluFfn {
    static constexpr bool dense = true;  // stands where the config has a dense feed-forward
};

/// y = W_down max(W_up x, 0)^2, x and y [N, M], inner width F.
template <class Backend, class T>
struct SquaredReluLayer {
    template <class Weight, class Kept>
    struct ParamsOf {
        MatrixView<Weight> up_proj;    // [F, M]
        MatrixView<Weight> down_proj;  // [M, F]

        template <class Visit>
        void fields(const ModelConfig& c, Visit&& visit) {
            const Index width = c.hidden_size, inner = c.dense_intermediate_size;
            visit("up_proj.weight", up_proj, inner, width, FieldRule{.muon_blocks = {0}});
            visit("down_proj.weight", down_proj, width, inner, FieldRule{.muon_blocks = {0}});
        }
    };
    using Params = ParamsOf<T, accumulator_t<T>>;
    using Grads = ParamsOf<accumulator_t<T>, accumulator_t<T>>;

    struct Saved {
        MatrixView<T> up;      // [N, F] W_up x -> its gradient
        MatrixView<T> hidden;  // [N, F] -> its gradient
    };

    static Saved bind_saved(Arena& arena, const ModelConfig& c, const Sequences& seq) {
        const Index tokens = seq.tokens(), inner = c.dense_intermediate_size;
        return {arena.matrix<T>(tokens, inner), arena.matrix<T>(tokens, inner)};
    }

    static void forward(const Context<Backend>& ctx, const ModelConfig&, const Params& p, const Sequences&,
                        MatrixView<const T> x, MatrixView<T> y, Saved& s) {
        linear_forward(ctx, x, p.up_proj, s.up);
        squared_relu_forward(ctx, s.up, s.hidden);
        linear_forward(ctx, s.hidden, p.down_proj, y);
    }

    /// dx is overwritten; s is used up.
    static void backward(const Context<Backend>& ctx, const ModelConfig&, const Params& p, Grads& g, const Sequences&,
                         MatrixView<const T> x, MatrixView<const T> dy, MatrixView<T> dx, Saved& s) {
        matmul_tn(ctx, dy, s.hidden, g.down_proj, Add::yes);
        matmul_nn(ctx, dy, p.down_proj, s.hidden, Add::no);
        squared_relu_backward(ctx, s.hidden, s.up, s.up);
        linear_backward(ctx, s.up, x, p.up_proj, dx, Add::no, g.up_proj);
    }
};

template <class Backend, class T>
struct LayerFor<SquaredReluFfn, Backend, T> : SquaredReluLayer<Backend, T> {
    static constexpr const char* prefix = "mlp.";
};

}  // namespace kimik3

namespace {

using namespace kimik3;

inline constexpr ModelConfig all_mla{
    .vocab_size = 19, .hidden_size = 12, .num_layers = 2, .layer_types = "MM", .num_dense_layers = 2, .max_seq_len = 32,
    .init_std = 0.3, .mla_heads = 2, .q_lora_rank = 5, .kv_lora_rank = 3, .qk_nope_head_dim = 4, .qk_rope_head_dim = 2,
    .v_head_dim = 3, .dense_intermediate_size = 17,
};
using Layers = LayerList<DecoderBlock<GatedMla, SquaredReluFfn>, DecoderBlock<GatedMla, SquaredReluFfn>>;
using Model = KimiK3<all_mla, Cpu, double, Layers>;

}  // namespace

BOOST_AUTO_TEST_SUITE(adding)

BOOST_AUTO_TEST_CASE(an_operation_is_the_same_on_two_backends_and_its_gradient_agrees_with_differences) {
    using test::Matrix;
    auto x = Matrix<double>::random(3, 13, 1), dy = Matrix<double>::random(3, 13, 2);
    Matrix<double> y(3, 13), plain(3, 13), dx(3, 13);
    const Context<Cpu> ctx(2);
    squared_relu_forward<double>(ctx, x, y);
    squared_relu_forward<double>(Context<Plain>{}, x, plain);
    BOOST_TEST(test::same_bits(y.values(), plain.values()));

    squared_relu_backward<double>(ctx, dy, x, dx);
    const auto loss = [&] {
        squared_relu_forward<double>(ctx, x, y);
        double sum = 0;
        for (std::size_t e = 0; e < y.values().size(); ++e) sum += dy.values()[e] * y.values()[e];
        return sum;
    };
    const std::vector<double> expected = test::difference_gradient(x.span(), loss, 1e-5), got = dx.values();
    for (std::size_t e = 0; e < got.size(); ++e) BOOST_TEST(std::abs(got[e] - expected[e]) < 1e-8);
    BOOST_CHECK_THROW(squared_relu_forward<double>(ctx, x, Matrix<double>(3, 12).view()), Error);
}

BOOST_AUTO_TEST_CASE(a_model_takes_a_new_layer_with_its_parameters_gradients_and_decoding) {
    Model model(Context<Cpu>{}, 3);
    const std::vector<std::int32_t> tokens = {1, 5, 2, 9, 18, 0, 7}, targets = {5, 2, 9, 18, 0, 7, 3};
    BOOST_TEST(std::ranges::count(model.parameters(), "model.layers.1.mlp.up_proj.weight", &ParameterInfo::name) == 1);

    model.zero_gradients();
    model.forward_backward(tokens, targets);
    const auto loss = [&] { return static_cast<double>(model.evaluate(tokens, targets)); };
    for (const ParameterInfo& tensor : model.parameters()) {
        const std::span<double> some(model.weights().data + tensor.offset, to_size((std::min)(tensor.count, Index{3})));
        const std::vector<double> expected = test::difference_gradient(some, loss, 1e-5);
        for (std::size_t e = 0; e < expected.size(); ++e) {
            const double got = model.gradients()[tensor.offset + static_cast<Index>(e)];
            BOOST_TEST(std::abs(got - expected[e]) < 1e-8, tensor.name << ": " << got << " is not " << expected[e]);
        }
    }

    const auto whole_logits = [&] {
        model.evaluate(tokens, targets);
        const auto all = model.logits();
        return std::vector<double>(all.row(6), all.row(6) + all.cols);
    }();
    auto state = model.new_state(1);
    model.step(state, std::span(tokens).first(3));
    const auto last = model.step(state, std::span(tokens).subspan(3));
    for (Index v = 0; v < last.cols; ++v) BOOST_TEST(std::abs(last(0, v) - whole_logits[to_size(v)]) < 1e-12);
}

BOOST_AUTO_TEST_SUITE_END()
