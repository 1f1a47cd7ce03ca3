"""A converted model says in llama.cpp what it says here: the same greedy tokens, logits within 1e-3 in float32.

    python3 gguf_llama_cpp.py PROGRAMS MODEL_LOGITS GOLDEN
        PROGRAMS: the folder with kimik3-convert, -prepare and -train; GOLDEN: the folder of golden files

Three models: that of the golden files, whose greedy tokens and logits the reference implementation computed; the
preset tiny, trained for some steps here, with its tokenizer inside of the file; and tiny, untrained, with every switch
that llama.cpp knows turned the other way (model_logits.cpp). Exit code 77: llama-cpp-python or a program is not there,
or its llama.cpp does not know kimi-k3.
"""

import json
import os
import subprocess
import sys
import tempfile

try:
    import llama_cpp
    import numpy as np
    from safetensors.numpy import load_file

    from gguf_python import golden_checkpoint
except (ImportError, OSError, RuntimeError) as missing:
    print("skipped:", missing)
    sys.exit(77)

TOLERANCE = 1e-3
CORPUS = "".join("Sentence %d of a book says that %d birds sat on a wall.\n" % (n, n * 7 % 13) for n in range(400))


def knows_kimi_k3():
    folder = os.path.join(os.path.dirname(llama_cpp.__file__), "lib")
    for name in os.listdir(folder):
        if name.startswith("libllama.") or name.startswith("llama."):
            with open(os.path.join(folder, name), "rb") as file:
                if b"kimi-k3" in file.read():
                    return True
    return False


def llama(path):
    """float32 everywhere: also in the caches."""
    return llama_cpp.Llama(path, n_ctx=128, n_threads=2, logits_all=True, verbose=False, flash_attn=False,
                           type_k=llama_cpp.GGML_TYPE_F32, type_v=llama_cpp.GGML_TYPE_F32)


def greedy(model, prompt, count):
    """The tokens of prompt and continuation, and the logits of each continued position."""
    tokens, logits = list(prompt), []
    model.reset()
    model.eval(tokens)
    for _ in range(count):
        logits.append(np.array(model.scores[len(tokens) - 1], dtype=np.float64))
        tokens.append(int(np.argmax(logits[-1])))
        model.eval(tokens[-1:])
    return tokens, np.array(logits)


def report(what, tokens, theirs, logits, reference):
    difference = float(np.abs(logits - reference).max())
    print("%-28s %d tokens %s, logits differ by at most %.1e of %.1f" % (
        what, len(tokens), "equal" if tokens == theirs else "DIFFER", difference, float(np.abs(reference).max())))
    return tokens == theirs and difference < TOLERANCE


def check_golden(convert, model_logits, golden, folder):
    golden_checkpoint(folder, model_logits, golden)
    path = os.path.join(folder, "golden.gguf")
    subprocess.run([convert, folder, "--out", path, "--type", "f32", "--tokenizer", "none"], check=True)
    model, cases = llama(path), load_file(os.path.join(golden, "generate.safetensors"))
    good = True
    for name in sorted(cases):
        if not name.startswith("prompt"):
            continue
        length, prompt = name[len("prompt"):], cases[name][0].tolist()
        expected, reference = cases["greedy" + length][0].tolist(), cases["logits" + length]
        tokens, logits = greedy(model, prompt, len(reference))
        good &= report("golden, prompt of %s" % length, tokens, expected, logits, reference)
    return good


def continue_both(what, model, model_logits, checkpoint, prompt):
    """Compares 40 tokens here and there; returns the prompt's ids, or None where they differ."""
    out = subprocess.run([model_logits, "greedy", checkpoint, "40", prompt], check=True, stdout=subprocess.PIPE)
    lines = [[float(x) for x in line.split()] for line in out.stdout.decode().splitlines()]
    ids = [int(x) for x in lines[0]]
    tokens, logits = greedy(model, ids, len(lines) - 1)
    equal = report("%s, %r" % (what, prompt[:16]), tokens, ids + [int(line[0]) for line in lines[1:]], logits,
                   np.array([line[1:] for line in lines[1:]]))
    return ids if equal else None


def check_plain(convert, model_logits, folder):
    subprocess.run([model_logits, "initial", "plain", folder], check=True)
    path = os.path.join(folder, "plain.gguf")
    subprocess.run([convert, folder, "--out", path, "--type", "f32", "--tokenizer", "none"], check=True)
    return continue_both("plain", llama(path), model_logits, folder, "any bytes") is not None


def check_tiny(programs, model_logits, folder):
    def run(program, *arguments):
        subprocess.run([os.path.join(programs, program), *arguments], check=True, stdout=subprocess.DEVNULL)

    text, data, trained = (os.path.join(folder, name) for name in ("book.txt", "data", "run"))
    with open(text, "w", encoding="utf-8") as file:
        file.write(CORPUS)
    run("kimik3-prepare", text, "--out", data, "--tokenizer", "train:1024")
    run("kimik3-train", "--preset", "tiny", "--data", data, "--out", trained, "--steps", "40", "--batch", "4",
        "--seq", "64", "--eval-every", "0")
    path, checkpoint = os.path.join(folder, "tiny.gguf"), os.path.join(trained, "step-00000040")
    run("kimik3-convert", trained, "--out", path, "--type", "f32")
    model, good = llama(path), True
    for prompt in ("Sentence 12 of", " birds sat on a wall.\nSentence", "caf\u00e9 99999 \u4e2d\u6587 <|endoftext|>"):
        ids = continue_both("tiny", model, model_logits, checkpoint, prompt)
        theirs = model.tokenize(prompt.encode(), add_bos=False, special=False)
        if theirs != ids:
            print("the prompt %r is %s here and %s in llama.cpp" % (prompt, ids, theirs))
        good &= theirs == ids
    if model.token_eos() != json_end(checkpoint):
        print("the end token is %d in llama.cpp and %d here" % (model.token_eos(), json_end(checkpoint)))
        good = False
    return good


def json_end(checkpoint):
    with open(os.path.join(checkpoint, "tokenizer.json"), encoding="utf-8") as file:
        return next(t["id"] for t in json.load(file)["added_tokens"] if t["content"] == "<|endoftext|>")


def main():
    programs, model_logits, golden = sys.argv[1:]
    convert = os.path.join(programs, "kimik3-convert")
    needed = [convert, model_logits] + [os.path.join(programs, "kimik3-" + name) for name in ("prepare", "train")]
    if not all(os.access(program, os.X_OK) for program in needed):
        return 77
    if not knows_kimi_k3():
        print("skipped: this llama.cpp does not know kimi-k3")
        return 77
    with tempfile.TemporaryDirectory() as folder:
        good = check_golden(convert, model_logits, golden, folder)
    with tempfile.TemporaryDirectory() as folder:
        good &= check_plain(convert, model_logits, folder)
    with tempfile.TemporaryDirectory() as folder:
        good &= check_tiny(programs, model_logits, folder)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
