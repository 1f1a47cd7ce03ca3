#!/bin/bash
# consumers/run.sh WAY SOURCE EIGEN_INCLUDE [NVCC]
# Configures, builds, runs and installs the project in this folder, which takes kimik3 in the way WAY: find_package
# (from a temporary prefix), add_subdirectory, fetch_content, own_dependencies, or core (add_subdirectory without
# nlohmann_json and PCRE2); with cuda_ before it, the project has CUDA among its languages and takes kimik3::cuda too.
set -e
way=${1#cuda_} source=$2 eigen=$3 nvcc=$4 cuda=OFF
if [ "$1" != "$way" ]; then
    command -v "$nvcc" > /dev/null || { echo "skipped: no nvcc"; exit 77; }
    export CUDACXX=$nvcc
    cuda=ON
fi
here=$(cd "$(dirname "$0")" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

if [ "$way" = find_package ]; then
    cmake -S "$source" -B "$scratch/library" -DKIMIK3_BUILD_TESTS=OFF -DKIMIK3_BUILD_EXAMPLES=OFF \
          -DKIMIK3_BUILD_BENCHMARKS=OFF -DKIMIK3_CUDA=$cuda -DCMAKE_INSTALL_INCLUDEDIR=include/apart > /dev/null
    cmake --install "$scratch/library" --prefix "$scratch/first" > /dev/null
    mv "$scratch/first" "$scratch/prefix"  # an installed tree may move
fi
if [ "$way" = core ]; then
    cmake -S "$source" -B "$scratch/whole" -DKIMIK3_IO=OFF 2>&1 | grep "without KIMIK3_IO set" ||
        { echo "without KIMIK3_IO no sentence says what else to leave out"; exit 1; }
fi
cmake -S "$here" -B "$scratch/build" -DWAY="$way" -DWITH_CUDA=$cuda -DKIMIK3_SOURCE="$source" -DEIGEN_INCLUDE="$eigen" \
      -DCMAKE_PREFIX_PATH="$scratch/prefix" --no-warn-unused-cli > /dev/null
cmake "$scratch/build" > /dev/null  # and once more, with the cache of the first time
cmake --build "$scratch/build"
"$scratch/build/consumer"
[ $cuda = OFF ] || "$scratch/build/cuda_consumer"
cmake --install "$scratch/build" --prefix "$scratch/installed" > /dev/null
installed=$(cd "$scratch/installed" && find . -type f)
[ "$installed" = ./bin/consumer ] || { echo "installed: $installed"; exit 1; }
