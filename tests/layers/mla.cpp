#include <boost/test/unit_test.hpp>

#include "support/differences.hpp"
#include "support/golden.hpp"
#include "support/mla_layer.hpp"

namespace kimik3::test {
namespace {

/// Width, ranks, heads, n, r, v: odd ones, ones, those of the released model, and without a query rank.
const ModelConfig configs[] = {mla_config(7, 5, 3, 3, 3, 2, 3), mla_config(3, 2, 2, 1, 1, 1, 1),
                               mla_config(33, 20, 18, 2, 128, 64, 128), mla_config(40, 24, 33, 9, 5, 3, 4),
                               mla_config(11, 0, 5, 3, 3, 2, 5)};

Sequences sizes_of(const std::vector<Index>& lengths, std::vector<Index> slots = {}, std::vector<Index> past = {}) {
    std::vector<Index> offsets{0};
    for (Index length : lengths) offsets.push_back(offsets.back() + length);
    return Sequences(std::move(offsets), std::move(slots), std::move(past));
}

/// The outputs of one sequence, taken in by the pieces given.
template <class T>
std::vector<T> decoded(const Context<Cpu>& ctx, MlaTest<T>& layer, const std::vector<Index>& pieces) {
    MlaDecoder<T> decoder(layer, 3, layer.seq.tokens());
    std::vector<T> all;
    Index past = 0;
    for (Index piece : pieces) {
        const std::vector<T> y =
            decoder.step(ctx, sizes_of({piece}, {2}, {past}), layer.x.view().middle_rows(past, piece));
        all.insert(all.end(), y.begin(), y.end());
        past += piece;
    }
    return all;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(mla_layer)

BOOST_AUTO_TEST_CASE(the_absorbed_form_equals_the_expanded_one) {
    const Context<Cpu> ctx(2);
    for (const ModelConfig& config : configs) {
        MlaTest<double> exact(config, sizes_of({70}));
        exact.run(ctx);
        KIMIK3_CHECK_CLOSE(decoded(ctx, exact, {70}), exact.y.values(), 1e-12);
        MlaTest<float> single(config, sizes_of({70}));
        single.run(ctx);
        KIMIK3_CHECK_CLOSE(decoded(ctx, single, {70}), single.y.values(), 1e-5);
    }
}

BOOST_AUTO_TEST_CASE(every_split_of_a_prompt_gives_the_same) {
    const Context<Cpu> ctx(2);
    for (const ModelConfig& config : configs) {
        MlaTest<float> layer(config, sizes_of({23}));
        layer.run(ctx);
        for (Index first = 0; first <= 23; ++first)
            KIMIK3_CHECK_CLOSE(decoded(ctx, layer, {first, 23 - first}), layer.y.values(), 1e-5);
        KIMIK3_CHECK_CLOSE(decoded(ctx, layer, std::vector<Index>(23, 1)), layer.y.values(), 1e-5);
        KIMIK3_CHECK_CLOSE(decoded(ctx, layer, {0, 3, 0, 9, 1, 1, 9}), layer.y.values(), 1e-5);
    }
}

BOOST_AUTO_TEST_CASE(b12_sequences_decoded_in_turns_equal_each_alone) {
    const Context<Cpu> ctx(2);
    const std::vector<Index> lengths{1, 2, 3, 17, 64}, slots{3, 0, 4, 1, 2};
    MlaTest<float> all(configs[0], sizes_of(lengths));
    all.run(ctx);
    MlaDecoder<float> decoder(all, 5, 64);
    std::vector<Index> past(5, 0);
    Philox numbers(7);
    while (past != lengths) {
        std::vector<Index> taken, chosen_slots, chosen_past, chosen;
        std::vector<float> rows;
        for (Index s = 0; s < 5; ++s) {
            const Index left = lengths[to_size(s)] - past[to_size(s)], count = static_cast<Index>(numbers.below(4));
            if (left == 0) continue;
            taken.push_back((std::min)(left, count));
            chosen_slots.push_back(slots[to_size(s)]), chosen_past.push_back(past[to_size(s)]), chosen.push_back(s);
            const std::vector<float> more =
                all.x.values(all.seq.begin(s) + past[to_size(s)], all.seq.begin(s) + past[to_size(s)] + taken.back());
            rows.insert(rows.end(), more.begin(), more.end());
        }
        const Sequences step = sizes_of(taken, chosen_slots, chosen_past);
        auto x = Matrix<float>::of(step.tokens(), 7, rows);
        const std::vector<float> y = decoder.step(ctx, step, x.view());
        for (Index k = 0; k < step.count(); ++k) {
            const Index s = chosen[to_size(k)], begin = all.seq.begin(s) + past[to_size(s)];
            const std::vector<float> found(y.begin() + step.begin(k) * 7, y.begin() + step.end(k) * 7);
            KIMIK3_CHECK_CLOSE(found, all.y.values(begin, begin + taken[to_size(k)]), 1e-5);
            past[to_size(s)] += taken[to_size(k)];
        }
    }
}

BOOST_AUTO_TEST_CASE(gradients_equal_differences_with_and_without_the_gate) {
    const Context<Cpu> ctx(2);
    for (ModelConfig config : {configs[0], configs[1]}) {
        for (bool gate : {true, false}) {
            config.mla_output_gate = gate;
            MlaTest<double> layer(config, sizes_of({3, 0, 1, 5}), 3), moved(config, layer.seq, 3);
            layer.run(ctx, true);
            const auto loss = [&] {
                moved.run(ctx);
                return probed(moved.y, layer.dy);
            };
            KIMIK3_CHECK_CLOSE(layer.dx.values(), difference_gradient(moved.x.span(), loss), 1e-8);
            for (const ParameterInfo& entry : layer.fields.entries) {
                KIMIK3_CHECK_CLOSE_NAMED(entry.name, layer.fields.gradient(entry),
                                         difference_gradient(moved.fields.weight(entry), loss), 1e-8);
            }
        }
    }
}

BOOST_AUTO_TEST_CASE(parameter_gradients_are_added) {
    const Context<Cpu> ctx(1);
    MlaTest<double> once(configs[0], sizes_of({9})), twice(configs[0], sizes_of({9}));
    once.run(ctx, true);
    twice.run(ctx, true);
    twice.run(ctx, true);
    std::vector<double> doubled = once.fields.gradients;
    for (double& value : doubled) value *= 2;
    KIMIK3_CHECK_CLOSE(twice.fields.gradients, doubled, 1e-15);
}

BOOST_AUTO_TEST_CASE(b23_every_option_of_the_config_changes_the_output) {
    const Context<Cpu> ctx(1);
    MlaTest<double> base(configs[0], sizes_of({9}));
    base.run(ctx);
    ModelConfig without_gate = configs[0], other_eps = configs[0];
    without_gate.mla_output_gate = false;
    other_eps.mla_lora_norm_eps = 1e-2;
    for (const ModelConfig& config : {without_gate, other_eps}) {
        MlaTest<double> changed(config, sizes_of({9}));
        for (const ParameterInfo& entry : changed.fields.entries)
            std::ranges::copy(base.fields.weight(entry.name), changed.fields.weight(entry).begin());
        changed.run(ctx);
        BOOST_TEST(relative_error(changed.y.values(), base.y.values()) > 1e-4);
    }
}

BOOST_AUTO_TEST_CASE(fields_follow_the_released_checkpoint_and_the_optimizer_rules) {
    const auto names = [](const ModelConfig& config) {
        std::string all;
        for (const ParameterInfo& entry : MlaTest<float>(config, sizes_of({1})).fields.entries) {
            all += entry.name + " ";
            for (Index rows : entry.rule.muon_blocks) all += std::to_string(rows) + " ";
            all += entry.rule.decay ? "\n" : "no decay\n";
        }
        return all;
    };
    ModelConfig config = mla_config(7, 5, 3, 3, 3, 2, 4);
    BOOST_TEST(names(config) ==
               "q_a_proj.weight 0 \nkv_a_proj_with_mqa.weight 0 \ng_proj.weight 4 \nq_a_layernorm.weight no decay\n"
               "q_b_proj.weight 5 \nkv_a_layernorm.weight no decay\nkv_b_proj.weight 3 4 \no_proj.weight 0 \n");
    config.mla_output_gate = false;
    BOOST_TEST(names(config).find("g_proj") == std::string::npos);
    config.q_lora_rank = 0;
    BOOST_TEST(names(config) ==
               "q_proj.weight 5 \nkv_a_proj_with_mqa.weight 0 \nkv_a_layernorm.weight no decay\n"
               "kv_b_proj.weight 3 4 \no_proj.weight 0 \n");
}

BOOST_AUTO_TEST_CASE(results_do_not_depend_on_threads_bit_for_bit) {
    for (const ModelConfig& config : configs) {
        std::vector<float> first, first_decoded;
        for (int threads : {1, 2, 3}) {
            const Context<Cpu> ctx(threads);
            MlaTest<float> layer(config, sizes_of({3, 70}));
            layer.run(ctx, true);
            MlaTest<float> one(config, sizes_of({300}));
            const std::vector<float> stepped = decoded(ctx, one, {290, 1, 2, 7});
            if (first.empty()) first = layer.results(), first_decoded = stepped;
            BOOST_TEST(same_bits(first, layer.results()));
            BOOST_TEST(same_bits(first_decoded, stepped));
        }
    }
}

BOOST_AUTO_TEST_CASE(tokens_see_no_later_token_and_no_other_sequence_bit_for_bit) {
    const Context<Cpu> ctx(2);
    for (const ModelConfig& config : configs) {
        MlaTest<float> clean(config, sizes_of({40, 40})), changed(config, clean.seq), sick(config, clean.seq);
        std::fill_n(changed.x.view().row(25), config.hidden_size, 3.0f);
        for (Index n = 0; n < 40; ++n)
            std::fill_n(sick.x.view().row(n), config.hidden_size, std::numeric_limits<float>::quiet_NaN());
        for (MlaTest<float>* layer : {&clean, &changed, &sick}) layer->run(ctx, true);
        BOOST_TEST(same_bits(clean.y.values(0, 25), changed.y.values(0, 25)));
        BOOST_TEST(!same_bits(clean.y.values(25, 26), changed.y.values(25, 26)));
        BOOST_TEST(same_bits(clean.y.values(40, 80), changed.y.values(40, 80)));
        BOOST_TEST(same_bits(clean.y.values(40, 80), sick.y.values(40, 80)));
        BOOST_TEST(same_bits(clean.dx.values(40, 80), sick.dx.values(40, 80)));

        const std::vector<float> y = MlaDecoder<float>(clean, 2, 40).step(ctx, clean.seq, clean.x.view());
        const std::vector<float> y_changed = MlaDecoder<float>(changed, 2, 40).step(ctx, clean.seq, changed.x.view());
        const std::vector<float> y_sick = MlaDecoder<float>(sick, 2, 40).step(ctx, clean.seq, sick.x.view());
        const auto rows = [&](const std::vector<float>& all, Index begin, Index end) {
            return std::vector<float>(all.begin() + begin * config.hidden_size, all.begin() + end * config.hidden_size);
        };
        BOOST_TEST(same_bits(rows(y, 0, 25), rows(y_changed, 0, 25)));
        BOOST_TEST(same_bits(rows(y, 40, 80), rows(y_sick, 40, 80)));
    }
}

BOOST_AUTO_TEST_CASE(b66_tokens_past_the_end_of_the_cache_are_refused_and_leave_it_alone) {
    const Context<Cpu> ctx(1);
    MlaTest<float> layer(configs[0], sizes_of({17}));
    MlaDecoder<float> decoder(layer, 1, 16);
    const auto says = [](const std::string& sentence) {
        return [=](const Error& error) { return error.what() == sentence; };
    };
    const std::vector<float> before = decoder.memory;
    BOOST_CHECK_EXCEPTION(decoder.step(ctx, sizes_of({17}), layer.x.view()), Error,
                          says("a sequence holds at most 16 tokens, sequence 0 has 0 and asks for 17 more"));
    BOOST_TEST(same_bits(before, decoder.memory));
    decoder.step(ctx, sizes_of({16}), layer.x.view().middle_rows(0, 16));
    const std::vector<float> full = decoder.memory;
    BOOST_CHECK_EXCEPTION(decoder.step(ctx, sizes_of({1}, {}, {16}), layer.x.view().middle_rows(16, 1)), Error,
                          says("a sequence holds at most 16 tokens, sequence 0 has 16 and asks for 1 more"));
    BOOST_TEST(same_bits(full, decoder.memory));
}

BOOST_AUTO_TEST_CASE(no_tokens_is_fine) {
    const Context<Cpu> ctx(2);
    MlaTest<float> layer(configs[0], sizes_of({0, 0}));
    layer.run(ctx, true);
    BOOST_TEST(MlaDecoder<float>(layer, 2, 4).step(ctx, layer.seq, layer.x.view()).empty());
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace kimik3::test
