#!/bin/bash
# examples/quickstart.sh on a small text with few steps. $1: the folder of the built programs, which it uses instead of
# building. Exit code 77: they are not there.
programs=$(realpath "${1:?the folder of the programs}") || exit 77
[ -x "$programs/kimik3-train" ] || exit 77
quickstart=$(realpath "$(dirname "$0")/../../examples/quickstart.sh")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1

for n in $(seq 1 900); do echo "Sentence $n of a book says that $((n * 7 % 13)) birds sat on a wall."; done > 'my book.txt'
KIMIK3_QUICKSTART_DIR=made KIMIK3_QUICKSTART_STEPS=3 KIMIK3_QUICKSTART_PROGRAMS=$programs \
    "$quickstart" 'my book.txt' > said 2>&1 || { cat said; exit 1; }
cat said
tail -n 1 said | grep -qE '^loss [0-9.]+ -> [0-9.]+, [0-9]+ tokens/s$' || { echo "broken: the last line is the summary"; exit 1; }
grep -q '^The ' said || { echo "broken: text is generated from the prompt"; exit 1; }
said=$(KIMIK3_QUICKSTART_PROGRAMS=$programs "$quickstart" 'my book.txt' 'no book.txt' 2>&1)
[[ $? = 1 && $said == "quickstart: '"*"no book.txt' cannot be read" ]] ||
    { echo "broken: a text that is not there ends it first of all: $said"; exit 1; }
[ -s made/run/step-00000003/model.safetensors ] || { echo "broken: the model is saved"; exit 1; }
