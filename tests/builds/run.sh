#!/bin/bash
# builds/run.sh COMPILER FLAGS: the program of first.cpp and second.cpp checks itself and gives the same numbers, but for
# rounding, whatever the instruction set, the optimisation and Eigen's alignment are, and where Eigen may use OpenMP.
here=$(cd "$(dirname "$0")" && pwd)
compiler=$1 flags=$2
command -v "$compiler" > /dev/null || { echo "skipped: no $compiler"; exit 77; }
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

ways=("-O0 -mno-avx -DEIGEN_MAX_ALIGN_BYTES=0" "-O0 -mavx2 -mfma -DEIGEN_MAX_ALIGN_BYTES=16"
      "-O1 -march=native -DEIGEN_MAX_ALIGN_BYTES=64 -D_GLIBCXX_ASSERTIONS")
[[ $compiler != g++* ]] || ways[2]+=" -fopenmp -UEIGEN_DONT_PARALLELIZE"
for way in "${ways[@]}"; do
    if [[ $way == *-mavx2* ]] && ! grep -qw avx2 /proc/cpuinfo; then continue; fi
    for file in first second; do
        "$compiler" "@$flags" $way -c "$here/$file.cpp" -o "$scratch/$file.o" || exit 1
    done
    "$compiler" $way "$scratch/first.o" "$scratch/second.o" -o "$scratch/program" -lfmt -pthread || exit 1
    said=$("$scratch/program") || echo "$way: failed: $said"
    echo "$(tail -n 1 <<< "$said") $way"
done | tee "$scratch/numbers"
awk 'NR == 1 { loss = $1; sum = $2 }
     function apart(a, b) { return (a > b ? a - b : b - a) / b }
     NF < 3 || !(apart($1, loss) <= 1e-6) || !(apart($2, sum) <= 1e-4) || /:/ { print "differs: " $0; failures++ }
     END { exit failures > 0 || NR < 2 }' "$scratch/numbers"
