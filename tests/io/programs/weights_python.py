"""Folders of weights pass between kimik3 and the Python package safetensors both ways, bit by bit.

    python3 weights_python.py PROGRAM      PROGRAM: weights_exchange, or the folder it is in

Exit code 77: the package or the program is not there.
"""

import json
import os
import subprocess
import sys
import tempfile

try:
    from safetensors import deserialize
    from safetensors.numpy import save_file
    import numpy
except ImportError:
    sys.exit(77)

KEPT = ("q_conv1d.weight", "k_conv1d.weight", "v_conv1d.weight", "A_log", "dt_bias", "o_norm.weight",
        "e_score_correction_bias")


def content(path):
    with open(path, "rb") as file:
        return {name: (t["dtype"], list(t["shape"]), bytes(t["data"])) for name, t in deserialize(file.read())}


def content_of_shards(folder):
    with open(os.path.join(folder, "model.safetensors.index.json"), encoding="utf-8") as file:
        index = json.load(file)
    tensors = {}
    for name in sorted(set(index["weight_map"].values())):
        shard = content(os.path.join(folder, name))
        assert set(shard) == {tensor for tensor, place in index["weight_map"].items() if place == name}, name
        tensors.update(shard)
    assert set(tensors) == set(index["weight_map"])
    assert index["metadata"]["total_size"] == sum(len(data) for _, _, data in tensors.values())
    return tensors


def rounded(data, dtype):
    if dtype == "F16":
        return numpy.frombuffer(data, numpy.float32).astype(numpy.float16).tobytes()
    bits = numpy.frombuffer(data, numpy.uint32).astype(numpy.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(numpy.uint16).tobytes()


def check_ours(folder, dtype, prefix, whole):
    ours = content_of_shards(folder)
    assert set(ours) == {prefix + name for name in whole}
    for name, (_, shape, data) in whole.items():
        expected = ("F32", shape, data) if name.endswith(KEPT) else (dtype, shape, rounded(data, dtype))
        assert ours[prefix + name] == expected, name


def write_theirs(folder, whole):
    os.mkdir(folder)
    shards = [{}, {}, {}]
    for place, (name, (_, shape, data)) in enumerate(sorted(whole.items())):
        values = numpy.frombuffer(data, numpy.float32).reshape(shape)
        if name.endswith("A_log"):
            values = numpy.concatenate([values, numpy.zeros(128 - len(values), numpy.float32)])
        shards[place % 3]["language_model." + name] = values
        if name.endswith("embed_tokens.weight"):
            shards[0]["language_model.lm_head.weight"] = values
    shards[1]["vision_tower.patch_embed.weight"] = numpy.ones(3, numpy.float32)
    places = {}
    for number, shard in enumerate(shards):
        file = f"model-{number + 1:05}-of-00003.safetensors"
        save_file(shard, os.path.join(folder, file), {"format": "pt"})
        places.update({name: file for name in shard})
    with open(os.path.join(folder, "model.safetensors.index.json"), "w", encoding="utf-8") as file:
        json.dump({"metadata": {}, "weight_map": places}, file)


def main():
    program = sys.argv[1]
    if os.path.isdir(program):
        program = os.path.join(program, "weights_exchange")
    if not os.access(program, os.X_OK):
        sys.exit(77)
    with tempfile.TemporaryDirectory() as folder:
        place = lambda name: os.path.join(folder, name)
        subprocess.run([program, "write", folder], check=True)
        whole = content(place("f32/model.safetensors"))
        check_ours(place("bf16"), "BF16", "", whole)
        check_ours(place("f16"), "F16", "language_model.", whole)
        write_theirs(place("theirs"), whole)
        subprocess.run([program, "read", place("theirs"), place("f32")], check=True)
        assert subprocess.run([program, "read", place("bf16"), place("f32")]).returncode == 1


main()
