#!/bin/bash
# kimik3-generate from end to end. $1: the folder of the built programs. Exit code 77: they are not there.
set -u
programs=$(realpath "${1:?the folder of the programs}") || exit 77
[ -x "$programs/kimik3-generate" ] && [ -x "$programs/kimik3-train" ] || exit 77
program=$programs/kimik3-generate
source "$(dirname "$(realpath "$0")")/../support/program_laws.sh"
given() { # given <arguments...>: the text that the run generates
    timeout 60 "$programs/kimik3-generate" --checkpoint run --threads 1 --quiet "$@" </dev/null
}
is_utf8() { iconv -f UTF-8 -t UTF-8 "$1" >/dev/null; }

for n in $(seq 1 400); do echo "Sentence $n of a book says that $((n * 7 % 13)) birds sat on a wall."; done >book.txt
"$programs/kimik3-prepare" book.txt --out data --tokenizer train:300 >/dev/null &&
    "$programs/kimik3-train" --data data --out run --steps 40 --batch 4 --seq 32 --lr 4e-3 --eval-every 0 >/dev/null || exit 1

# what comes out
law "a run's folder is a checkpoint" ends 0 "Sentence 1" --checkpoint run --prompt "Sentence 1" --max-tokens 8
law "statistics are on standard error" grep -q "8 tokens, end: max tokens" stderr
law "so is the speed" grep -qE 'prompt [0-9]+ tokens in [0-9.]+ s; [0-9.]+ tokens/s after it' stderr
law "a checkpoint too" ends 0 "Sentence 1" --checkpoint run/step-00000040 --prompt "Sentence 1" --max-tokens 8 --quiet
law "no statistics when quiet" test ! -s stderr
greedy=$(given --prompt "Sentence 2 of" --temperature 0 --max-tokens 20)
law "greedy twice is the same" equal "$(given --prompt "Sentence 2 of" --temperature 0 --max-tokens 20)" "$greedy"
law "greedy knows no bounds of sampling" equal \
    "$(given --prompt "Sentence 2 of" --temperature 0 --max-tokens 20 --top-k 3 --top-p 0.5 --min-p 0.1)" "$greedy"
law "greedy knows no seed" equal "$(given --prompt "Sentence 2 of" --temperature 0 --max-tokens 20 --seed 9)" "$greedy"
law "nor threads" equal "$("$programs/kimik3-generate" --checkpoint run --threads 2 --quiet --prompt "Sentence 2 of" \
    --temperature 0 --max-tokens 20)" "$greedy"
law "top-k 1 is greedy" equal "$(given --prompt "Sentence 2 of" --top-k 1 --max-tokens 20)" "$greedy"
drawn=$(given --prompt "Sentence" --temperature 1 --max-tokens 30 --seed 1)
law "a seed repeats" equal "$(given --prompt "Sentence" --temperature 1 --max-tokens 30 --seed 1)" "$drawn"
law "seeds differ" test "$(given --prompt "Sentence" --temperature 1 --max-tokens 30 --seed 2)" != "$drawn"
law "a state that is continued gives the text that a longer prompt gives" equal \
    "$(given --prompt "$(given --prompt "Sentence 2 of a" --temperature 0 --max-tokens 1)" --temperature 0 --max-tokens 4)" \
    "$(given --prompt "Sentence 2 of a" --temperature 0 --max-tokens 5)"

# where it ends
law "no tokens" equal "$(given --prompt "Sentence" --max-tokens 0)" "Sentence"
law "no echo" equal "$(given --prompt "Sentence 2 of" --temperature 0 --max-tokens 20 --no-echo)" "${greedy#Sentence 2 of}"
stop=${greedy: -6:2}
rest=${greedy#Sentence 2 of}
law "a stop string ends the text before it" equal \
    "$(given --prompt "Sentence 2 of" --temperature 0 --max-tokens 20 --stop "$stop")" "Sentence 2 of${rest%%"$stop"*}"
law "the context ends it" ends 0 "end: context full" --checkpoint run --prompt "Sentence" --context 9 --max-tokens 50 --ignore-end

cp -r run/step-00000040 ends
generation() { echo "{\"do_sample\": true, \"eos_token_id\": $1}" >ends/generation_config.json; }
generation "[$(seq -s, 0 299)]"
law "b61 the end tokens that a generation_config.json names end it" ends 0 "0 tokens, end: stop token" --checkpoint ends --prompt "Sentence 2 of"
law "unless they are to be ignored" ends 0 "20 tokens, end: max tokens" --checkpoint ends --prompt "Sentence 2 of" --max-tokens 20 --ignore-end
generation 299
law "one stands without a list" ends 0 "4 tokens" --checkpoint ends --prompt "Sentence 2 of" --max-tokens 4 --temperature 0
for id in 300 -1 2.5 '"x"' 99999999999; do
    generation "[299, $id]"
    law "b61 an end token that is none is refused" ends 1 "eos_token_id has $id, which is no token" --checkpoint ends --prompt a
done

# prompts
law "several prompts are generated side by side" ends 0 "=== 2 ===" --checkpoint run --prompt "Sentence 2 of" \
    --prompt "birds sat" --temperature 0 --max-tokens 20 --quiet
law "each as if it were alone" equal "$(cat stdout)" "=== 1 ===
$greedy
=== 2 ===
$(given --prompt "birds sat" --temperature 0 --max-tokens 20)"
printf 'Sentence 2 of' >prompt.txt
law "a prompt from a file" equal "$(given --prompt-file prompt.txt --temperature 0 --max-tokens 20)" "$greedy"
law "a prompt from standard input" equal "$("$programs/kimik3-generate" --checkpoint run --quiet --prompt-file - \
    --temperature 0 --max-tokens 20 <prompt.txt)" "$greedy"
law "no prompt begins a document" ends 0 "tokens" --checkpoint run --max-tokens 5
law "a prompt that is not UTF-8 is taken" ends 0 "$(printf 'a\xef\xbf\xbdb')" --checkpoint run --prompt "$(printf 'a\xffb\xe2\x82')" \
    --max-tokens 20 --temperature 2
law "what comes out is UTF-8" is_utf8 stdout
law "also where tokens are drawn blindly" ends 0 "" --checkpoint run --prompt "é" --max-tokens 200 --temperature 100 --ignore-end
law "what comes out is UTF-8" is_utf8 stdout
law "a special token in a prompt is text" ends 0 "prompt 13 tokens" --checkpoint run --tokenizer bytes --prompt "<|endoftext|>" \
    --max-tokens 1
law "or the token where it is asked for" ends 0 "prompt 1 tokens" --checkpoint run --tokenizer bytes --prompt "<|endoftext|>" \
    --specials --max-tokens 1

sed 's/: 299\b/: 900/' data/tokenizer.json >holes.json  # ids 299 to 899 have no token
law "ids that the tokenizer lacks are not drawn" ends 0 "200 tokens" --checkpoint run --tokenizer holes.json --prompt Sentence \
    --max-tokens 200 --temperature 100 --ignore-end

# wrong input: exit 1 and what to do
law "no checkpoint" ends 1 "'data' is neither a checkpoint" --checkpoint data
law "no folder" ends 1 "'nowhere' is neither a checkpoint" --checkpoint nowhere
cp -r run/step-00000040 bare
rm bare/tokenizer.json
law "no tokenizer" ends 1 "name one with --tokenizer" --checkpoint bare
law "it is named" ends 0 "Sentence" --checkpoint bare --tokenizer data/tokenizer.json --prompt Sentence --max-tokens 1
law "a tokenizer that is not there" ends 1 "missing.json" --checkpoint run --tokenizer missing.json
law "a prompt too long" ends 1 "a prompt has at most 512 tokens" --checkpoint run --tokenizer bytes --prompt "$(head -c 600 book.txt)"
law "a context too long" ends 1 "1 to 512 tokens" --checkpoint run --prompt a --context 513
law "standard input that cannot be read" bash -c '"$0" --checkpoint run --prompt-file - 2>stderr <.; [ $? = 1 ]' "$program"
law "is reported" grep -q -- "--prompt-file: standard input cannot be read" stderr
law "no prompt file" ends 1 "'missing.txt' cannot be read" --checkpoint run --prompt-file missing.txt
cp -r run/step-00000040 other
sed -i 's/"num_experts_per_token": 2/"num_experts_per_token": 3/' other/config.json
law "a model that is no preset" ends 1 "is none of the presets" --checkpoint other --prompt a
law "with the nearest preset" grep -qF "the nearest preset is tiny" stderr
law "and the line that adds it" grep -qxF "    kimik3_add_preset(kimik3_programs \"$work/other/config.json\")" stderr
cp -r run/step-00000040 shards
mv shards/model.safetensors shards/model-00001-of-00001.safetensors
header=$(od -An -tu8 -N8 shards/model-00001-of-00001.safetensors)
names=$(tail -c +9 shards/model-00001-of-00001.safetensors | head -c $header | grep -oE '"[^"]+":\{"dtype"' | cut -d: -f1)
printf '{"weight_map": {%s}}' "$(sed 's/$/: "model-00001-of-00001.safetensors"/' <<< "$names" | paste -sd,)" > shards/model.safetensors.index.json
law "a checkpoint with an index" ends 0 "Sentence" --checkpoint shards --prompt Sentence --max-tokens 1
sed -i 's/"model.norm.weight"/"model.norms.weight"/' shards/model.safetensors.index.json
law "an index that lies" ends 1 "model.norm.weight" --checkpoint shards --prompt a
cp -r run/step-00000040 cut
truncate -s 100000 cut/model.safetensors
law "a checkpoint that was cut off" ends 1 "cut/model.safetensors" --checkpoint cut --prompt a
law "an output that is full" bash -c '"$0" --checkpoint run --prompt a >/dev/full 2>stderr; [ $? = 1 ]' "$programs/kimik3-generate"
law "is reported" grep -q "standard output cannot be written" stderr

# wrong usage: exit 2
law "help" ends 0 "--temperature" --help
law "no arguments" ends 2 "--checkpoint is required"
law "an unknown option" ends 2 "--nonsense" --checkpoint run --nonsense
law "a negative temperature" ends 2 "--temperature: 0 or a number above it is wanted, got '-1'" --checkpoint run --temperature -1
law "no number" ends 2 "--temperature: 0 or a number above it is wanted, got 'nan'" --checkpoint run --temperature nan
law "a number that no seed holds" ends 2 "--seed: 0 or a number above it is wanted, below 2^64" --checkpoint run \
    --seed 18446744073709551616
law "the largest seed" ends 0 "a" --checkpoint run --prompt a --max-tokens 1 --seed 18446744073709551615
law "a probability" ends 2 "--top-p: a number above 0 and not above 1 is wanted, got '0'" --checkpoint run --top-p 0

[ $failed = 0 ] && echo "all laws hold"
exit $failed
