#!/bin/bash
# docs/guide.sh PROGRAMS
# The commands of docs/guide.md and README.md, word for word (docs/snippets.sh compares), with the built programs of the
# folder PROGRAMS on small sizes: the functions below put these in. Exit code 77: the programs are not there.
programs=$(realpath "${1:?the folder of the programs}") || exit 77
[ -x "$programs/kimik3-train" ] || exit 77
source=$(realpath "$(dirname "$0")/../..")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
set -e

steps=0
kimik3-prepare() { "$programs/kimik3-prepare" "${@/#train:*/train:300}" --overwrite; }
kimik3-train() {  # three steps more at each call, of a few tokens, with a model that every build of the tests has
    local arguments=()
    steps=$((steps + 3))
    while [ $# -gt 0 ]; do
        case $1 in
            --preset) arguments+=(--preset tiny); shift ;;
            --steps | --batch | --seq | --lr) shift ;;
            *) arguments+=("$1") ;;
        esac
        shift
    done
    "$programs/kimik3-train" "${arguments[@]}" --steps $steps --batch 2 --seq 16
}
kimik3-convert() { "$programs/kimik3-convert" "$@"; }
kimik3-generate() { "$programs/kimik3-generate" "$@" --max-tokens 4; }
kimik3-inspect() { "$programs/kimik3-inspect" "$@"; }
kimik3-eval() { "$programs/kimik3-eval" "$@"; }
cmake() {  # only whether the presets are there: the tests have been built already
    case $1 in
        --preset) command cmake --list-presets ;;
        --build) [ "$2" = --preset ] && command cmake --build --list-presets ;;
    esac | grep -qF "\"${*: -1}\""
}

cd "$source"
cmake --preset release && cmake --build --preset release
[ $? = 0 ]

cd "$work"
for n in $(seq 1 400); do echo "Once upon a time, on day $n, $((n * 7 % 13)) birds sat on a wall."; done > book.txt
for n in $(seq 1 90); do echo "{\"text\": \"Article $n is about $((n * 11 % 17)) birds.\"}"; done > articles.jsonl

kimik3-prepare book.txt --out data --tokenizer train:1024
kimik3-train --preset tiny --data data --out run --steps 2000
kimik3-generate --checkpoint run --prompt "Once"
kimik3-train --preset tiny --data data --out run --steps 2000 --resume
kimik3-generate --checkpoint run/best --prompt "Once" --temperature 0
head -n 3 run/metrics.csv
kimik3-convert run --out model.gguf --type q8_0
[ "$(wc -l < run/metrics.csv)" = 7 ]
[ -s model.gguf ]

kimik3-inspect --checkpoint run --text book.txt --out book.html
kimik3-inspect --checkpoint run --prompt "And the LORD said unto Moses"
[ -s book.html ]
echo '{"ctx": "On day 3", "endings": ["birds sat", "on a wall"], "label": 0}' > hellaswag.jsonl
kimik3-eval --checkpoint run book.txt
kimik3-eval --checkpoint run data
kimik3-eval --checkpoint run --choices hellaswag.jsonl --json

kimik3-prepare articles.jsonl --out articles --format jsonl --field text --tokenizer data/tokenizer.json
rm -r data run && steps=0
kimik3-prepare book.txt --out data --tokenizer train:4096
kimik3-train --preset small --data data --out run

# The quickstart, beside the sources' scripts; without files it needs the text of a package.
export KIMIK3_QUICKSTART_DIR=$work/quickstart KIMIK3_QUICKSTART_STEPS=2 KIMIK3_QUICKSTART_PROGRAMS=$programs
ln -s "$source/examples" examples
mv book.txt my.txt
examples/quickstart.sh my.txt
if command -v bible > /dev/null; then
    examples/quickstart.sh
else
    echo "not run: the quickstart without files, since bible-kjv is not installed"
fi
