"""Files pass between kimik3 and the Python package safetensors both ways, bit by bit.

    python3 safetensors_python.py PROGRAM      PROGRAM: safetensors_copy, or the folder it is in

Exit code 77: the package or the program is not there.
"""

import ctypes
import os
import random
import subprocess
import sys
import tempfile

try:
    from safetensors import deserialize, safe_open, serialize
except ImportError:
    sys.exit(77)
try:
    from safetensors import TensorSpec
except ImportError:  # before 0.8 serialize took the bytes themselves
    TensorSpec = None

BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4, "int16": 2, "int8": 1,
         "uint64": 8, "uint32": 4, "uint16": 2, "uint8": 1, "bool": 1}


def tensors_of(seed):
    """Random bytes under every dtype, with scalars, empty tensors and odd sizes; booleans are 0 or 1."""
    draw = random.Random(seed)
    tensors = {}
    for dtype, width in BYTES.items():
        for shape in ([], [0], [1], [7], [3, 5], [2, 0, 4], [2, 3, 4], [draw.randrange(1, 3000)]):
            count = 1
            for extent in shape:
                count *= extent
            data = bytes(draw.randrange(2) for _ in range(count)) if dtype == "bool" else draw.randbytes(count * width)
            name = f"{dtype} {'x'.join(map(str, shape))} \"\\\n\u00e9\U0001f600"
            tensors[name] = {"dtype": dtype, "shape": shape, "data": data}
    names = list(tensors)
    draw.shuffle(names)
    return {name: tensors[name] for name in names}


def serialized(tensors, metadata):
    if TensorSpec is None:
        return serialize(tensors, metadata)
    memory = {name: ctypes.create_string_buffer(t["data"], len(t["data"]) + 1) for name, t in tensors.items()}
    return serialize({name: TensorSpec(dtype=t["dtype"], shape=t["shape"], data_ptr=ctypes.addressof(memory[name]),
                                       data_len=len(t["data"])) for name, t in tensors.items()}, metadata)


def content(path):
    with open(path, "rb") as file:
        return {name: (t["dtype"], list(t["shape"]), bytes(t["data"])) for name, t in deserialize(file.read())}


def main():
    program = sys.argv[1]
    if os.path.isdir(program):
        program = os.path.join(program, "safetensors_copy")
    if not os.access(program, os.X_OK):
        sys.exit(77)
    with tempfile.TemporaryDirectory() as folder:
        theirs, ours = os.path.join(folder, "theirs.safetensors"), os.path.join(folder, "ours.safetensors")
        for seed in range(5):
            metadata = {"format": "pt", "seed": str(seed), "\u00fc \"": "\t\n\\"} if seed % 2 else None
            with open(theirs, "wb") as file:
                file.write(serialized(tensors_of(seed), metadata))
            subprocess.run([program, theirs, ours], check=True)
            assert content(theirs) == content(ours), seed
            with safe_open(ours, framework="np") as file:
                assert (file.metadata() or None) == metadata, seed
            with open(ours, "rb") as file:
                assert (8 + int.from_bytes(file.read(8), "little")) % 64 == 0, seed


main()
