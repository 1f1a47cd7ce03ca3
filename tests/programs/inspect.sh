#!/bin/bash
# kimik3-inspect from end to end. $1: the folder of the built programs. Exit code 77: they are not there.
set -u
programs=$(realpath "${1:?the folder of the programs}") || exit 77
[ -x "$programs/kimik3-inspect" ] && [ -x "$programs/kimik3-train" ] || exit 77
program=$programs/kimik3-inspect
source "$(dirname "$(realpath "$0")")/../support/program_laws.sh"
part() { # part <page> <from> <to>: the data between two keys
    grep -o "\"$2\":.*\"$3\":" "$1"
}

for n in $(seq 1 400); do echo "Sentence $n of a book says that $((n * 7 % 13)) birds sat on a wall."; done >book.txt
"$programs/kimik3-prepare" book.txt --out data --tokenizer train:300 >/dev/null &&
    "$programs/kimik3-train" --data data --out run --steps 2 --batch 2 --seq 32 --eval-every 0 --threads 1 >/dev/null || exit 1

# a text
law "a text is looked at" ends 0 "page" --checkpoint run --text book.txt --seq 32 --max-tokens 500 --threads 1
law "as much of it as is asked for" grep -q '"text":"the first 500 tokens of book.txt"' inspect.html
law "with its loss" grep -q '"perplexity"' inspect.html
law "its curves are not there" grep -q '"curves":null' inspect.html
law "its loads are" grep -qE '"experts":\[\{"layer":1,"load":\[[0-9.]+,' inspect.html
cp inspect.html first.html
law "batches and threads change nothing" ends 0 "" --checkpoint run --text book.txt --seq 32 --max-tokens 500 --threads 2 --batch 3
law "in any part" equal "$(part inspect.html experts load_history)" "$(part first.html experts load_history)"
law "of which there are three" grep -qE '"load":\[[^]]+\].*"weight":\[[^]]+\].*"heads":\[\[[^]]+\]' \
    <(part inspect.html experts load_history)
printf 'eleven char' >short.txt
law "so does the largest batch" ends 0 "" --checkpoint run --text book.txt --seq 32 --max-tokens 500 --batch 9223372036854775807
law "in any part" equal "$(part inspect.html experts load_history)" "$(part first.html experts load_history)"
law "a text shorter than a sequence" ends 0 "the 11 tokens of short.txt" --checkpoint run --tokenizer bytes --text short.txt --out s.html

law "another length of sequences is another look" ends 0 "" --checkpoint run --text book.txt --seq 16 --max-tokens 500
law "with other loads" test "$(part inspect.html experts depth)" != "$(part first.html experts depth)"

# a prompt
law "a prompt is followed token by token" ends 0 "layer:experts" --checkpoint run --tokenizer bytes --prompt "a <b>
$(printf '\xff')" --out p.html
law "every token has a line with the experts of every layer" equal \
    "$(grep -cE '^ +[0-9]+ [^ ]+ +1:[0-9]+,[0-9]+ 2:[0-9]+,[0-9]+ 3:[0-9]+,[0-9]+ 4:[0-9]+,[0-9]+  [es12]{10}$' stdout)" 7
law "what cannot be seen is written out" equal "$(awk '$2 == "\\n" || $2 == "\\xff" || $2 == "␣" { print $2 }' stdout)" \
    '␣
\n
\xff'
law "the page has the tokens" grep -qF '"tokens":["a","␣","\u003c","b",">","\\n","\\xff"]' p.html
law "and what the prompt did" grep -q '"text":"the prompt"' p.html
law "a special token in a prompt is text" ends 0 "   12 >" --checkpoint run --tokenizer bytes --prompt "<|endoftext|>"
law "or the token where it is asked for" ends 0 "    0 <|endoftext|>" --checkpoint run --tokenizer bytes --specials \
    --prompt "<|endoftext|>"
law "alone" equal "$(grep -c '1:' stdout)" 1
printf 'Sentence 2' >prompt.txt
law "a prompt from a file, beside a text" ends 0 "layer:experts" --checkpoint run --prompt-file prompt.txt --text book.txt \
    --max-tokens 64 --out both.html
law "the loads are those of the text" grep -q '"text":"the first 64 tokens of book.txt"' both.html
law "an empty prompt is the token that begins texts" ends 0 "    0 <|endoftext|>" --checkpoint run --prompt ""

# wrong input: exit 1 and what to do
law "nothing to look at" ends 1 "give --text or --prompt" --checkpoint run
law "no checkpoint" ends 1 "'data' is neither a checkpoint" --checkpoint data --prompt a
law "no text" ends 1 "missing.txt" --checkpoint run --text missing.txt
: >nothing.txt
law "a text of no tokens" ends 1 "'nothing.txt' has no tokens" --checkpoint run --text nothing.txt
law "a prompt too long" ends 1 "a prompt has at most 512 tokens" --checkpoint run --tokenizer bytes --prompt "$(head -c 600 book.txt)"
law "a sequence too long" ends 1 "at most 512 tokens, got 513" --checkpoint run --text book.txt --seq 513
full() { "$program" --checkpoint run --prompt a >/dev/full 2>stderr; [ $? = 1 ]; }
law "an output that is full" full
law "is reported" grep -q "standard output cannot be written" stderr
law "a page that cannot be written" ends 1 "none/p.html" --checkpoint run --prompt a --out none/p.html

# wrong usage: exit 2
law "help" ends 0 "--prompt-file" --help
law "no arguments" ends 2 "--checkpoint is required"
law "an unknown option" ends 2 "--nonsense" --checkpoint run --nonsense
law "a length without a text" ends 2 "--seq requires --text" --checkpoint run --prompt a --seq 9
law "two prompts" ends 2 "--prompt" --checkpoint run --prompt a --prompt-file prompt.txt

[ $failed = 0 ] && echo "all laws hold"
exit $failed
