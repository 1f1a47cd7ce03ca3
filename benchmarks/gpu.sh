#!/bin/bash
# benchmarks/gpu.sh [--out FOLDER] [--peer FOLDER] [--prebuilt FOLDER]
# Builds the CUDA benchmarks, measures this GPU's two ceilings, every operation against its floor, the train step,
# prefill and decode of k3_300m, and beside them PyTorch: its own operations, and with --peer the train step of
# FOLDER/peer_bench.py (python3 with torch and flash-linear-attention). Writes results.txt, the tables as they came, and
# results.json, a list of {"name", "ms", "floor_ms"}, to --out (build/gpu_benchmarks). Under ten minutes on one H200.
#   --prebuilt FOLDER   programs that were built before with: benchmarks/gpu.sh --build FOLDER
# Building needs nvcc and the headers of Eigen and fmt. KIMIK3_CUDA_ARCH: the architecture (90a). Exit code 77: no GPU.
cd "$(dirname "$0")/.." || exit 1
out=build/gpu_benchmarks peer= programs= tuner=benchmarks/cuda/parallel_autotune.py

build() { # build FOLDER
    local arch=${KIMIK3_CUDA_ARCH:-90a}
    local flags=(-std=c++20 -O3 "-gencode=arch=compute_$arch,code=sm_$arch" --extended-lambda --expt-relaxed-constexpr
                 -diag-suppress 128,554,20011,20014 -DFMT_USE_CONSTEXPR=1 -DFMT_HEADER_ONLY -DEIGEN_NO_CUDA -DEIGEN_DONT_VECTORIZE
                 -DEIGEN_DONT_PARALLELIZE -Iinclude -Ibenchmarks -isystem "${EIGEN_INCLUDE:-/usr/include/eigen3}")
    mkdir -p "$1"
    ls benchmarks/cuda/*.cu | xargs -P "${KIMIK3_JOBS:-$(nproc)}" -I{} sh -c \
        'name=$(basename "$1" .cu); folder=$2; shift 2; echo "nvcc $name"; exec nvcc "$@" "benchmarks/cuda/$name.cu" -lcublas -lcublasLt -o "$folder/$name"' \
        build {} "$1" "${flags[@]}"
}

while [ $# -gt 0 ]; do
    case $1 in
        --out) out=$2 ;;
        --peer) peer=$(realpath "$2") || exit 1 ;;
        --prebuilt) programs=$2 ;;
        --build) build "$2"; exit ;;
        *) sed -n '2,8s/^# //p' "$0"; [ "$1" = --help ]; exit ;;
    esac
    shift 2
done
mkdir -p "$out"
nvidia-smi > /dev/null 2>&1 || { echo "benchmarks/gpu.sh: no GPU here" >&2; exit 77; }
if [ -z "$programs" ]; then
    programs=$out/programs
    build "$programs" || exit 1
fi
export LD_LIBRARY_PATH=/usr/local/cuda/lib64:$programs/lib:$LD_LIBRARY_PATH

begin() { # begin NAME
    echo
    echo "== $1 (after $SECONDS s)"
}
run() { # run NAME COMMAND...: its table, and its lines for results.json
    local name=$1
    shift
    begin "$name"
    "$@" --json "$out/$name.jsonl" || failed="$failed $name"
}
torch() { # torch SECONDS PROGRAM ARGUMENTS...
    timeout "$1" python3 "$tuner" "${@:2}"
}
measure() {
    failed=
    echo "$(date -u '+%d %B %Y'), $(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader), $(nvcc --version | grep -o 'release [0-9.]*')"
    for name in train decode kda attention experts rows products optimizer; do
        [ -x "$programs/$name" ] && run "$name" "$programs/$name"
    done
    run train_muon "$programs/train" --muon
    run peer_ops torch 150 benchmarks/cuda/peer_ops.py
    if [ -n "$peer" ]; then
        begin 'peer, train step'
        torch 200 "$peer/peer_bench.py" --compile 2> "$out/peer_log.txt" || failed="$failed compiled_peer"
        torch 100 "$peer/peer_bench.py" 2>> "$out/peer_log.txt" || failed="$failed peer"
    fi
    echo
    echo "all in $SECONDS s"
    [ -z "$failed" ] || echo "failed:$failed"
    [ -z "$failed" ]
}
rm -f "$out"/*.jsonl
measure 2>&1 | tee "$out/results.txt"
status=${PIPESTATUS[0]}
{ echo '['; cat "$out"/*.jsonl | paste -sd, | sed 's/},{/},\n{/g'; echo ']'; } > "$out/results.json"
exit "$status"
