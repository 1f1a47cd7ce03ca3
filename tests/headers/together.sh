#!/bin/bash
# headers/together.sh COMPILER FLAGS INCLUDE_FOLDER WARNINGS
# All headers in one file survive the macros that system headers and users define; two such files make one program; and
# their objects hold nothing that is not merged by the linker: no strong symbol, no private copy per file.
compiler=$1 flags=$2 include=$3 warnings=$4
command -v "$compiler" > /dev/null || { echo "skipped: no $compiler"; exit 77; }
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

cd "$include" || exit 1
headers=$(find kimik3 -name '*.hpp' | sort)
{
    echo '#define PCRE2_CODE_UNIT_WIDTH 8'
    grep -hoE '^ *# *include <[^>]*>' $headers | sort -u
    printf '#define %s @poison@\n' 'min(a, b)' 'max(a, b)' 'major(d)' 'minor(d)' I N B0 C D E S P PI _C _S unix linux \
        small near far interface ERROR OK TRUE FALSE IN OUT OPTIONAL DELETE CHECK LOG Status None Bool Success Always Complex
    printf '#include "%s"\n' $headers
} > "$scratch/one.cpp"
printf '#include "%s"\n' $headers > "$scratch/two.cpp"
echo 'int main() {}' >> "$scratch/two.cpp"

for file in one two; do
    "$compiler" "@$flags" "@$warnings" -c "$scratch/$file.cpp" -o "$scratch/$file.o" || exit 1
done
"$compiler" "$scratch/one.o" "$scratch/two.o" -o "$scratch/program" -lfmt -lpcre2-8 -pthread || exit 1
"$scratch/program" || exit 1

strong=$(nm -C --defined-only "$scratch/one.o" | grep -E ' [TDBRGSC] ')
copies=$(nm -C --defined-only "$scratch/one.o" | grep -E ' [tdbr] kimik3::')
[ -z "$strong$copies" ] || { echo "not inline:"; echo "$strong$copies"; exit 1; }
echo "$(wc -w <<< "$headers") headers in two files make one program with $compiler"
