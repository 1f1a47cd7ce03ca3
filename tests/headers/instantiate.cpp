// b77: what a program of a careful user instantiates, under every warning of warnings.txt: whole models in float and
// in double, all switches at both ends, a trainer, generation, scores, a probe, checkpoints, tokenizers.
#include <kimik3/io.hpp>
#include <kimik3/kimik3.hpp>
#include <kimik3/text.hpp>

using namespace kimik3;

constexpr ModelConfig plain = [] {
    ModelConfig c = presets::golden;
    c.kda_implementation = KdaImplementation::chunkwise;
    c.kda_gate = DecayGate::softplus;
    c.q_lora_rank = c.moe_latent_size = 0;
    c.hidden_act = Activation::silu;
    c.attn_res = c.tie_embeddings = c.kda_output_gate = c.mla_output_gate = c.latent_norm = c.moe_renormalize = false;
    return c;
}();

using Reference = KimiK3<presets::golden, Cpu, double>;
using Plain = KimiK3<plain>;
template class kimik3::KimiK3<presets::golden, Cpu, double>;
template class kimik3::KimiK3<plain>;
template class kimik3::Trainer<Plain>;
template class kimik3::Trainer<Reference>;
template class kimik3::Generation<Plain>;
template class kimik3::BatchGeneration<Reference>;
template Observation kimik3::look_inside(Plain&, Tokens, const Sequences&);
template Observation kimik3::look_inside(Reference&, Tokens, Index);
template TextScore kimik3::score_text(Plain&, const Shard&, const TextScoreOptions&);
template std::vector<double> kimik3::score_endings(Reference&, std::span<const Ending>, Index);
template Report kimik3::model_report(const Plain&, std::string);
template void kimik3::save_model(const std::filesystem::path&, const Plain&, const std::vector<std::filesystem::path>&);
template void kimik3::write_weights(const std::filesystem::path&, const Reference&, const WeightsFormat&,
                                    const std::vector<std::filesystem::path>&);
template void kimik3::load_model(const std::filesystem::path&, Plain&);
template void kimik3::load_weights(const std::filesystem::path&, Reference&);
template void kimik3::pack_mxfp4(std::span<const float>, std::span<std::uint8_t>, std::span<std::uint8_t>);
template void kimik3::load_checkpoint(const std::filesystem::path&, Trainer<Reference>&);
