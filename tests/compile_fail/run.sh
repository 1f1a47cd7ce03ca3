#!/bin/bash
# compile_fail/run.sh COMPILER FLAGS SENTENCES
# Every row of the invariant table (the output of the program SENTENCES), broken in a template argument, stops the
# compiler (called with @FLAGS) with the sentence of that row as its first and only complaint of the library; so do
# compiler modes that the library refuses.
here=$(dirname "$0")
compiler=$1 flags=$2 sentences=$3 failures=0
command -v "$compiler" > /dev/null || { echo "skipped: no $compiler"; exit 77; }

compile() { "$compiler" "@$flags" -fsyntax-only "$@" 2>&1; }
complain() { echo "$1"; failures=$((failures + 1)); }

refuses() {  # refuses SENTENCE ARGUMENTS...
    local sentence=$1 output
    shift
    output=$(compile "$@") && { complain "compiles, against: $sentence"; return; }
    grep -m1 'error:' <<< "$output" | grep -qF "kimik3: $sentence" || complain "does not say first: $sentence
$output"
    [ "$(grep -c 'error:.*kimik3: ' <<< "$output")" = 1 ] || complain "says more than: $sentence
$output"
}

row=0
while IFS= read -r sentence; do
    refuses "$sentence" -DROW=$row "$here/broken_config.cpp"
    row=$((row + 1))
done < <("$sentences")
[ $row -gt 0 ] || complain "the invariant table is empty"
compile -DROW=$row "$here/broken_config.cpp" || complain "the unbroken config does not compile"

refuses "build without -ffast-math" -ffast-math -DROW=$row "$here/broken_config.cpp"
refuses "build without -ffast-math" -ffinite-math-only -DROW=$row "$here/broken_config.cpp"
refuses "build as C++20" -std=c++17 -DROW=$row "$here/broken_config.cpp"
refuses "build with exceptions" -fno-exceptions -DROW=$row "$here/broken_config.cpp"

echo "$row rules, $failures failures"
[ $failures = 0 ]
