#!/bin/bash
# docs/reference.sh SOURCE_FOLDER BUILD_FOLDER DOXYGEN
# The target docs' reference is made without a warning, every header is in it, and so is every numbered equation of the
# pages. Exit code 77: there is no Doxygen.
source=$(realpath "$1") build=$(realpath "$2") doxygen=$3 failures=0
command -v "$doxygen" > /dev/null || { echo "skipped: no Doxygen"; exit 77; }
complain() { echo "$1"; failures=$((failures + 1)); }

mkdir -p "$build/docs" && cd "$build/docs" || exit 1
"$doxygen" "$build/Doxyfile" || complain "Doxygen complains"
cd html || exit 1
for page in "$source"/docs/mechanisms/*.md; do
    numbers() { grep -oE '\\tag\{[A-Z]+-[0-9]+\}' "$1" | sort; }
    diff <(numbers "$page") <(numbers "md_docs_mechanisms_$(basename "$page" .md).html") ||
        complain "equations of $page are not in the reference"
done
for header in $(cd "$source/include" && find kimik3 -name '*.hpp' -o -name '*.cuh'); do
    name=$(basename "$header")
    compgen -G "*$(sed 's/_/__/g; s/\./_8/' <<< "$name").html" > /dev/null || complain "no page of $header"
done
echo "$(find . -name '*.html' | wc -l) pages, $failures failures"
[ $failures = 0 ]
