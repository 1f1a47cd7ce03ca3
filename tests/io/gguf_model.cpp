#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <cmath>

#include "io/files.hpp"
#include "kimik3/config/presets.hpp"
#include "kimik3/core/rng.hpp"
#include "kimik3/io/gguf_model.hpp"
#include "kimik3/model/runtime_parameters.hpp"

using namespace kimik3;
using namespace kimik3::test;

namespace {

/// Numbers between -1 and 1 for every parameter of a config.
struct Numbers {
    explicit Numbers(const ModelConfig& config) : parameters(parameters_of(config)) {
        Index size = 0;
        for (const ParameterInfo& tensor : parameters) size = (std::max)(size, tensor.offset + tensor.count);
        Philox random(1);
        for (Index i = 0; i < size; ++i) all.push_back(static_cast<float>(random.below(2001)) / 1000 - 1);
    }

    std::span<const float> of(std::string_view name) const {
        for (const ParameterInfo& tensor : parameters)
            if (tensor.name == name) return {all.data() + tensor.offset, to_size(tensor.count)};
        fail("there is no parameter '{}'", name);
    }

    std::vector<ParameterInfo> parameters;
    std::vector<float> all;
};

std::vector<float> read(const GgufFile& file, const std::string& name) {
    std::vector<float> values(to_size(file.find(name).count));
    file.read(name, values.data(), static_cast<Index>(values.size()));
    return values;
}

ModelConfig golden_but(void (*change)(ModelConfig&)) {
    ModelConfig config = presets::golden;
    change(config);
    return config;
}

/// The file that a config is written as; the caller looks into it.
template <class Look>
void with_file(const ModelConfig& config, Look&& look, GgufType type = GgufType::f32) {
    const TemporaryFolder folder;
    const Numbers numbers(config);
    write_gguf_model(folder / "model.gguf", config, numbers.parameters, numbers.all.data(), {.type = type});
    look(GgufFile(folder / "model.gguf"), numbers);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(gguf_model)

BOOST_AUTO_TEST_CASE(what_llama_cpp_keeps_in_another_form_is_made_by_its_formula) {
    with_file(presets::golden, [](const GgufFile& file, const Numbers& n) {
        const ModelConfig& c = presets::golden;
        const std::string kda = "model.layers.0.self_attn.", mla = "model.layers.3.self_attn.";
        const auto a = read(file, "blk.0.ssm_a"), product = read(file, "output_res_score.weight");
        for (std::size_t h = 0; h < a.size(); ++h) BOOST_TEST(a[h] == -std::exp(n.of(kda + "A_log")[h]));
        for (std::size_t i = 0; i < product.size(); ++i)
            BOOST_TEST(product[i] == n.of("model.output_attn_res_norm.weight")[i] *
                                         n.of("model.output_attn_res_proj.weight")[i]);
        const auto k_b = read(file, "blk.3.attn_k_b.weight"), v_b = read(file, "blk.3.attn_v_b.weight");
        const std::span<const float> kv_b = n.of(mla + "kv_b_proj.weight");
        const Index rank = c.kv_lora_rank, nope = c.qk_nope_head_dim, value = c.v_head_dim;
        for (Index h = 0; h < c.mla_heads; ++h)
            for (Index j = 0; j < rank; ++j) {
                for (Index i = 0; i < nope; ++i)
                    BOOST_REQUIRE(k_b[to_size((h * rank + j) * nope + i)] ==
                                  kv_b[to_size((h * (nope + value) + i) * rank + j)]);
                for (Index i = 0; i < value; ++i)
                    BOOST_REQUIRE(v_b[to_size((h * value + i) * rank + j)] ==
                                  kv_b[to_size((h * (nope + value) + nope + i) * rank + j)]);
            }
        BOOST_TEST((read(file, "output.weight") == read(file, "token_embd.weight")));
        const auto down = read(file, "blk.1.ffn_down_exps.weight");
        const auto last = n.of("model.layers.1.block_sparse_moe.experts.7.w2.weight");
        BOOST_TEST(std::equal(last.begin(), last.end(), down.end() - static_cast<std::ptrdiff_t>(last.size())));
    });
}

/// llama.cpp's norm of the scaled rank, with its epsilon, is the model's norm of the rank, with the model's.
BOOST_AUTO_TEST_CASE(the_epsilon_of_the_ranks_norms_is_kept_by_scaling_their_inputs) {
    with_file(presets::golden, [](const GgufFile& file, const Numbers& n) {
        const ModelConfig& c = presets::golden;
        const std::string mla = "model.layers.4.self_attn.";
        const auto check = [&](const std::string& name, std::span<const float> ours, Index rank) {
            const std::vector<float> theirs = read(file, name);
            const Index width = c.hidden_size;
            double sum_theirs = 0, sum_ours = 0;
            std::vector<double> x_theirs, x_ours;
            for (Index r = 0; r < rank; ++r) {
                double a = 0, b = 0;
                for (Index i = 0; i < width; ++i) {
                    const double input = 1e-3 * static_cast<double>(i % 7 - 3);  // small: the epsilon counts
                    a += input * static_cast<double>(theirs[to_size(r * width + i)]);
                    b += input * static_cast<double>(ours[to_size(r * width + i)]);
                }
                x_theirs.push_back(a), x_ours.push_back(b);
                sum_theirs += a * a, sum_ours += b * b;
            }
            const double mean_theirs = sum_theirs / static_cast<double>(rank);
            const double mean = sum_ours / static_cast<double>(rank);
            for (std::size_t r = 0; r < x_ours.size(); ++r)
                BOOST_TEST(std::fabs(x_theirs[r] / std::sqrt(mean_theirs + c.rms_norm_eps) -
                                     x_ours[r] / std::sqrt(mean + c.mla_lora_norm_eps)) < 1e-6);
            BOOST_TEST(mean < 100 * c.mla_lora_norm_eps);
        };
        check("blk.4.attn_q_a.weight", n.of(mla + "q_a_proj.weight"), c.q_lora_rank);
        const auto latent = n.of(mla + "kv_a_proj_with_mqa.weight");
        check("blk.4.attn_kv_a_mqa.weight", latent, c.kv_lora_rank);
        const auto written = read(file, "blk.4.attn_kv_a_mqa.weight");
        const auto shared = static_cast<std::ptrdiff_t>(c.kv_lora_rank * c.hidden_size);
        BOOST_TEST(std::equal(latent.begin() + shared, latent.end(), written.begin() + shared));
    });
}

BOOST_AUTO_TEST_CASE(switches_that_llama_cpp_has_are_written_as_it_reads_them) {
    with_file(golden_but([](ModelConfig& c) { c.attn_res = false; }), [](const GgufFile& file, const Numbers&) {
        BOOST_TEST(file.at<Index>("kimi-k3.attn_res.block_size") == 0);
        BOOST_TEST(!file.tensors().contains("output_res_score.weight"));
    });
    with_file(golden_but([](ModelConfig& c) { c.latent_norm = c.mla_output_gate = c.moe_renormalize = false; }),
              [](const GgufFile& file, const Numbers&) {
                  BOOST_TEST(!file.tensors().contains("blk.1.ffn_routed_norm.weight"));
                  BOOST_TEST(!file.tensors().contains("blk.3.attn_gate.weight"));
                  BOOST_TEST(!file.at<bool>("kimi-k3.expert_weights_norm"));
              });
    with_file(golden_but([](ModelConfig& c) {
                  c.kda_gate = DecayGate::softplus;
                  c.kda_implementation = KdaImplementation::chunkwise;
              }),
              [](const GgufFile& file, const Numbers&) {
                  BOOST_TEST(file.find_key("kimi-k3.kda.gate_lower_bound") == nullptr);
              });
    with_file(golden_but([](ModelConfig& c) { c.q_lora_rank = c.moe_latent_size = 0; }),
              [](const GgufFile& file, const Numbers&) {
                  BOOST_TEST(file.tensors().contains("blk.3.attn_q.weight"));
                  BOOST_TEST(!file.tensors().contains("blk.3.attn_q_a.weight"));
                  BOOST_TEST(!file.tensors().contains("blk.1.ffn_routed_up.weight"));
              });
    with_file(golden_but([](ModelConfig& c) { c.tie_embeddings = false; }), [](const GgufFile& file, const Numbers& n) {
        const auto head = n.of("lm_head.weight");
        BOOST_TEST((read(file, "output.weight") == std::vector<float>(head.begin(), head.end())));
    });
}

BOOST_AUTO_TEST_CASE(what_llama_cpp_cannot_express_is_refused_with_a_sentence_and_nothing_is_written) {
    const auto refused = [](void (*change)(ModelConfig&), const char* sentence) {
        const TemporaryFolder folder;
        const ModelConfig config = golden_but(change);
        const Numbers numbers(config);
        KIMIK3_CHECK_REFUSED(
            write_gguf_model(folder / "model.gguf", config, numbers.parameters, numbers.all.data(), {}), sentence);
        BOOST_TEST(folder.size() == 0);
    };
    refused([](ModelConfig& c) { c.kda_heads = 2; }, "as many heads in KDA as in MLA; this model has 2 and 3");
    refused([](ModelConfig& c) { c.kda_gate_rank = 8; }, "rank is the size of a head, 16; this model's rank is 8");
    refused([](ModelConfig& c) { c.kda_output_gate = false; }, "has an output gate in KDA; this model has none");
    refused([](ModelConfig& c) { c.kda_output_gate_rank = 8; }, "of full rank in KDA; this model's has rank 8");
    refused([](ModelConfig& c) { c.hidden_act = Activation::silu; }, "the activation situ; this model has silu");
    refused([](ModelConfig& c) { c.kda_conv_size = 1; }, "a short convolution of 2 taps or more; this model's has 1");
    refused([](ModelConfig& c) { c.layer_types = "MMMMM"; }, "layers of both kinds, KDA and MLA; this model has MMMMM");
    refused([](ModelConfig& c) { c.num_experts = 1025; }, "at most 1024 experts; this model has 1025");
}

BOOST_AUTO_TEST_CASE(b55_progress_is_told_of_every_tensor_and_may_end_the_work_with_nothing_left) {
    const TemporaryFolder folder;
    const Numbers numbers(presets::golden);
    Index told = 0, end = 1 << 20;
    const auto write = [&] {
        return write_gguf_model(folder / "model.gguf", presets::golden, numbers.parameters, numbers.all.data(),
                                {.progress = [&] { require(++told < end, "interrupted"); }});
    };
    BOOST_TEST(write().tensors == told);
    const std::string whole = get(folder / "model.gguf");
    end = 2 * told;
    KIMIK3_CHECK_REFUSED(write(), "interrupted");
    BOOST_TEST((get(folder / "model.gguf") == whole));
    BOOST_TEST(folder.size() == 1);
}

BOOST_AUTO_TEST_CASE(a_tensor_that_is_missing_extra_or_too_large_is_refused_by_name) {
    const TemporaryFolder folder;
    Numbers numbers(presets::golden);
    const auto write = [&](GgufType type = GgufType::f32) {
        write_gguf_model(folder / "model.gguf", presets::golden, numbers.parameters, numbers.all.data(),
                         {.type = type});
    };
    numbers.parameters.push_back({"model.extra.weight", {1}, 0, 1});
    KIMIK3_CHECK_REFUSED(write(), "tensor 'model.extra.weight' has no place");
    numbers.parameters.pop_back();
    const ParameterInfo last = numbers.parameters.back();
    numbers.parameters.pop_back();
    KIMIK3_CHECK_REFUSED(write(), "needs a tensor '" + last.name + "'");
    numbers.parameters.push_back(last);
    numbers.all[to_size(last.offset + 5)] = 1e6f;
    KIMIK3_CHECK_REFUSED(write(GgufType::f16), "is 1000000, which f16 does not hold");
    KIMIK3_CHECK_REFUSED(write(GgufType::q4_k), "models are written as f32, f16, bf16 and q8_0, not as q4_k");
    BOOST_TEST(folder.size() == 0);
}

BOOST_AUTO_TEST_SUITE_END()
