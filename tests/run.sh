#!/bin/bash
# tests/run.sh [CTEST ARGUMENTS]: builds all tests and runs them, or those that the arguments choose:
#     tests/run.sh -R golden                                    the golden tests
#     KIMIK3_GOLDEN_DIR=/other/folder tests/run.sh -R golden    on other golden files
#     KIMIK3_PRESET=sanitize tests/run.sh                       another preset of CMakePresets.json
# Missing packages of Debian 12 are installed when run as root, and named otherwise. The last lines are ctest's summary.
cd "$(dirname "$0")/.." || exit 1
preset=${KIMIK3_PRESET:-check}

needed=(g++ cmake ninja-build libeigen3-dev libfmt-dev libboost-test-dev nlohmann-json3-dev libpcre2-dev libcli11-dev)
missing=()
for package in "${needed[@]}"; do
    dpkg-query -W -f '${Status}' "$package" 2> /dev/null | grep -q 'ok installed' || missing+=("$package")
done
if [ ${#missing[@]} -gt 0 ]; then
    if [ "$(id -u)" != 0 ]; then
        echo "tests/run.sh: install these packages first: apt-get install ${missing[*]}" >&2
        exit 1
    fi
    apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${missing[@]}" || exit 1
fi

cmake --preset "$preset" -DKIMIK3_BUILD_TESTS=ON || exit 1
cmake --build --preset "$preset" -j "$(nproc)" || exit 1
ctest --test-dir "build/$preset" -j "$(nproc)" --output-on-failure --no-tests=error "$@"
