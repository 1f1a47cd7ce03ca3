#!/bin/bash
# --device cuda of kimik3-train and kimik3-generate. $1: the folder of the built programs. Exit code 77: there is no GPU,
# and the programs say so.
set -u
programs=$(realpath "${1:?the folder of the programs}") || exit 77
[ -x "$programs/kimik3-train" ] && [ -x "$programs/kimik3-generate" ] && [ -x "$programs/kimik3-prepare" ] || exit 77
program=$programs/kimik3-train
source "$(dirname "$(realpath "$0")")/../support/program_laws.sh"
rows() { cut -d, -f1-6 "$1/metrics.csv"; }  # all but the speed
same_run() { equal "$(rows "$1")" "$(rows "$2")" && diff -r "$1/$3" "$2/$3"; }
about() { awk -v a="$1" -v b="$2" 'BEGIN { d = a / b - 1; exit !(d < 1e-2 && d > -1e-2) }'; }
near() { awk -v a="$1" -v b="$2" 'BEGIN { d = a / b - 1; exit !(d < 1e-4 && d > -1e-4) }'; }

for n in $(seq 1 400); do echo "Sentence $n of a book says that $((n * 7 % 13)) birds sat on a wall."; done >book.txt
"$programs/kimik3-prepare" book.txt --out data --tokenizer train:300 >/dev/null || exit 1
any=(--preset tiny --data data --batch 2 --seq 32 --steps 6 --save-every 2 --eval-every 2 --eval-windows 4 --keep 9)
run=("${any[@]}" --dtype f32)
half=("${any[@]}" --dtype bf16)
generate=(--prompt "Sentence 2 of" --temperature 0 --max-tokens 20 --quiet)

law "an unknown device" ends 2 "--device" "${run[@]}" --out e --device tpu
law "bf16 on the cpu" ends 1 "a model computes in bf16 on a GPU only" "${half[@]}" --out e
law "a run on the cpu" ends 0 "device           cpu, 1 threads" "${run[@]}" --out cpu --threads 1
program=$programs/kimik3-generate
law "text on the cpu" ends 0 "Sentence 2" --checkpoint cpu "${generate[@]}" --device cpu
program=$programs/kimik3-train
if ! ends 0 "device           cuda, " "${run[@]}" --out cuda --device cuda >/dev/null; then
    reason="no GPU: the CUDA backend needs one"
    grep -q "built without CUDA" stderr && reason="built without CUDA; build it where CMake finds the CUDA toolkit"
    law "training without a GPU says why" ends 1 "$reason" "${run[@]}" --out e --device cuda
    law "nothing is left" test ! -e e
    program=$programs/kimik3-generate
    law "generating without a GPU says why" ends 1 "$reason" --checkpoint cpu "${generate[@]}" --device cuda
    nvidia-smi -L 2>/dev/null | grep -q GPU && [[ $reason = no* ]] && echo "broken: there is a GPU" && exit 1
    [ $failed = 0 ] && echo "skipped: ${reason%%:*}" && exit 77
    exit 1
fi

first() { sed -n 2p "$1/metrics.csv" | cut -d, -f2; }
law "the first loss is that of the cpu" near "$(first cuda)" "$(first cpu)"
law "a run again" ends 0 "" "${run[@]}" --out again --device cuda
law "two runs are the same, bit for bit" same_run cuda again step-00000006
law "an eager run" ends 0 "" "${run[@]}" --out eager --device cuda --eager
law "recording changes no bit" same_run cuda eager step-00000006
law "recomputing" ends 0 "" "${run[@]}" --out recomputed --device cuda --recompute
law "recomputing changes no bit" same_run cuda recomputed step-00000006
cp -r cuda part && rm -r part/step-00000006
cp -r part moved
law "a run is resumed" ends 0 "resuming from part/step-00000004" "${run[@]}" --out part --resume --device cuda
law "b53 resumed is uninterrupted, bit for bit" same_run cuda part step-00000006
law "it goes on on the cpu as well" ends 0 "resuming from moved/step-00000004" "${run[@]}" --out moved --resume
law "near the same losses" near "$(tail -n 1 moved/metrics.csv | cut -d, -f2)" "$(tail -n 1 cuda/metrics.csv | cut -d, -f2)"

law "a run in bf16" ends 0 ", bf16" "${half[@]}" --out half --device cuda
law "which is what a GPU takes without --dtype" ends 0 ", bf16" "${any[@]}" --out default --device cuda
law "and that twice, bit for bit" same_run half default step-00000006
law "near the loss in float32" about "$(first half)" "$(first cuda)"
law "eager in bf16" ends 0 "" "${half[@]}" --out half_eager --device cuda --eager
law "recording changes no bit of it" same_run half half_eager step-00000006
cp -r half half_part && rm -r half_part/step-00000006
cp -r half_part half_moved
law "a run in bf16 is resumed" ends 0 "resuming from half_part/step-00000004" "${half[@]}" --out half_part --resume --device cuda
law "b53 in bf16 too, bit for bit" same_run half half_part step-00000006
law "its checkpoints hold float32: it goes on on the cpu" ends 0 "resuming from half_moved/step-00000004" \
    "${run[@]}" --out half_moved --resume

yes "$(head -c 3000 book.txt)" | head -c 12000000 >long.txt
"$programs/kimik3-prepare" long.txt --out long --tokenizer bytes >/dev/null
law "too little memory names the batch that fits" ends 1 "too little GPU memory: a step of 20000 x 512 tokens takes " \
    --preset tiny --data long --seq 512 --batch 20000 --steps 1 --out e --device cuda --dtype f32
law "one that is no guess" grep -qE -- '--batch [1-9][0-9]* fits' stderr
largest=$(sed -n 's/.*--batch \([0-9]*\) fits.*/\1/p' stderr)
law "and it fits" ends 0 "scratch" --preset tiny --data long --seq 512 --batch "$((largest / 100))" --steps 1 --out fits \
    --eval-windows 1 --device cuda --dtype f32

program=$programs/kimik3-generate
law "text on the gpu in bf16" ends 0 "Sentence 2" --checkpoint half "${generate[@]}" --device cuda
law "text on the gpu" ends 0 "Sentence 2" --checkpoint cuda "${generate[@]}" --device cuda --dtype f32
text=$(cat stdout)
law "text of the same model on the cpu" ends 0 "Sentence 2" --checkpoint cuda "${generate[@]}" --device cpu
law "is the same" equal "$(cat stdout)" "$text"

[ $failed = 0 ] && echo "all laws hold"
exit $failed
