#!/bin/bash
# headers/alone.sh COMPILER FLAGS INCLUDE_FOLDER WARNINGS
# Every header compiles by itself, without a warning: the compiler has read no more than the header includes when it comes
# to its text. As includes stand first (order.sh) and #pragma once skips what has been read, this is also so in one file
# of headers each of which includes, directly or not, the one before it; and where what is precompiled is included by all.
compiler=$1 flags=$2 include=$3 warnings=$4
command -v "$compiler" > /dev/null || { echo "skipped: no $compiler"; exit 77; }
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
precompiled="kimik3/core/error.hpp kimik3/ops/cpu/lanes.hpp"

cd "$include" || exit 1
for header in $precompiled; do
    echo "#include \"$header\"" > "$scratch/$(basename "$header")"
    printf '%s\0' "$scratch/$(basename "$header")"
done | xargs -0 -P "$(nproc)" -I {} "$compiler" "@$flags" "@$warnings" -x c++-header {} -o {}.gch || exit 1

# A line for each file: what it takes precompiled, and its headers.
find kimik3 -name '*.hpp' | sort | xargs awk -v precompiled="$precompiled" '
    function reach(from, file,   list, position) {
        if ((from, file) in reached) return
        reached[from, file]
        size[from]++
        for (position = split(includes[file], list, " "); position > 0; position--) reach(from, list[position])
    }
    # The header left that reaches most, of those which `from` reaches and which reach `base`.
    function largest(from, base,   file, found) {
        for (file in left)
            if (((from, file) in reached || from == "") && ((file, base) in reached || base == "") && size[file] > size[found]) found = file
        return found
    }
    FNR == 1 { left[FILENAME] }
    /^ *# *include "/ { gsub("\"", "", $2); includes[FILENAME] = includes[FILENAME] " " $2 }
    END {
        for (file in left) reach(file, file)
        count = split(precompiled, bases, " ")
        while ((file = largest("", "")) != "") {
            base = ""
            for (n = 1; n <= count; n++)
                if ((file, bases[n]) in reached) base = bases[n]
            for (chain = ""; file != ""; file = largest(file, base)) { chain = file " " chain; delete left[file] }
            print (base == "" ? "/dev/null" : base), chain
        }
    }' > "$scratch/files"
while read -r base headers; do
    file=$((file + 1))
    printf '#include "%s"\n' $headers > "$scratch/$file.cpp"
    [ "$base" = /dev/null ] || base=$scratch/$(basename "$base")
    printf '%s\0' "$base" "$scratch/$file.cpp"
done < "$scratch/files" | xargs -0 -n 2 -P "$(nproc)" "$compiler" "@$flags" "@$warnings" -fsyntax-only -include || exit 1
echo "$(cut -d' ' -f2- "$scratch/files" | wc -w) headers compile alone with $compiler, in $(wc -l < "$scratch/files") files"
