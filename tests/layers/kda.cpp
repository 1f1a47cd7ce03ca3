#include <boost/test/unit_test.hpp>

#include "kimik3/config/presets.hpp"
#include "support/differences.hpp"
#include "support/golden.hpp"
#include "support/kda_layer.hpp"

namespace kimik3::test {
namespace {

ModelConfig config_of(KdaImplementation implementation, int chunk = 32) {
    ModelConfig c = presets::golden;
    c.kda_implementation = implementation;
    c.kda_chunk_size = chunk;
    return c;
}

/// Every switch of the layer.
std::vector<ModelConfig> configs() {
    std::vector<ModelConfig> all{config_of(KdaImplementation::chunkwise, 16), config_of(KdaImplementation::fused)};
    all.push_back(config_of(KdaImplementation::chunkwise, 16));
    all.back().kda_gate = DecayGate::softplus;
    all.push_back(config_of(KdaImplementation::fused));
    all.back().kda_output_gate = false;
    all.back().kda_conv_size = 1;
    all.push_back(all[2]);
    all.back().kda_output_gate_rank = 4;
    all.push_back(config_of(KdaImplementation::fused));
    all.back().kda_output_gate_rank = 1;
    for (ModelConfig& c : all) c.hidden_size = 10, c.kda_heads = 2, c.kda_head_dim = 5, c.kda_gate_rank = 3;
    return all;
}

template <class T>
std::vector<T> rows_of(Matrix<T>& m, Index begin, Index count) {
    return m.values(begin, begin + count);
}

template <class T, KdaImplementation implementation>
void check_split(KdaLayerCase<T, implementation>& layer, const std::vector<Index>& pieces, double tolerance) {
    const Context<Cpu> ctx(2);
    KdaDecoder decoder(layer, 1);
    std::vector<T> all;
    Index past = 0;
    for (Index piece : pieces) {
        const std::vector<T> y = decoder.take(ctx, {rows_of(layer.x, past, piece)}, {0}, {past});
        all.insert(all.end(), y.begin(), y.end());
        past += piece;
    }
    KIMIK3_CHECK_CLOSE(all, layer.y.values(), tolerance);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(kda_layer)

BOOST_AUTO_TEST_CASE(fused_and_chunkwise_are_the_same_layer) {
    const auto check = [](auto zero, double tolerance) {
        using T = decltype(zero);
        const Sequences seq({0, 70, 70, 71, 104});
        KdaLayerCase<T, KdaImplementation::fused> fused(config_of(KdaImplementation::fused), seq, 5);
        KdaLayerCase<T, KdaImplementation::chunkwise> chunkwise(config_of(KdaImplementation::chunkwise), seq, 5);
        fused.run(Context<Cpu>(2));
        chunkwise.run(Context<Cpu>(2));
        KIMIK3_CHECK_CLOSE(fused.y.values(), chunkwise.y.values(), tolerance);
        KIMIK3_CHECK_CLOSE(fused.dx.values(), chunkwise.dx.values(), tolerance);
        for (const ParameterInfo& entry : fused.fields.entries)
            KIMIK3_CHECK_CLOSE_NAMED(entry.name, fused.fields.gradient(entry), chunkwise.fields.gradient(entry),
                                     tolerance);
    };
    check(0.0f, 1e-5);
    check(0.0, 1e-11);
}

BOOST_AUTO_TEST_CASE(every_gradient_agrees_with_differences_under_every_switch) {
    const Context<Cpu> ctx(1);
    for (const ModelConfig& config : configs()) {
        with_kda_layer<double>(config, Sequences({0, 3, 20}), [&](auto& layer) {
            layer.run(ctx);
            const auto loss = [&] {
                layer.forward(ctx);
                return probed(layer.y, layer.dy);
            };
            KIMIK3_CHECK_CLOSE(layer.dx.values(), difference_gradient(layer.x.span(), loss, 1e-4), 1e-8);
            for (const ParameterInfo& entry : layer.fields.entries)
                KIMIK3_CHECK_CLOSE_NAMED(entry.name, layer.fields.gradient(entry),
                                         difference_gradient(layer.fields.weight(entry), loss, 1e-4), 1e-8);
        });
    }
}

BOOST_AUTO_TEST_CASE(parameters_are_named_shaped_and_ruled_as_in_the_checkpoint) {
    using Layer = KdaLayer<KdaImplementation::fused, Cpu, float>;
    ModelConfig config = presets::golden;
    const auto names = [&] {
        std::string all;
        for (const ParameterInfo& entry : LayerParameters<Layer, float>(config).entries) all += entry.name + " ";
        return all;
    };
    BOOST_TEST(
        names() ==
        "q_proj.weight k_proj.weight v_proj.weight g_proj.weight f_a_proj.weight b_proj.weight q_conv1d.weight "
        "k_conv1d.weight v_conv1d.weight f_b_proj.weight A_log dt_bias o_norm.weight o_proj.weight ");
    config.kda_output_gate_rank = 7;
    BOOST_TEST(names().find("f_a_proj.weight g_a_proj.weight b_proj.weight") != std::string::npos);
    BOOST_TEST((LayerParameters<Layer, float>(config).entry("g_b_proj.weight").shape == std::vector<Index>{48, 7}));
    config.kda_output_gate = false;
    BOOST_TEST(names().find("g_") == std::string::npos);
    config = config_of(KdaImplementation::fused);
    LayerParameters<Layer, float> fields(config);
    for (const ParameterInfo& entry : fields.entries) {
        const bool conv = entry.name.find("conv1d") != std::string::npos;
        BOOST_TEST(entry.rule.decay == (entry.shape.size() >= 2 && !conv), entry.name);
        BOOST_TEST(entry.rule.float32 == (entry.shape.size() != 2), entry.name);  // as released
    }
    const std::vector<Index> conv_shape{48, 1, 4};
    BOOST_TEST(fields.entry("k_conv1d.weight").shape == conv_shape, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(threads_change_no_bit) {
    for (KdaImplementation implementation : {KdaImplementation::chunkwise, KdaImplementation::fused}) {
        std::vector<std::vector<float>> results;
        for (int threads : {1, 2, 3}) {
            with_kda_layer<float>(config_of(implementation), Sequences({0, 40, 57}), [&](auto& layer) {
                layer.run(Context<Cpu>(threads));
                results.push_back(layer.y.values());
                for (float value : layer.dx.values()) results.back().push_back(value);
                for (float value : layer.fields.gradients) results.back().push_back(value);
            });
        }
        BOOST_TEST(same_bits(results[0], results[1]));
        BOOST_TEST(same_bits(results[0], results[2]));
    }
}

BOOST_AUTO_TEST_CASE(a_batch_without_tokens_is_no_work) {
    for (const ModelConfig& config : configs()) {
        with_kda_layer<double>(config, Sequences({0, 0, 0}), [&](auto& layer) {
            layer.run(Context<Cpu>(2));
            BOOST_TEST(std::ranges::all_of(layer.fields.gradients, [](double value) { return value == 0.0; }));
        });
    }
}

BOOST_AUTO_TEST_CASE(b09_any_split_of_a_prompt_is_the_whole_prompt) {
    for (KdaImplementation implementation : {KdaImplementation::chunkwise, KdaImplementation::fused}) {
        with_kda_layer<float>(config_of(implementation), Sequences::uniform(1, 64), [&](auto& layer) {
            layer.forward(Context<Cpu>(2));
            for (const std::vector<Index>& pieces : std::vector<std::vector<Index>>{{64},
                                                                                    {16, 16, 16, 16},
                                                                                    {7, 57},
                                                                                    {63, 1},
                                                                                    {0, 5, 0, 59},
                                                                                    {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 9},
                                                                                    std::vector<Index>(64, 1)})
                check_split(layer, pieces, 1e-5);
        });
    }
}

BOOST_AUTO_TEST_CASE(b21_a_prompt_shorter_than_the_kernel_then_single_steps) {
    for (const ModelConfig& config : configs()) {
        with_kda_layer<double>(config, Sequences::uniform(1, 8), [&](auto& layer) {
            layer.forward(Context<Cpu>(1));
            check_split(layer, {1, 1, 1, 1, 1, 1, 1, 1}, 1e-11);
            check_split(layer, {2, 1, 1, 1, 1, 1, 1}, 1e-11);
            check_split(layer, {3, 1, 1, 1, 1, 1}, 1e-11);
        });
    }
}

BOOST_AUTO_TEST_CASE(b12_interleaved_sequences_are_each_alone) {
    const std::vector<Index> lengths{1, 2, 3, 17, 64}, slots{3, 0, 5, 1, 4};
    const Context<Cpu> ctx(2);
    for (KdaImplementation implementation : {KdaImplementation::chunkwise, KdaImplementation::fused}) {
        with_kda_layer<float>(config_of(implementation), Sequences::uniform(5, 64 + 24), [&](auto& layer) {
            layer.forward(ctx);
            KdaDecoder decoder(layer, 6);
            std::vector<Index> past(5, 0);
            Philox numbers(7);
            for (int step = -1; step < 24; ++step) {
                std::vector<std::vector<float>> tokens;
                std::vector<Index> used, used_slots, used_past;
                for (Index s = 0; s < 5; ++s) {
                    if (step >= 0 && numbers.uniform() < 0.5) continue;
                    tokens.push_back(rows_of(layer.x, s * 88 + past[to_size(s)], step < 0 ? lengths[to_size(s)] : 1));
                    used.push_back(s), used_slots.push_back(slots[to_size(s)]), used_past.push_back(past[to_size(s)]);
                }
                const std::vector<float> y = decoder.take(ctx, tokens, used_slots, used_past);
                auto from = y.begin();
                for (std::size_t i = 0; i < used.size(); ++i) {
                    const Index s = used[i], count = static_cast<Index>(tokens[i].size()) / layer.config.hidden_size;
                    const std::vector<float> got(from, from + static_cast<std::ptrdiff_t>(tokens[i].size()));
                    KIMIK3_CHECK_CLOSE(got, rows_of(layer.y, s * 88 + past[to_size(s)], count), 1e-5);
                    from += static_cast<std::ptrdiff_t>(tokens[i].size());
                    past[to_size(s)] += count;
                }
            }
        });
    }
}

BOOST_AUTO_TEST_CASE(b12_nan_in_a_slot_stays_in_its_sequence_and_no_past_ignores_it) {
    const Context<Cpu> ctx(2);
    for (KdaImplementation implementation : {KdaImplementation::chunkwise, KdaImplementation::fused}) {
        with_kda_layer<float>(config_of(implementation), Sequences::uniform(3, 20), [&](auto& layer) {
            layer.forward(ctx);
            KdaDecoder decoder(layer, 3);  // every slot holds NaN
            const std::size_t width = to_size(layer.config.hidden_size);
            decoder.take(ctx, {rows_of(layer.x, 0, 19), {}, rows_of(layer.x, 40, 19)}, {0, 1, 2}, {0, 0, 0});
            const std::vector<std::vector<float>> last{rows_of(layer.x, 19, 1), rows_of(layer.x, 39, 1),
                                                       rows_of(layer.x, 59, 1)};
            const std::vector<float> y = decoder.take(ctx, last, {0, 1, 2}, {19, 19, 19});
            BOOST_TEST(std::isnan(y[width]));
            const auto row = [&](std::size_t s) {
                return std::vector<float>(y.begin() + static_cast<std::ptrdiff_t>(s * width),
                                          y.begin() + static_cast<std::ptrdiff_t>((s + 1) * width));
            };
            KIMIK3_CHECK_CLOSE(row(0), rows_of(layer.y, 19, 1), 1e-5);
            KIMIK3_CHECK_CLOSE(row(2), rows_of(layer.y, 59, 1), 1e-5);
        });
    }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace kimik3::test
