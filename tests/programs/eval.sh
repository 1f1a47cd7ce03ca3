#!/bin/bash
# kimik3-eval from end to end. $1: the folder of the built programs. Exit code 77: they are not there.
set -u
programs=$(realpath "${1:?the folder of the programs}") || exit 77
[ -x "$programs/kimik3-eval" ] && [ -x "$programs/kimik3-train" ] || exit 77
program=$programs/kimik3-eval
source "$(dirname "$(realpath "$0")")/../support/program_laws.sh"
number() { sed -n "s/.*\"$1\": \([-0-9.e]*\),\{0,1\}$/\1/p" stdout | head -1; }
close() { awk -v a="$1" -v b="$2" 'BEGIN { d = a - b; exit !(a != "" && b != "" && d < 1e-5 && d > -1e-5) }'; }

for n in $(seq 1 400); do echo "Sentence $n of a book says that $((n * 7 % 13)) birds sat on a wall."; done >book.txt
"$programs/kimik3-prepare" book.txt --out data --tokenizer train:300 --val-fraction 0.1 >/dev/null &&
    "$programs/kimik3-train" --data data --out run --steps 30 --batch 4 --seq 32 --lr 4e-3 --eval-every 0 >/dev/null || exit 1
head -c 1500 book.txt >text.txt

# texts
law "a text" ends 0 "bits per byte" --checkpoint run text.txt
law "every byte counts" grep -q 'over 1500 bytes' stdout
law "as JSON" ends 0 '"perplexity"' --checkpoint run text.txt --json
loss=$(number loss) tokens=$(number tokens)
law "which is JSON" python3 -c 'import json; json.load(open("stdout"))'
law "bits per byte are the loss in another unit" close "$(number bits_per_byte)" \
    "$(awk -v l="$loss" -v t="$tokens" 'BEGIN { print l * t / log(2) / 1500 }')"
law "batches change nothing" ends 0 "" --checkpoint run text.txt --json --batch 1
law "the same loss" close "$(number loss)" "$loss"
law "another stride counts the same tokens" ends 0 "" --checkpoint run text.txt --json --window 64 --stride 7
law "all of them" equal "$(number tokens)" "$tokens"
law "and gives another loss" test "$(number loss)" != "$loss"
printf 'a<|endoftext|>b' >special.txt
law "a special token in a text is text" ends 0 '"tokens": 15' --checkpoint run --tokenizer bytes special.txt --json
law "or the token where it is asked for, of no bytes" ends 0 '"bytes": 2' --checkpoint run --tokenizer bytes special.txt \
    --json --specials
law "several texts have a sum" ends 0 '"name": "all"' --checkpoint run text.txt text.txt --json
law "of twice the tokens" equal "$(sed -n '/"all"/,$p' stdout | sed -n 's/.*"tokens": \([0-9]*\).*/\1/p' | tail -1)" $((2 * tokens))
law "a shard" ends 0 "bits per byte" --checkpoint run data/val_*.bin
law "a folder stands for its validation" ends 0 "val_" --checkpoint run data
cp -r run/step-00000030 bare
rm bare/tokenizer.json
law "a shard needs no tokenizer" ends 0 "not known without a tokenizer" --checkpoint bare data
law "a text does" ends 1 "name one with --tokenizer" --checkpoint bare text.txt

# multiple choice: the right endings are sentences that the model has seen
for n in 11 24 37 50; do
    echo "{\"ctx\": \"Sentence $n of a book says that\", \"endings\": [\"zq xj!\", \"$((n * 7 % 13)) birds sat on a wall.\"], \"label\": 1}"
done >questions.jsonl
law "questions" ends 0 "accuracy_by_byte" --checkpoint run --choices questions.jsonl --json
law "all right, by token" equal "$(number accuracy_by_token)" 1.0
law "all counted" equal "$(number questions)" 4
sed 's/"label": 1/"label": "0"/' questions.jsonl >wrong.jsonl
law "a label may be text" ends 0 "" --checkpoint run --choices wrong.jsonl --json --batch 3
law "all wrong then" equal "$(number accuracy_by_token)" 0.0
printf '{"ctx": "%s", "endings": ["a", "b"], "label": 0}\n' "$(head -c 1000 book.txt | tr -d '\n')" >long.jsonl
law "a context too long loses its beginning, and it is said" ends 0 "1 contexts were too long" --checkpoint run --tokenizer bytes \
    --choices long.jsonl
refused() { # refused <sentence> <line>: as the second line
    { head -1 questions.jsonl; echo "$2"; } >bad.jsonl
    ends 1 "bad.jsonl:2: $1" --checkpoint run --choices bad.jsonl
}
law "an empty ending" refused "an ending has at least one token, number 1 is empty" '{"ctx": "a", "endings": ["b", ""], "label": 0}'
law "a label out of range" refused "the label is the number of an ending, 0 to 1, got 2" '{"ctx": "a", "endings": ["b", "c"], "label": 2}'
law "a negative label" refused "the label is the number of an ending, 0 to 1, got -1" '{"ctx": "a", "endings": ["b", "c"], "label": "-1"}'
law "no label" refused 'the object has no "label"' '{"ctx": "a", "endings": ["b", "c"]}'
law "a label that is none" refused "the label is a whole number" '{"ctx": "a", "endings": ["b", "c"], "label": ""}'
deep=$(printf '%.0s[' $(seq 100000))$(printf '%.0s]' $(seq 100000))
law "a label that nests deep" refused "the label is a whole number, here it is array" "{\"ctx\": \"a\", \"endings\": [\"b\", \"c\"], \"label\": $deep}"
law "one ending" refused '"endings" is a list of two' '{"ctx": "a", "endings": ["b"], "label": 0}'
law "no JSON" refused "not JSON" '{"ctx": '
printf '{"ctx": "a", "endings": ["b", "c"], "label": 0}\0{}\n' >zero.jsonl
law "a zero byte" ends 1 "zero.jsonl:1: the line has a zero byte" --checkpoint run --choices zero.jsonl
law "no object" refused "a line is a JSON object" '[]'
law "an ending too long" refused "an ending has at most 512 tokens" "{\"ctx\": \"a\", \"endings\": [\"$(seq 1 2000 | tr -d '\n')\", \"c\"], \"label\": 1}"

# wrong input: exit 1 and what to do
law "nothing to evaluate" ends 1 "give texts or --choices" --checkpoint run
law "no text" ends 1 "missing.txt" --checkpoint run missing.txt
: >empty
law "a text of nothing" ends 1 "there is no token to count" --checkpoint run empty
law "a window without a text" ends 2 "--window requires texts" --checkpoint run --choices questions.jsonl --window 9
law "no question" ends 1 "'empty' holds no question" --checkpoint run --choices empty
law "a window too long" ends 1 "a window has 1 to 512 tokens" --checkpoint run text.txt --window 513
law "a stride too long" ends 1 "follow one another after 1 to 16 tokens" --checkpoint run text.txt --window 16 --stride 17
law "a folder without shards" ends 1 "no shard val_*.bin" --checkpoint run run
law "an output that is full" bash -c '"$0" --checkpoint run text.txt >/dev/full 2>stderr; [ $? = 1 ]' "$program"

# wrong usage: exit 2
law "help" ends 0 "Every token counts once" --help
law "no arguments" ends 2 "--checkpoint is required"
law "an unknown option" ends 2 "--nonsense" --checkpoint run --nonsense

[ $failed = 0 ] && echo "all laws hold"
exit $failed
