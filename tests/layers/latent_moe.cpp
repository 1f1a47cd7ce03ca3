#include <boost/test/unit_test.hpp>
#include <numeric>
#include <set>

#include "support/differences.hpp"
#include "support/golden.hpp"
#include "support/moe_layer.hpp"
#include "support/routed.hpp"

namespace kimik3::test {
namespace {

/// The sizes that the layer reads; odd, so that no lane and no tile is full.
ModelConfig small_config() {
    ModelConfig c;
    c.hidden_size = 7;
    c.num_experts = 5;
    c.num_experts_per_token = 2;
    c.num_shared_experts = 2;
    c.moe_intermediate_size = 3;
    c.moe_latent_size = 5;
    c.routed_scaling_factor = 2.5;
    return c;
}

ModelConfig with(ModelConfig c, Index experts, Index chosen, bool renormalize, bool norm, Index shared) {
    c.num_experts = static_cast<int>(experts);
    c.num_experts_per_token = static_cast<int>(chosen);
    c.moe_renormalize = renormalize;
    c.latent_norm = norm;
    c.num_shared_experts = static_cast<int>(shared);
    return c;
}

/// Least distance of a token's choice from another one.
template <class T>
double margin(const MoeLayer<T>& moe) {
    double least = 1e9;
    for (Index n = 0; n < moe.saved.scores.rows; ++n) {
        for (Index j = 0; j < moe.saved.experts.cols; ++j) {
            const Index e = moe.saved.experts(n, j);
            const T biased = moe.saved.scores(n, e) + moe.fields.params.e_score_correction_bias[e];
            least = std::min(least, static_cast<double>(biased - moe.saved.cutoff[n]));
        }
    }
    return least;
}

template <class T>
void keep_idle(MoeLayer<T>& moe, Index expert) {
    moe.fields.params.e_score_correction_bias[expert] = T(-100);
}

void check_gradients(const ModelConfig& c, Index tokens) {
    const Context<Cpu> ctx(2);
    for (std::uint64_t seed = 1;; ++seed) {
        MoeLayer<double> moe(c, tokens, seed);
        moe.forward(ctx);
        if (margin(moe) < 0.02) continue;  // the choice must not change within a difference
        moe.backward(ctx);
        MoeLayer<double> moved(c, tokens, seed);
        const auto loss = [&] {
            moved.forward(ctx);
            return probed(moved.y, moved.dy);
        };
        KIMIK3_CHECK_CLOSE(moe.dx.values(), difference_gradient(moved.x.span(), loss), 1e-8);
        for (const ParameterInfo& entry : moved.fields.entries) {
            if (!entry.rule.trained) continue;
            KIMIK3_CHECK_CLOSE_NAMED(entry.name, moe.fields.gradient(entry),
                                     difference_gradient(moved.fields.weight(entry), loss), 2e-8);
        }
        return;
    }
}

}  // namespace

BOOST_AUTO_TEST_SUITE(latent_moe)

BOOST_AUTO_TEST_CASE(gradients_equal_differences_with_every_switch) {
    const ModelConfig c = small_config();
    for (Index tokens : {1, 3, 9}) {
        check_gradients(with(c, 5, 2, true, true, 2), tokens);
        check_gradients(with(c, 5, 2, false, true, 1), tokens);
        check_gradients(with(c, 5, 2, true, false, 0), tokens);
        check_gradients(with(c, 5, 4, true, true, 1), tokens);
        ModelConfig linear = with(c, 5, 2, true, true, 1);
        linear.moe_latent_size = 0;
        check_gradients(linear, tokens);
        linear.hidden_act = Activation::silu;
        check_gradients(linear, tokens);
        linear.num_shared_experts = 0;
        linear.moe_latent_size = 5;
        check_gradients(linear, tokens);
    }
}

BOOST_AUTO_TEST_CASE(without_a_latent_width_experts_see_the_input_and_write_the_output) {
    ModelConfig c = with(small_config(), 5, 2, true, true, 0);
    c.moe_latent_size = 0;
    MoeLayer<double> moe(c, 9);
    moe.forward(Context<Cpu>(2));
    for (Index n = 0; n < 9; ++n) {
        for (Index i = 0; i < 7; ++i) {
            double sum = 0;
            for (Index j = 0; j < 2; ++j)
                sum += moe.saved.weights(n, j) * moe.saved.expert.out(moe.saved.dispatch.position(n, j), i);
            BOOST_TEST(moe.y(n, i) == sum, boost::test_tools::tolerance(1e-13));
        }
    }
    for (const ParameterInfo& entry : moe.fields.entries)
        BOOST_TEST(entry.name.find("routed_expert") == std::string::npos, entry.name);
    BOOST_TEST(moe.fields.entry("experts.4.w1.weight").shape == (std::vector<Index>{3, 7}));
}

BOOST_AUTO_TEST_CASE(b36_one_expert_a_token_without_normalisation_teaches_the_router) {
    for (Index experts : {2, 5}) {
        const ModelConfig c = with(small_config(), experts, 1, false, false, 1);
        check_gradients(c, 9);
        MoeLayer<double> moe(c, 9);
        moe.forward(Context<Cpu>(1));
        moe.backward(Context<Cpu>(1));
        double size = 0;
        for (double value : moe.fields.gradient("gate.weight")) size += value * value;
        BOOST_TEST(std::sqrt(size) > 1e-6);
    }
}

BOOST_AUTO_TEST_CASE(every_switch_changes_the_result) {
    const auto result = [](auto&& change) {
        ModelConfig c = small_config();
        change(c);
        MoeLayer<double> moe(c, 9);
        moe.forward(Context<Cpu>(1));
        return moe.y.values();
    };
    const std::vector<std::vector<double>> results{
        result([](ModelConfig&) {}),
        result([](ModelConfig& c) { c.moe_renormalize = false, c.latent_norm = false; }),
        result([](ModelConfig& c) { c.latent_norm = false; }),
        result([](ModelConfig& c) { c.latent_norm = false, c.routed_scaling_factor = 1.0; }),
        result([](ModelConfig& c) { c.situ_beta = 1.0; }),
        result([](ModelConfig& c) { c.situ_linear_beta = 0.5; }),
        result([](ModelConfig& c) { c.rms_norm_eps = 0.1; }),
        result([](ModelConfig& c) { c.num_experts_per_token = 3; }),
        result([](ModelConfig& c) { c.num_shared_experts = 0; }),
        result([](ModelConfig& c) { c.hidden_act = Activation::silu; }),
        result([](ModelConfig& c) { c.moe_latent_size = 0; }),
    };
    BOOST_TEST((std::set(results.begin(), results.end()).size() == results.size()));
}

BOOST_AUTO_TEST_CASE(idle_experts_get_no_gradient_and_disturb_nobody) {
    const Context<Cpu> ctx(2);
    for (Index tokens : {1, 5, 17}) {
        MoeLayer<float> moe(small_config(), tokens);
        keep_idle(moe, 1);
        keep_idle(moe, 4);
        for (const char* w : {"w1", "w2", "w3"})
            for (float& value : moe.fields.weight(fmt::format("experts.4.{}.weight", w)))
                value = std::numeric_limits<float>::quiet_NaN();
        std::ranges::fill(moe.fields.gradients, -0.0f);
        moe.forward(ctx);
        moe.backward(ctx);
        for (float value : moe.y.values()) BOOST_TEST(std::isfinite(value));
        for (float value : moe.dx.values()) BOOST_TEST(std::isfinite(value));
        for (int expert : {1, 4})
            for (const char* w : {"w1", "w2", "w3"})
                for (float value : moe.fields.gradient(fmt::format("experts.{}.{}.weight", expert, w)))
                    BOOST_TEST((value == 0 && std::signbit(value)));
    }
}

BOOST_AUTO_TEST_CASE(no_tokens_is_fine) {
    const Context<Cpu> ctx(2);
    MoeLayer<float> moe(small_config(), 0);
    OwnBalance counts(5);
    moe.forward(ctx, &counts.balance);
    moe.backward(ctx);
    for (float value : moe.fields.gradients) BOOST_TEST(value == 0.0f);
    for (std::int64_t load : counts.load.values()) BOOST_TEST(load == 0);
}

BOOST_AUTO_TEST_CASE(results_do_not_depend_on_threads_bit_for_bit) {
    ModelConfig c = small_config();
    c.hidden_size = 40, c.moe_latent_size = 35, c.moe_intermediate_size = 21;
    for (Index tokens : {1, 3, 7, 8, 101, 400}) {
        std::vector<float> first;
        for (int threads : {1, 2, 3}) {
            const Context<Cpu> ctx(threads);
            MoeLayer<float> moe(c, tokens);
            moe.forward(ctx);
            moe.backward(ctx);
            if (first.empty()) first = moe.results();
            BOOST_TEST(same_bits(moe.results(), first));
        }
    }
}

BOOST_AUTO_TEST_CASE(a_token_does_not_depend_on_the_others_of_the_batch_bit_for_bit) {
    const Context<Cpu> ctx(2);
    ModelConfig c = small_config();
    c.hidden_size = 40, c.moe_latent_size = 35, c.moe_intermediate_size = 21;
    MoeLayer<float> whole(c, 64), few(c, 8), other(c, 24);
    const auto copy_row = [](MoeLayer<float>& from, Index source, MoeLayer<float>& to, Index row) {
        std::copy_n(from.x.view().row(source), from.x.cols(), to.x.view().row(row));
        std::copy_n(from.dy.view().row(source), from.dy.cols(), to.dy.view().row(row));
    };
    const std::vector<Index> places{2, 23, 5, 17, 8, 0, 11, 14};  // of the first eight tokens, among others
    for (Index n = 0; n < 8; ++n) {
        copy_row(whole, n, few, n);
        copy_row(whole, n, other, places[to_size(n)]);
    }
    for (MoeLayer<float>* moe : {&whole, &few, &other}) {
        moe->forward(ctx);
        moe->backward(ctx);
    }
    for (Index n = 0; n < 8; ++n) {
        const Index place = places[to_size(n)];
        BOOST_TEST(same_bits(few.y.values(n, n + 1), whole.y.values(n, n + 1)));
        BOOST_TEST(same_bits(other.y.values(place, place + 1), whole.y.values(n, n + 1)));
        BOOST_TEST(same_bits(few.dx.values(n, n + 1), whole.dx.values(n, n + 1)));
        BOOST_TEST(same_bits(other.dx.values(place, place + 1), whole.dx.values(n, n + 1)));
    }
}

BOOST_AUTO_TEST_CASE(few_tokens_give_what_many_give) {
    const Context<Cpu> ctx(2);
    for (Index tokens : {1, 2, 3, 4, 7}) {
        MoeLayer<float> few(small_config(), tokens), many(small_config(), 16);
        std::copy_n(few.x.data(), few.x.span().size(), many.x.data());
        few.forward(ctx);
        many.forward(ctx);
        KIMIK3_CHECK_CLOSE(few.y.values(), many.y.values(0, tokens), 1e-5);
    }
}

BOOST_AUTO_TEST_CASE(b38_a_norm_weight_of_zero_leaves_the_shared_experts) {
    const Context<Cpu> ctx(2);
    MoeLayer<float> moe(small_config(), 9);
    std::ranges::fill(moe.fields.weight("routed_expert_norm.weight"), 0.0f);
    moe.forward(ctx);
    Matrix<float> shared(9, 7);
    decltype(moe)::Layer::Shared::forward(ctx, {4.0, 25.0}, moe.fields.params.shared_experts, moe.x, shared.view(),
                                          moe.saved.shared);
    BOOST_TEST(moe.y.values() == shared.values());
}

BOOST_AUTO_TEST_CASE(b38_scaling_all_expert_outputs_leaves_the_routed_part) {
    ModelConfig c = small_config();
    c.num_shared_experts = 0;
    c.rms_norm_eps = 1e-14;
    MoeLayer<double> moe(c, 9), scaled(c, 9);
    for (Index e = 0; e < 5; ++e)
        for (double& value : scaled.fields.weight(fmt::format("experts.{}.w2.weight", e))) value *= 7.0;
    moe.forward(Context<Cpu>(2));
    scaled.forward(Context<Cpu>(2));
    KIMIK3_CHECK_CLOSE(scaled.y.values(), moe.y.values(), 1e-9);
}

BOOST_AUTO_TEST_CASE(b27_equal_experts_give_the_factor_times_one_of_them_whatever_was_chosen) {
    ModelConfig c = with(small_config(), 5, 2, true, false, 0);
    MoeLayer<double> moe(c, 9), other(c, 9);
    for (MoeLayer<double>* layer : {&moe, &other})
        for (Index e = 1; e < 5; ++e)
            for (const char* w : {"w1", "w2", "w3"})
                std::ranges::copy(layer->fields.weight(fmt::format("experts.0.{}.weight", w)),
                                  layer->fields.weight(fmt::format("experts.{}.{}.weight", e, w)).begin());
    other.fields.params.e_score_correction_bias[3] += 1.0;
    moe.forward(Context<Cpu>(1));
    other.forward(Context<Cpu>(1));
    KIMIK3_CHECK_CLOSE(other.y.values(), moe.y.values(), 1e-12);
    for (Index n = 0; n < 9; ++n)
        for (Index i = 0; i < 5; ++i)
            BOOST_TEST(std::abs(moe.saved.u(n, i) - 2.5 * moe.saved.expert.out(moe.saved.dispatch.position(n, 0), i)) <=
                       1e-12);
}

BOOST_AUTO_TEST_CASE(b39_silent_experts_leave_the_shared_part_and_one_voice_counts_once) {
    const Context<Cpu> ctx(2);
    ModelConfig c = with(small_config(), 5, 2, true, false, 1);
    MoeLayer<double> moe(c, 9);
    for (Index e = 0; e < 5; ++e) std::ranges::fill(moe.fields.weight(fmt::format("experts.{}.w2.weight", e)), 0.0);
    moe.forward(ctx);
    Matrix<double> shared(9, 7);
    decltype(moe)::Layer::Shared::forward(ctx, {4.0, 25.0}, moe.fields.params.shared_experts, moe.x, shared.view(),
                                          moe.saved.shared);
    KIMIK3_CHECK_CLOSE(moe.y.values(), shared.values(), 1e-12);

    moe.fields.params.e_score_correction_bias[2] = 10.0;  // chosen by all, and first
    std::ranges::fill(moe.fields.weight("experts.2.w2.weight"), 1.0);
    moe.forward(ctx);
    for (Index n = 0; n < 9; ++n) {
        const Index row = moe.saved.dispatch.position(n, 0);
        for (Index i = 0; i < 5; ++i)
            BOOST_TEST(std::abs(moe.saved.u(n, i) - moe.saved.weights(n, 0) * moe.saved.expert.out(row, i)) <= 1e-14);
    }
}

BOOST_AUTO_TEST_CASE(weights_near_zero_have_finite_gradients) {
    for (bool renormalize : {true, false}) {
        MoeLayer<float> moe(with(small_config(), 5, 2, renormalize, true, 0), 9);
        for (float& value : moe.fields.weight("gate.weight")) value = 0.0f;
        for (Index e = 0; e < 5; ++e) moe.fields.params.gate(e, 0) = -80.0f;
        for (Index n = 0; n < 9; ++n) moe.x(n, 0) = 1.0f + 0.2f * static_cast<float>(n);
        moe.forward(Context<Cpu>(1));
        moe.backward(Context<Cpu>(1));
        for (float value : moe.results()) BOOST_TEST(std::isfinite(value));
    }
}

BOOST_AUTO_TEST_CASE(b33_layers_count_each_for_itself_and_only_when_asked) {
    const Context<Cpu> ctx(2);
    MoeLayer<float> moe(small_config(), 9);
    OwnBalance first(5), second(5);
    moe.forward(ctx);
    moe.forward(ctx, &second.balance);
    moe.forward(ctx);  // recomputing
    const std::vector<std::uint8_t> mask{1, 0, 1, 1, 1, 0, 1, 1, 1};
    moe.forward(ctx, &first.balance, {mask.data(), 9});
    const auto total = [](auto& counts) {
        const std::vector<std::int64_t> all = counts.values();
        return std::accumulate(all.begin(), all.end(), std::int64_t{0});
    };
    BOOST_TEST(total(second.histogram) == 9 * 5);
    BOOST_TEST(total(second.load) == 9 * 2);
    BOOST_TEST(total(first.histogram) == 7 * 5);
    BOOST_TEST(total(first.load) == 7 * 2);
}

BOOST_AUTO_TEST_CASE(the_field_list_has_the_released_names_and_the_optimizer_groups) {
    const MoeLayer<float> moe(small_config(), 1);
    BOOST_TEST(moe.fields.entries.size() == 2u + 3u + 15u + 3u);
    BOOST_TEST(moe.fields.entry("experts.4.w2.weight").shape == (std::vector<Index>{5, 3}));
    BOOST_TEST(moe.fields.entry("shared_experts.down_proj.weight").shape == (std::vector<Index>{7, 6}));
    for (const ParameterInfo& entry : moe.fields.entries) {
        BOOST_TEST(entry.rule.decay == (entry.shape.size() == 2));
        BOOST_TEST(
            (entry.rule.muon_blocks == (entry.shape.size() == 2 ? Extents{0} : Extents{})));
        BOOST_TEST(entry.rule.trained == (entry.name != "gate.e_score_correction_bias"));
        BOOST_TEST(entry.rule.float32 == !entry.rule.trained);
    }
    const MoeLayer<float> plain(with(small_config(), 5, 2, true, false, 0), 1);
    BOOST_TEST(plain.fields.entries.size() == 2u + 2u + 15u);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace kimik3::test
