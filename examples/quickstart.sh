#!/bin/bash
# examples/quickstart.sh [TEXT FILE ...]: from a text to a trained Kimi K3 to generated text, in a few minutes on two cores.
# On Debian 12 what is missing is installed when run as root, and named otherwise. Without files the text is the King James
# Bible of the package bible-kjv. Everything is made in build/quickstart (KIMIK3_QUICKSTART_DIR).
set -e -o pipefail
cd "$(dirname "$0")/.."
here=$(pwd)
work=${KIMIK3_QUICKSTART_DIR:-$here/build/quickstart}
steps=${KIMIK3_QUICKSTART_STEPS:-300}
# Paths that the caller gave are relative to where they called from.
files=()
for file in "$@"; do files+=("$(cd "$OLDPWD" && realpath "$file")"); done

needed=(g++ cmake ninja-build libeigen3-dev libfmt-dev nlohmann-json3-dev libpcre2-dev libcli11-dev)
[ ${#files[@]} -gt 0 ] || needed+=(bible-kjv)
missing=()
for package in "${needed[@]}"; do
    dpkg-query -W -f '${Status}' "$package" 2> /dev/null | grep -q 'ok installed' || missing+=("$package")
done
if [ ${#missing[@]} -gt 0 ]; then
    if [ "$(id -u)" != 0 ]; then
        echo "quickstart: install these packages first: apt-get install ${missing[*]}" >&2
        exit 1
    fi
    echo "== installing ${missing[*]}"
    apt-get update > /dev/null
    DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${missing[@]}" > /dev/null
fi

echo "== building (build/quickstart-programs)"
cmake --preset release -B build/quickstart-programs -DKIMIK3_BUILD_TESTS=OFF -DKIMIK3_BUILD_BENCHMARKS=OFF \
    -DKIMIK3_PROGRAM_PRESETS=tiny > /dev/null
cmake --build build/quickstart-programs -j "$(nproc)"
programs=build/quickstart-programs/examples

mkdir -p "$work"
prompt="The "
if [ ${#files[@]} -eq 0 ]; then
    echo "== text: the King James Bible (Debian package bible-kjv)"
    bible -l80 'gen1:1-rev22:21' > "$work/bible.txt"
    files=("$work/bible.txt")
    prompt="And the LORD said unto "
fi
echo "== preparing tokens"
"$programs/kimik3-prepare" --out "$work/data" --tokenizer train:1024 --overwrite "${files[@]}"

echo "== training"
rm -rf "$work/run"
"$programs/kimik3-train" --preset tiny --data "$work/data" --out "$work/run" --steps "$steps" --batch 16 --seq 256 \
    --eval-every 100 --save-every 0 | tee "$work/train.log"

echo "== generating from $work/run"
"$programs/kimik3-generate" --checkpoint "$work/run" --prompt "$prompt" --max-tokens 200 --temperature 0.8 --top-p 0.95 --seed 1
echo
tail -n 1 "$work/train.log"
