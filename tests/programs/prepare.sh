#!/bin/bash
# kimik3-prepare from end to end. $1: the program, or the folder it is in. Exit code 77: the program is not there.
set -u
program=${1:?the program or its folder}
[ -d "$program" ] && program=$program/kimik3-prepare
[ -x "$program" ] || exit 77
program=$(realpath "$program")
seeds=$(dirname "$(realpath "$0")")/../fuzz/seeds/gguf
source "$(dirname "$(realpath "$0")")/../support/program_laws.sh"
ids() { # the ids of a uint16 shard
    od -An -v -t u2 -w2 -j 1024 "$1" | tr -d ' ' | tr '\n' ' '
}
header() { # the first three numbers of a shard
    od -An -t d4 -N 12 "$1" | xargs
}
absent() { [ ! -e "$1" ]; }

# text: files, separators, the validation split
printf 'ab\n' >a.txt
printf 'cd' >b.txt
law "a file is a document, with an end token" ends 0 "documents        2 (0" a.txt b.txt -o o1 --tokenizer bytes --val-fraction 0
law "ids are bytes" equal "$(ids o1/train_000000.bin)" "97 98 10 256 99 100 256 "
law "the header is llm.c's" equal "$(header o1/train_000000.bin)" "20240520 1 7"
law "no validation shard was asked for" absent o1/val_000000.bin
law "the end token can be left out" ends 0 "tokens           5" a.txt b.txt -o o2 --tokenizer bytes --val-fraction 0 --no-end-token
law "no end tokens" equal "$(ids o2/train_000000.bin)" "97 98 10 99 100 "

printf '\n\none\nuno\n\n \t\ntwo\n' >blank.txt
law "blank lines end a document" ends 0 "documents        2 (1" blank.txt -o o3 --tokenizer bytes --document-separator blank-line
law "one document each" equal "$(cat <(ids o3/train_000000.bin) <(ids o3/val_000000.bin) | wc -w)" 12
printf 'x<|endoftext|>\ny\n<|endoftext|>' >literal.txt
law "any text ends a document" ends 0 "documents        2" literal.txt -o o4 --tokenizer bytes --document-separator '<|endoftext|>' --val-fraction 0
law "the separator is not text" equal "$(ids o4/train_000000.bin)" "120 256 121 256 "
law "a control token in a text stays text" ends 0 "tokens           30" literal.txt -o o5 --tokenizer bytes --val-fraction 0 --no-end-token

seq 1 1000 >lines.txt
law "a single document gives its tail" ends 0 "documents        1 (its tail for validation)" lines.txt -o o6 --tokenizer bytes --val-fraction 0.25
tail -c +1025 o6/train_000000.bin >both
tail -c +1025 o6/val_000000.bin >>both
law "nothing is lost at the cut" equal "$(od -An -v -t u2 -w2 both | awk '{ printf "%c", $1 }' | head -c 3893 | md5sum)" "$(md5sum <lines.txt)"
law "the tail is a quarter" equal "$(($(ids o6/val_000000.bin | wc -w) / 10))" 97

law "shards have the size asked for" ends 0 "shards           5 (4 train, 1" lines.txt -o o7 --tokenizer bytes --shard-tokens 900
law "full and last shards" equal "$(for s in o7/train_*.bin; do header "$s"; done | cut -d' ' -f3 | xargs)" "900 900 900 804"

# documents drawn for validation
for n in $(seq 1 20); do echo "{\"text\": \"document $n\", \"other\": [1]}"; done >d.jsonl
law "JSONL is known by its name" ends 0 "documents        20 (4" d.jsonl -o j1 --tokenizer bytes --val-fraction 0.2 --seed 5
law "the same seed draws the same" ends 0 "" d.jsonl -o j2 --tokenizer bytes --val-fraction 0.2 --seed 5
law "equal output" cmp -s j1/val_000000.bin j2/val_000000.bin
law "another seed draws others" ends 0 "" d.jsonl -o j3 --tokenizer bytes --val-fraction 0.2 --seed 6
law "different output" test "$(md5sum <j1/val_000000.bin)" != "$(md5sum <j3/val_000000.bin)"
law "standard input is as good as a file" "$program" - -o j4 --format jsonl --tokenizer bytes --val-fraction 0.2 --seed 5 <d.jsonl >/dev/null
law "equal output" diff -r j1 j4
law "so is a pipe" "$program" <(cat a.txt) <(cat b.txt) -o o8 --tokenizer bytes --val-fraction 0 >/dev/null
law "equal output" diff -r o1 o8
printf '{"body": "caf\\u00e9"}\n\n' >field.jsonl
law "the field has a name" ends 0 "bytes            5" field.jsonl -o j5 --field body --tokenizer bytes --val-fraction 0

# learned and loaded tokenizers
for n in $(seq 1 300); do echo "the quick brown fox jumps over the lazy dog number $n"; done >fox.txt
law "a vocabulary is learned" ends 0 "vocabulary       300" fox.txt -o t1 --tokenizer train:300
law "a tokenizer.json is written" test -s t1/tokenizer.json
law "it is read" ends 0 "vocabulary       300" fox.txt -o t2 --tokenizer t1/tokenizer.json
law "equal output" diff -r t1 t2
law "a folder is read" ends 0 "vocabulary       300" fox.txt -o t3 --tokenizer t1
law "the vocabulary of a GGUF file is read" ends 0 "vocabulary       260" fox.txt -o t5 --tokenizer "$seeds/vocabulary"
printf 'abcab' >few.txt
law "bytes without a token are counted" ends 0 "left out         1 bytes" few.txt -o t6 --tokenizer "$seeds/few_bytes" --val-fraction 0
law "the tokens are the file's" equal "$(ids t6/train_000000.bin)" "2 2 4 "
law "its end token is kept beside the tokenizer" grep -q '"eos_token": "<s>"' t6/tokenizer_config.json
law "and read back" ends 0 "tokens           3 (3" few.txt -o t7 --tokenizer t6 --val-fraction 0
law "so are bytes" ends 0 "vocabulary       257" fox.txt -o t4 --tokenizer o1/tokenizer.json
law "fewer tokens than bytes" test "$(stat -c %s t1/train_000000.bin)" -lt "$(stat -c %s t4/train_000000.bin)"
law "standard error is quiet in a file" test ! -s stderr
printf 'zz' >none.txt
law "a text without a token is no data" ends 1 "a token for none of the 2 bytes" none.txt -o e1 --tokenizer "$seeds/few_bytes" \
    --val-fraction 0 --no-end-token
law "nothing is left" absent e1

# wrong input: exit 1, file and place named, nothing left
printf '{"text": "good"}\n{"text": 7}\n{"tex": "x"}\n[1]\n{"text": "\xff"}\n{"text"' >bad.jsonl
law "a bad line ends the work" ends 1 'bad.jsonl:2: the field "text" is a string, here it is number' bad.jsonl -o e1
law "nothing is left" absent e1
law "bad lines can be skipped" ends 0 "bad lines        5 skipped" bad.jsonl -o e2 --skip-bad --tokenizer bytes --val-fraction 0
law "the good ones are there" equal "$(ids e2/train_000000.bin)" "103 111 111 100 256 "
tail -n +3 bad.jsonl >bad3.jsonl
law "a missing field" ends 1 'bad3.jsonl:1: the object has no field "text"' bad3.jsonl -o e1
tail -n +4 bad.jsonl >bad4.jsonl
law "no object" ends 1 'bad4.jsonl:1: a line is a JSON object, this is array' bad4.jsonl -o e1
tail -n +5 bad.jsonl >bad5.jsonl
law "no UTF-8" ends 1 'bad5.jsonl:1: not JSON, from byte 11' bad5.jsonl -o e1
printf '{"text": "a", "x": {"text": "c"}}\n{"text": "a", "\\u0074ext": "b"}\n' >twice.jsonl
law "a text given twice" ends 1 'twice.jsonl:2: the object has the field "text" 2 times' twice.jsonl -o e1
law "standard input that cannot be read" bash -c '"$0" - -o e1 --tokenizer bytes 2>stderr <.; [ $? = 1 ]' "$program"
law "is reported" grep -q -- "-: cannot read the input" stderr
law "a file that is no tokenizer" ends 1 "'a.txt' is no other form of a tokenizer and no rank file: line 1" a.txt -o e1 --tokenizer a.txt
printf '{"text": "a"}\0{"text": "b"}\n' >zero.jsonl
law "a zero byte" ends 1 'zero.jsonl:1: the line has a zero byte' zero.jsonl -o e1
law "no input file" ends 1 "missing.txt: cannot open the input: No such file" missing.txt -o e1
law "a folder is no input" ends 1 "this is a directory" o1 -o e1
law "no text" ends 1 "there is no text in the input" /dev/null -o e1
law "no tokenizer" ends 1 "missing.json" a.txt -o e1 --tokenizer missing.json
printf x >x.txt
law "too short to split" ends 1 "too short" x.txt -o e1 --tokenizer bytes --val-fraction 0.1
law "nothing is left" absent e1
law "--out is a file" ends 1 "--out is a folder" a.txt -o b.txt --tokenizer bytes
law "the file is still there" equal "$(cat b.txt)" cd

law "earlier output is not replaced unasked" ends 1 "--overwrite" b.txt -o o7 --tokenizer bytes --val-fraction 0
law "it is as it was" equal "$(ls -A o7 | xargs)" "tokenizer.json train_000000.bin train_000001.bin train_000002.bin train_000003.bin val_000000.bin"
touch o7/notes
chmod 600 o7/train_000000.bin
law "a failure replaces nothing" ends 1 "bad.jsonl:2" bad.jsonl -o o7 --overwrite --tokenizer bytes
law "it is as it was" equal "$(ls -A o7 | wc -l)" 7
law "asked, it is" ends 0 "shards           1" b.txt -o o7 --overwrite --tokenizer bytes --val-fraction 0
law "with its permissions" equal "$(stat -c %a o7/train_000000.bin)" 600
law "no shard of before, and other files stay" equal "$(ls -A o7 | xargs)" "notes tokenizer.json train_000000.bin"

law "a disk that is full is reported" bash -c 'ulimit -f 1; "$0" lines.txt -o e1 --tokenizer bytes >/dev/null 2>full; [ $? = 1 ]' "$program"
law "with the file" grep -q "train_000000.bin: cannot write the file: File too large" full
law "nothing is left" absent e1
law "nor of folders around it" ends 1 "there is no text in the input" /dev/null -o n1/n2/n3
law "nothing is left" absent n1
ln -s nowhere lost
law "--out leads to nothing" ends 1 "lost" a.txt -o lost --tokenizer bytes
law "the link is still there" test -L lost

yes "a line without an end in sight" | head -c 30000000 >long.txt
begun() { # begun <folder>: starts a long run into it, whose number is then $!
    "$program" long.txt -o "$1" --tokenizer train:4096 2>/dev/null &
    for _ in $(seq 100); do compgen -G "$1/.prepare-*" >/dev/null && break; sleep 0.05; done
}
begun e3
law "one run at a time" ends 1 "e3: another kimik3-prepare is at work in it" a.txt -o e3 --tokenizer bytes --overwrite
kill -TERM $!
wait $!
law "an interruption has its own exit code" equal $? 130
law "nothing is left" absent e3
begun e4
kill -KILL $!
wait $! 2>/dev/null
law "a killed run leaves its folder" test -n "$(compgen -G "e4/.prepare-*")"
law "it is in nobody's way" ends 0 "shards" a.txt -o e4 --tokenizer bytes --val-fraction 0
law "and goes" equal "$(ls -A e4 | xargs)" "tokenizer.json train_000000.bin"

# wrong usage: exit 2
law "help" ends 0 "--document-separator" --help
law "no arguments" ends 2 "input" -o e1
law "no folder" ends 2 "--out" a.txt
law "unknown option" ends 2 "--nonsense" a.txt -o e1 --nonsense
law "fraction" ends 2 "--val-fraction" a.txt -o e1 --val-fraction 1.5
law "fraction" ends 2 "a number from 0 to 0.99 is wanted, got 'nan'" a.txt b.txt -o e1 --val-fraction nan
law "vocabulary" ends 2 "at least 257" a.txt -o e1 --tokenizer train:100
law "vocabulary" ends 2 "at least 257" a.txt -o e1 --tokenizer train:many
law "format" ends 2 "--format" a.txt -o e1 --format xml
law "separator" ends 2 "--document-separator" a.txt -o e1 --document-separator ''
law "shard size" ends 2 "--shard-tokens" a.txt -o e1 --shard-tokens 0
law "a field of a text" ends 2 "--field: without effect here: no input is JSONL" a.txt - -o e1 --field body
law "bad lines of a text" ends 2 "--skip-bad: without effect here" d.jsonl -o e1 --skip-bad --format text
law "a separator of JSONL" ends 2 "--document-separator: without effect here" d.jsonl -o e1 --document-separator blank-line
law "nothing is left" absent e1
law "each for one of two inputs" ends 0 "documents        22" d.jsonl blank.txt -o o9 --tokenizer bytes --field text \
    --document-separator blank-line

[ $failed = 0 ] && echo "all laws hold"
exit $failed
