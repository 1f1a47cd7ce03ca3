#!/bin/bash
# headers/alone.sh COMPILER FLAGS INCLUDE_FOLDER WARNINGS
# Every header compiles by itself, included first, without a warning.
compiler=$1 flags=$2 include=$3 warnings=$4
command -v "$compiler" > /dev/null || { echo "skipped: no $compiler"; exit 77; }
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

cd "$include" || exit 1
for header in $(find kimik3 -name '*.hpp' | sort); do
    source=$scratch/${header//\//.}.cpp
    printf '#include "%s"\n' "$header" > "$source"
    printf '%s\0' "$source"
done | xargs -0 -n 1 -P "$(nproc)" "$compiler" "@$flags" "@$warnings" -fsyntax-only || exit 1
echo "$(ls "$scratch" | wc -l) headers compile alone with $compiler"
