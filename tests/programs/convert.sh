#!/bin/bash
# kimik3-convert from end to end. $1: the folder of the built programs. Exit code 77: they are not there.
set -u
programs=$(realpath "${1:?the folder of the programs}") || exit 77
[ -x "$programs/kimik3-convert" ] && [ -x "$programs/kimik3-train" ] || exit 77
program=$programs/kimik3-convert
seeds=$(dirname "$(realpath "$0")")/../fuzz/seeds/gguf
source "$(dirname "$(realpath "$0")")/../support/program_laws.sh"
begins() { [ "$(head -c 4 "$1")" = GGUF ]; }
absent() { [ ! -e "$1" ]; }
smaller() { [ "$(stat -c %s "$1")" -lt "$(stat -c %s "$2")" ]; }
changed() { # changed <file> <from> <to>: the checkpoint "changed" with a text of one of its files replaced
    rm -rf changed && cp -r run/step-00000001 changed && sed -i "s/$2/$3/" "changed/$1"
}

for n in $(seq 1 300); do echo "Sentence $n says that $((n * 7 % 13)) birds sat on a wall."; done >book.txt
"$programs/kimik3-prepare" book.txt --out data --tokenizer train:300 >/dev/null &&
    "$programs/kimik3-train" --data data --out run --steps 1 --batch 1 --seq 16 --eval-every 0 >/dev/null || exit 1

law "a run's folder is converted" ends 0 "matrices as f16" run -o f16.gguf
law "the file is one" begins f16.gguf
law "its vocabulary is the run's" grep -q "vocabulary       300 tokens" stdout
law "a checkpoint is converted" ends 0 "matrices as f32" run/step-00000001 -o f32.gguf --type f32
law "also to bf16" ends 0 "matrices as bf16" run -o bf16.gguf --type bf16
law "what q8_0 does not divide is said" ends 0 "are stored as f16" run -o q8_0.gguf --type q8_0
law "fewer bits are a smaller file" smaller f16.gguf f32.gguf
law "fewer still" smaller q8_0.gguf f16.gguf
law "a file that is there is kept" ends 1 "--overwrite replaces it" run -o f16.gguf --type f32
law "or replaced" ends 0 "matrices as q8_0" run -o f16.gguf --type q8_0 --overwrite
law "twice is the same" cmp -s <(tail -c 100000 f16.gguf) <(tail -c 100000 q8_0.gguf)

# vocabularies
law "a GGUF file is a tokenizer" ends 0 "vocabulary       300 tokens" run -o a.gguf --tokenizer f32.gguf
law "also another model's" ends 0 "vocabulary       260 tokens" run -o b.gguf --tokenizer "$seeds/vocabulary"
law "bytes are one" ends 0 "vocabulary       257 tokens" run -o c.gguf --tokenizer bytes
law "none is one" ends 0 "vocabulary       none" run -o d.gguf --tokenizer none
law "which has no pre-tokenizer" ends 2 "--pre: without effect here" run -o x.gguf --tokenizer none --pre qwen2
law "a name of a pattern that is not the tokenizer's is written with a warning" \
    ends 0 "warning: tokenizer.ggml.pre is 'qwen2'" run -o e.gguf --pre qwen2
changed tokenizer.json '"use_regex": true' '"use_regex": false'
law "a pattern without a name is refused" ends 1 "none of gpt-2, smollm" changed -o x.gguf
rm changed/tokenizer.json
law "no tokenizer" ends 1 "name one with --tokenizer" changed -o x.gguf

# wrong input: exit 1 and what to do, and no file
law "no checkpoint" ends 1 "'data' is neither a checkpoint" data -o x.gguf
changed config.json '"num_heads": 4' '"num_heads": 2'
law "unequal heads" ends 1 "as many heads in KDA as in MLA; this model has 2 and 4" changed -o x.gguf
changed config.json '"vocab_size": 1024' '"vocab_size": 1025'
law "a tensor of another shape" ends 1 "tensor 'model.embed_tokens.weight'" changed -o x.gguf
changed config.json '"vocab_size": 1024' '"vocab_size": 1024'
truncate -s -1 changed/model.safetensors
law "a cut checkpoint" ends 1 "is cut" changed -o x.gguf
law "a folder that is not there" ends 1 "cannot create the file" run -o nowhere/x.gguf
law "nothing is left behind" absent x.gguf
law "an unknown type is wrong usage" ends 2 "--type" run -o x.gguf --type q4_0
law "so is no file" ends 2 "--out is required" run
law "help" ends 0 "bf16" --help

[ $failed = 0 ] && echo "all laws hold"
exit $failed
