#!/bin/bash
# cuda_from_80.sh NVCC: device code compiles for compute capability 8.0 too, the lowest: a model in float32 and one in
# bf16, their training and decoding.
cd "$(dirname "$0")/../.." || exit 1
for file in linear_model half_model; do
    "$1" -std=c++20 -O0 -Ofc max -gencode=arch=compute_80,code=sm_80 --extended-lambda --expt-relaxed-constexpr \
        -diag-suppress 128,554,20011,20014 -DEIGEN_NO_CUDA -DEIGEN_DONT_VECTORIZE -DFMT_USE_CONSTEXPR=1 -DFMT_HEADER_ONLY \
        -DBOOST_TEST_ALTERNATIVE_INIT_API -Iinclude -Itests -isystem "${EIGEN_INCLUDE:-/usr/include/eigen3}" \
        -cubin -o /dev/null "tests/conformance/$file.cu" || exit 1
done
