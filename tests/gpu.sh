#!/bin/bash
# tests/gpu.sh [ARGUMENTS OF THE SUITE]       builds the CUDA conformance suite with nvcc and runs it, where there is a GPU
# tests/gpu.sh --sanitize TOOLS [TEXT]        every test whose name holds TEXT under compute-sanitizer's memcheck, racecheck
#                                             or initcheck, in a process of its own, for KIMIK3_LIMIT seconds (600) at most
# tests/gpu.sh --collect BUILD FOLDER         puts the programs of a CMake build, and the libraries they need, into FOLDER
# tests/gpu.sh --prebuilt FOLDER              runs what lies there, all parts at once, in at most 95 seconds
# Building needs Eigen, fmt, Boost.Test (headers) and nlohmann_json. Exits with 77 where there is no GPU. KIMIK3_CUDA_ARCH
# (90a) is what the kernels are compiled for; with KIMIK3_CUDA_CODE=sm_90, another GPU's code is made of that.
cd "$(dirname "$0")/.." || exit 1

collect() { # collect BUILD FOLDER
    mkdir -p "$2/lib"
    cp "$1"/tests/test_conformance "$1"/tests/wrong_architecture "$1"/examples/kimik3-{prepare,train,generate} "$2" || return 1
    ldd "$2"/test_conformance "$2"/kimik3-train | grep -oE '/[^ ]*/lib(fmt|pcre2)[^ ]*' | sort -u | xargs -I{} cp -L {} "$2/lib"
    strip "$2"/test_conformance "$2"/wrong_architecture "$2"/kimik3-* "$2"/lib/*
}

prebuilt() { # prebuilt FOLDER
    local folder logs part code parts=() status=77  # 77 when every part says so
    folder=$(realpath "$1") && logs=$(mktemp -d) || return 1
    export LD_LIBRARY_PATH=$folder/lib:/usr/local/cuda/lib64:$LD_LIBRARY_PATH
    start() { # start NAME COMMAND...
        local name=$1
        shift
        parts+=("$name")
        { time timeout 95 "$@"; echo "exit code $?" >"$logs/$name.code"; } >"$logs/$name" 2>&1 &
    }
    for part in attention decoding errors experts golden half kda large linear optimizer products rows runs steps; do
        start "$part" "$folder/test_conformance" --run_test=conformance_$part --log_level=message
    done
    start without_gpu "$folder/test_conformance" --run_test=without_gpu
    start architecture "$folder/wrong_architecture"
    start programs tests/programs/device.sh "$folder"
    wait
    for part in "${parts[@]}"; do
        echo "== $part: $(cat "$logs/$part.code"), $(grep real "$logs/$part" | xargs)"
        grep -vE '^(real|user|sys)\s|^$' "$logs/$part" | tail -n 25 | cut -c1-300
        code=$(sed 's/.* //' "$logs/$part.code")
        [ "$code" = 77 ] || [ "$status" = 1 ] || status=0
        [ "$code" = 0 ] || [ "$code" = 77 ] || status=1
    done
    return $status
}

sanitize() { # sanitize PROGRAM TOOLS [TEXT]
    local gpus logs
    gpus=$(nvidia-smi -L | wc -l) && logs=$(mktemp -d) || return 1
    check() { # check PROGRAM LOGS GPU TOOL TEST
        local start=$SECONDS log=$2/$4-${5/\//-} what options=
        [ "$4" = memcheck ] && options="--report-api-errors no"  # tests call for errors, and all calls are checked
        KIMIK3_WATCHED=1 CUDA_VISIBLE_DEVICES=$3 timeout "${KIMIK3_LIMIT:-600}" compute-sanitizer --tool "$4" $options --error-exitcode 9 "$1" --run_test="$5" >"$log" 2>&1
        case $? in 0) what=clean ;; 9) what=ERRORS ;; 124) what="not ended" ;; *) what=FAILED ;; esac
        printf '%-10s %-9s %s, %d s\n' "$4" "$what" "$5" $((SECONDS - start)) | tee "$log.result"
        [ "$what" = clean ] || grep -E '^=+ |error:' "$log" | head -n 12 | cut -c1-200
    }
    export -f check
    for tool in $2; do
        "$1" --list_content 2>&1 | sed 's/[*:].*//' | awk -v tool="$tool" '/^[^ ]/ { suite = $1; next } { print tool, suite "/" $1 }'
    done | grep -F -- "${3:-}" | awk -v gpus="$gpus" '{ print NR % gpus, $0 }' |
        xargs -P "${KIMIK3_JOBS:-$(nproc)}" -L 1 bash -c 'check "$@"' check "$1" "$logs"
    echo "$(cat "$logs"/*.result | grep -c ' clean ') clean, and:"
    ! grep -hv ' clean ' "$logs"/*.result
}

case ${1:-} in
    --sanitize) sanitized=("${@:2}") ;;
    --collect) collect "$2" "$3"; exit ;;
    --prebuilt) prebuilt "$2"; exit ;;
esac

build=${KIMIK3_GPU_BUILD:-build/gpu}
arch=${KIMIK3_CUDA_ARCH:-90a}
flags=(-std=c++20 -O2 "-gencode=arch=compute_$arch,code=${KIMIK3_CUDA_CODE:-sm_$arch}" --extended-lambda --expt-relaxed-constexpr -diag-suppress 128,554,20011,20014 -lineinfo
       -DFMT_USE_CONSTEXPR=1 -DFMT_HEADER_ONLY -DEIGEN_NO_CUDA -DEIGEN_DONT_VECTORIZE -DEIGEN_DONT_PARALLELIZE -DBOOST_TEST_ALTERNATIVE_INIT_API
       -Iinclude -Itests -isystem "${EIGEN_INCLUDE:-/usr/include/eigen3}")
mkdir -p "$build"
makefile=$build/Makefile
{
    printf 'objects ='
    for source in tests/conformance/*.cu; do printf ' %s/%s.o' "$build" "$(basename "$source" .cu)"; done
    printf '\n%s/conformance: $(objects)\n\tnvcc $(objects) -lcublas -lcublasLt -o $@\n' "$build"
    for source in tests/conformance/*.cu; do
        object=$build/$(basename "$source" .cu).o
        printf '%s: %s\n\tnvcc %s -MD -MF %s.d -c %s -o $@\n-include %s.d\n' "$object" "$source" "${flags[*]}" "$object" "$source" "$object"
    done
} > "$makefile"
make -f "$makefile" -j "${KIMIK3_JOBS:-$(nproc)}" "$build/conformance" || exit 1
if [ ${#sanitized[@]} -gt 0 ]; then
    sanitize "$build/conformance" "${sanitized[@]}"
    exit
fi
exec "$build/conformance" "$@"
