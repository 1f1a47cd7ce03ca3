#!/bin/sh
# Seconds of processor time that compiling takes: the umbrella header alone, then hello.cpp with each preset.
# Usage: run.sh [compiler [flags...]]; default: g++ -O2. Take the least of three.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
compiler=${1:-g++}
[ $# -gt 0 ] && shift
[ $# -gt 0 ] || set -- -O2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
echo '#include "kimik3/kimik3.hpp"' > "$work/umbrella.cpp"

compile() {  # name, then arguments of the compiler
    name=$1
    shift
    best=
    for repeat in 1 2 3; do
        spent=$( { TIMEFORMAT='%U %S'; export TIMEFORMAT; bash -c 'time "$@"' time "$compiler" -std=c++20 "$@" -I"$here/../../include" \
            -isystem /usr/include/eigen3 -DEIGEN_DONT_PARALLELIZE -c -o "$work/out.o"; } 2>&1 | awk '{ print $1 + $2 }')
        best=$(printf '%s\n%s\n' "${best:-$spent}" "$spent" | sort -g | head -n 1)
    done
    printf '%-24s %6.2f s\n' "$name" "$best"
}

compile 'umbrella header' "$@" "$work/umbrella.cpp"
for preset in tiny golden small k3_300m; do
    compile "hello, preset $preset" "$@" -DKIMIK3_PRESET="$preset" "$here/hello.cpp"
done
