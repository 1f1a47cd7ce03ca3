#!/bin/bash
# presets/run.sh WRITE_CONFIGS SOURCE
# kimik3_add_preset: every field of a config comes through; what is no config of the model stops CMake with its sentence;
# a changed file makes a changed preset.
write_configs=$1 source=$2
here=$(cd "$(dirname "$0")" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir -p "$scratch/configs" "$scratch/more/own-model"
"$write_configs" "$scratch/configs" || exit 1

configure() { cmake -S "$here" -B "$scratch/build" -DKIMIK3_SOURCE="$source" -DCONFIGS="$scratch/configs" -DMORE="$1" 2>&1; }
fail() { echo "$1"; exit 1; }

said=$(configure "") || fail "$said"
cmake --build "$scratch/build" && "$scratch/build/presets" || exit 1
before=$(stat -c %Y "$scratch/build/presets")
cmake "$scratch/build" > /dev/null && cmake --build "$scratch/build" > /dev/null
[ "$(stat -c %Y "$scratch/build/presets")" = "$before" ] || fail "compiled again for configs that did not change"

refused() {  # refused SENTENCE ARGUMENTS
    said=$(configure "$2") && fail "accepted: $2"
    grep -qF "$1" <<< "$said" || fail "does not say: $1
$said"
}
change() { sed "$1" "$scratch/configs/roomy.json" > "$scratch/more/own-model/config.json"; }
own="$scratch/more/own-model/config.json"
change 's/"num_experts_per_token": 2/"num_experts_per_token": 8/'
refused "a token goes to at least one expert and not to all; this config has num_experts_per_token = 8" "$own"
change 's/hidden_size/hiden_size/'
refused "unknown key 'hiden_size'; did you mean 'hidden_size'?" "$own"
change 's/}/,/'
refused "is not valid JSON" "$own"
change ''
refused "there is no file '$scratch/more/absent.json'" "$scratch/more/absent.json"
refused "kimik3 has a preset 'tiny' already" "$own;NAME;tiny"
refused "presets has a preset 'roomy' already" "$own;NAME;roomy"
refused "'own-model' is no name for a constant in C++" "$own;NAME;own-model"
refused "does not take: OTHER" "$own;OTHER"

change 's/"hidden_size": 48/"hidden_size": 56/'
said=$(configure "$own") || fail "$said"
header="$scratch/build/kimik3_generated/kimik3_presets/own_model.hpp"
grep -qF '.hidden_size = 56,' "$header" || fail "own_model.hpp is not named after its folder"
sleep 1
change 's/"hidden_size": 48/"hidden_size": 57/'
cmake --build "$scratch/build" > /dev/null  # runs CMake by itself; main.cpp does not know the preset
grep -qF '.hidden_size = 57,' "$header" || fail "a changed config.json does not change the preset"
echo "presets are their configs"
