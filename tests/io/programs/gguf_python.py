"""The Python package gguf reads what kimik3 writes: every key, every tensor, bit by bit where a type has one rounding.

    python3 gguf_python.py CONVERT MODEL_LOGITS GOLDEN      CONVERT: kimik3-convert; GOLDEN: the folder of golden files

The models are that of the golden files and the preset tiny, whose rows are long enough for q8_0, without a vocabulary.
Exit code 77: a package or a program is not there.
"""

import math
import os
import subprocess
import sys
import tempfile

try:
    import numpy as np
    from gguf import GGMLQuantizationType, GGUFReader, quants
    from safetensors.numpy import load_file, save_file
except ImportError as missing:
    print("skipped:", missing)
    sys.exit(77)

TYPES = {"f32": GGMLQuantizationType.F32, "f16": GGMLQuantizationType.F16, "bf16": GGMLQuantizationType.BF16,
         "q8_0": GGMLQuantizationType.Q8_0}


def golden_checkpoint(folder, model_logits, golden):
    """A checkpoint folder of the golden model; returns its tensors in float32."""
    tensors = {name[len("param."):]: value.astype(np.float32)
               for name, value in load_file(os.path.join(golden, "model.safetensors")).items()
               if name.startswith("param.")}
    save_file(tensors, os.path.join(folder, "model.safetensors"))
    with open(os.path.join(folder, "config.json"), "wb") as file:
        file.write(subprocess.run([model_logits, "config", "golden"], check=True, stdout=subprocess.PIPE).stdout)
    return tensors


def tiny_checkpoint(folder, model_logits):
    subprocess.run([model_logits, "initial", "tiny", folder], check=True)
    return load_file(os.path.join(folder, "model.safetensors"))


def expected_tensors(t, experts, heads, nope, rank, layers=5, epsilons=(1e-5, 1e-6)):
    """name -> (array as numpy has it, whether it is float32 in every file)."""
    scale = np.float32(math.sqrt(epsilons[0] / epsilons[1]))
    out = {"token_embd.weight": (t["model.embed_tokens.weight"], False),
           "output.weight": (t["model.embed_tokens.weight"], False),
           "output_norm.weight": (t["model.norm.weight"], True),
           "output_res_score.weight": (t["model.output_attn_res_norm.weight"] *
                                       t["model.output_attn_res_proj.weight"][0], True)}
    for n in range(layers):
        p, b = "model.layers.%d." % n, "blk.%d." % n

        def exact(to, source):
            out[b + to] = (t[p + source], True)

        def matrix(to, source):
            out[b + to] = (t[p + source], False)

        exact("attn_norm.weight", "input_layernorm.weight")
        exact("ffn_norm.weight", "post_attention_layernorm.weight")
        for to, source in (("attn", "self_attention"), ("ffn", "mlp")):
            out[b + to + "_res_score.weight"] = (t[p + source + "_res_norm.weight"] *
                                                 t[p + source + "_res_proj.weight"][0], True)
        matrix("attn_output.weight", "self_attn.o_proj.weight")
        if p + "self_attn.A_log" in t:
            for c in "qkv":
                matrix("attn_%s.weight" % c, "self_attn.%s_proj.weight" % c)
                conv = t[p + "self_attn.%s_conv1d.weight" % c]
                out[b + "ssm_conv1d_%s.weight" % c] = (conv[None], True)
            for to, source in (("f_a", "f_a_proj"), ("f_b", "f_b_proj"), ("beta", "b_proj"), ("g", "g_proj")):
                matrix("ssm_%s.weight" % to, "self_attn.%s.weight" % source)
            out[b + "ssm_a"] = (-np.exp(t[p + "self_attn.A_log"]), True)
            exact("ssm_dt.bias", "self_attn.dt_bias")
            exact("ssm_norm.weight", "self_attn.o_norm.weight")
        else:
            out[b + "attn_q_a.weight"] = (t[p + "self_attn.q_a_proj.weight"] * scale, False)
            kv = t[p + "self_attn.kv_a_proj_with_mqa.weight"].copy()
            kv[:rank] *= scale
            out[b + "attn_kv_a_mqa.weight"] = (kv, False)
            exact("attn_q_a_norm.weight", "self_attn.q_a_layernorm.weight")
            exact("attn_kv_a_norm.weight", "self_attn.kv_a_layernorm.weight")
            matrix("attn_q_b.weight", "self_attn.q_b_proj.weight")
            matrix("attn_gate.weight", "self_attn.g_proj.weight")
            kv_b = t[p + "self_attn.kv_b_proj.weight"].reshape(heads, -1, rank)
            out[b + "attn_k_b.weight"] = (np.ascontiguousarray(kv_b[:, :nope].transpose(0, 2, 1)), False)
            out[b + "attn_v_b.weight"] = (np.ascontiguousarray(kv_b[:, nope:]), False)
        feed, shared = ("mlp.", "") if n == 0 else ("block_sparse_moe.shared_experts.", "_shexp")
        for c in ("gate", "up", "down"):
            matrix("ffn_%s%s.weight" % (c, shared), "%s%s_proj.weight" % (feed, c))
        if n == 0:
            continue
        moe = "block_sparse_moe."
        exact("ffn_gate_inp.weight", moe + "gate.weight")
        exact("exp_probs_b.bias", moe + "gate.e_score_correction_bias")
        exact("ffn_routed_norm.weight", moe + "routed_expert_norm.weight")
        matrix("ffn_routed_down.weight", moe + "routed_expert_down_proj.weight")
        matrix("ffn_routed_up.weight", moe + "routed_expert_up_proj.weight")
        for c, w in (("gate", "w1"), ("up", "w3"), ("down", "w2")):
            out[b + "ffn_%s_exps.weight" % c] = (np.stack(
                [t["%s%sexperts.%d.%s.weight" % (p, moe, e, w)] for e in range(experts)]), False)
    return out


KEYS = {
    "general.architecture": "kimi-k3", "kimi-k3.vocab_size": 67, "kimi-k3.context_length": 128,
    "kimi-k3.embedding_length": 48, "kimi-k3.block_count": 5, "kimi-k3.feed_forward_length": 80,
    "kimi-k3.attention.head_count": 3, "kimi-k3.attention.head_count_kv": [0, 0, 0, 1, 1],
    "kimi-k3.attention.layer_norm_rms_epsilon": 1e-5, "kimi-k3.attention.key_length": 24,
    "kimi-k3.attention.value_length": 16, "kimi-k3.attention.key_length_mla": 24,
    "kimi-k3.attention.value_length_mla": 16, "kimi-k3.attention.q_lora_rank": 24,
    "kimi-k3.attention.kv_lora_rank": 16, "kimi-k3.rope.dimension_count": 8, "kimi-k3.ssm.conv_kernel": 4,
    "kimi-k3.kda.head_dim": 16, "kimi-k3.kda.gate_lower_bound": -5.0, "kimi-k3.leading_dense_block_count": 1,
    "kimi-k3.expert_count": 8, "kimi-k3.expert_used_count": 2, "kimi-k3.expert_shared_count": 2,
    "kimi-k3.expert_feed_forward_length": 20, "kimi-k3.expert_latent_length": 24, "kimi-k3.expert_gating_func": 2,
    "kimi-k3.expert_weights_scale": 2.5, "kimi-k3.expert_weights_norm": True, "kimi-k3.activation.situ_beta": 4.0,
    "kimi-k3.activation.situ_linear_beta": 25.0, "kimi-k3.attn_res.block_size": 2, "tokenizer.ggml.model": "no_vocab",
}


def same(a, b):
    return abs(a - b) < 1e-6 * abs(b) if isinstance(b, float) else a == b


def compare(convert, folder, expected, golden):
    for name, kind in TYPES.items():
        path = os.path.join(folder, name + ".gguf")
        subprocess.run([convert, folder, "--out", path, "--type", name, "--tokenizer", "none"], check=True)
        reader = GGUFReader(path)
        keys = {key: field.contents() for key, field in reader.fields.items() if not key.startswith("GGUF.")}
        for key, value in KEYS.items() if golden else []:
            assert same(keys[key], value), (key, keys[key], value)
        assert set(keys) - set(KEYS) == {"general.type", "general.name", "general.file_type",
                                         "general.quantization_version"}, keys
        assert sorted(t.name for t in reader.tensors) == sorted(expected)
        stored = set()
        for tensor in reader.tensors:
            array, float32 = expected[tensor.name]
            wanted = TYPES["f32"] if float32 else kind
            if wanted == TYPES["q8_0"] and array.shape[-1] % 32 != 0:
                wanted = TYPES["f16"]
            assert tensor.tensor_type == wanted, (name, tensor.name, tensor.tensor_type)
            assert list(reversed(tensor.shape.tolist())) == list(array.shape), (tensor.name, tensor.shape)
            if tensor.name.endswith("ssm_a"):  # the two exp may differ in the last bit
                assert np.allclose(tensor.data, array, rtol=3e-7, atol=0)
            else:
                theirs = quants.quantize(np.ascontiguousarray(array), wanted)
                assert tensor.data.tobytes() == theirs.tobytes(), (name, tensor.name)
            stored.add(wanted.name)
        print(name, len(reader.tensors), "tensors equal, stored as", ", ".join(sorted(stored)))


def main():
    convert, model_logits, golden = sys.argv[1:]
    if not (os.access(convert, os.X_OK) and os.access(model_logits, os.X_OK)):
        return 77
    with tempfile.TemporaryDirectory() as folder:
        tensors = golden_checkpoint(folder, model_logits, golden)
        compare(convert, folder, expected_tensors(tensors, experts=8, heads=3, nope=16, rank=16), golden=True)
    with tempfile.TemporaryDirectory() as folder:
        tensors = tiny_checkpoint(folder, model_logits)
        compare(convert, folder, expected_tensors(tensors, experts=16, heads=4, nope=32, rank=32), golden=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
