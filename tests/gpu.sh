#!/bin/bash
# tests/gpu.sh [ARGUMENTS OF THE SUITE]: builds the CUDA conformance suite with nvcc and runs it, on a machine with a GPU.
#     KIMIK3_SANITIZER=memcheck tests/gpu.sh    under compute-sanitizer instead
# Needs Eigen, fmt, Boost.Test (headers) and nlohmann_json. Exits with 77 where there is no GPU.
cd "$(dirname "$0")/.." || exit 1
build=${KIMIK3_GPU_BUILD:-build/gpu}
arch=${KIMIK3_CUDA_ARCH:-90a}
flags=(-std=c++20 -O2 "-gencode=arch=compute_$arch,code=sm_$arch" --extended-lambda --expt-relaxed-constexpr -diag-suppress 554,20011,20014 -lineinfo
       -DFMT_USE_CONSTEXPR=1 -DFMT_HEADER_ONLY -DEIGEN_NO_CUDA -DEIGEN_DONT_VECTORIZE -DEIGEN_DONT_PARALLELIZE -DBOOST_TEST_ALTERNATIVE_INIT_API
       -Iinclude -Itests -isystem "${EIGEN_INCLUDE:-/usr/include/eigen3}")
mkdir -p "$build"
makefile=$build/Makefile
{
    printf 'objects ='
    for source in tests/conformance/*.cu; do printf ' %s/%s.o' "$build" "$(basename "$source" .cu)"; done
    printf '\n%s/conformance: $(objects)\n\tnvcc $(objects) -lcublas -o $@\n' "$build"
    for source in tests/conformance/*.cu; do
        object=$build/$(basename "$source" .cu).o
        printf '%s: %s\n\tnvcc %s -MD -MF %s.d -c %s -o $@\n-include %s.d\n' "$object" "$source" "${flags[*]}" "$object" "$source" "$object"
    done
} > "$makefile"
make -f "$makefile" -j "${KIMIK3_JOBS:-$(nproc)}" "$build/conformance" || exit 1
if [ -n "$KIMIK3_SANITIZER" ]; then
    exec compute-sanitizer --tool "$KIMIK3_SANITIZER" --error-exitcode 1 "$build/conformance" "$@"
fi
exec "$build/conformance" "$@"
