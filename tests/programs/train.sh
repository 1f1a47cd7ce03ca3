#!/bin/bash
# kimik3-train from end to end. $1: the folder of the built programs. Exit code 77: they are not there.
set -u
programs=$(realpath "${1:?the folder of the programs}") || exit 77
[ -x "$programs/kimik3-train" ] && [ -x "$programs/kimik3-prepare" ] || exit 77
program=$programs/kimik3-train
source "$(dirname "$(realpath "$0")")/../support/program_laws.sh"
absent() { [ ! -e "$1" ]; }
rows() { cut -d, -f1-6 "$1/metrics.csv"; }  # all but the speed
same_run() { # same_run <run> <run> <checkpoint>
    equal "$(rows "$1")" "$(rows "$2")" && cmp "$1/expert_load.csv" "$2/expert_load.csv" && diff -r "$1/$3" "$2/$3" && diff -r "$1/best" "$2/best"
}

for n in $(seq 1 400); do echo "Sentence $n of a book says that $((n * 7 % 13)) birds sat on a wall."; done >book.txt
"$programs/kimik3-prepare" book.txt --out data --tokenizer train:300 >/dev/null || exit 1
common=(--preset tiny --data data --batch 2 --eval-windows 4)
small=("${common[@]}" --seq 32 --threads 1)
steps=(--steps 6 --accumulate 2 --eval-every 2)
six=("${small[@]}" "${steps[@]}")

# a run and what it leaves
law "a run ends well" ends 0 "checkpoint whole/step-00000006" "${six[@]}" --out whole --save-every 2 --log-every 3
law "the last line is the summary" grep -qE '^loss [0-9.]+ -> [0-9.]+, [0-9]+ tokens/s$' <(tail -n 1 stdout)
law "a log has the first, every third and the last step" equal "$(grep -c '^step .* left' stdout)" 3
law "no line is rewritten in a log" equal "$(tr -cd '\r\033' <stdout | wc -c)" 0
law "standard error is quiet" test ! -s stderr
law "the newest checkpoints and the best are kept" equal "$(cd whole && echo *)" \
    "best expert_load.csv metrics.csv report.html step-00000004 step-00000006"
law "a checkpoint is whole" equal "$(cd whole/step-00000006 && echo *)" \
    "config.json model.safetensors tokenizer.json training.safetensors"
law "the metrics have a row a step" equal "$(cut -d, -f1 whole/metrics.csv | xargs)" "step 0 1 2 3 4 5"
law "validation is every second step" equal "$(awk -F, 'NR > 1 && $3 != "" { print $1 }' whole/metrics.csv | xargs)" "1 3 5"
law "the loads have a row a look, here a step" equal "$(cut -d, -f1 whole/expert_load.csv | xargs)" "step 0 1 2 3 4 5"
law "the report is whole" grep -q '"step","6 of 6"' whole/report.html
law "it has the curve and the command" grep -qF '"loss":[' whole/report.html
law "as it was typed" grep -qF -- '--out whole --save-every 2 --log-every 3' whole/report.html
law "looking inside changes no bit" ends 0 "" "${six[@]}" --out unseen --save-every 2 --report-every 0
law "one look, at the end" equal "$(cut -d, -f1 unseen/expert_load.csv | xargs)" "step 5"
law "equal checkpoints" diff -r whole/step-00000006 unseen/step-00000006
law "equal losses" equal "$(rows whole)" "$(rows unseen)"
law "a run is not overwritten" ends 1 "already holds a run; choose another folder, or go on with --resume" "${six[@]}" --out whole
law "a run that has ended is not resumed" ends 1 "has taken 6 steps already" "${six[@]}" --out whole --resume
law "threads change no bit" ends 0 "" "${common[@]}" "${steps[@]}" --seq 32 --out threads --threads 2 --save-every 2
law "equal runs" same_run whole threads step-00000006
law "recomputing changes no bit" ends 0 "" "${six[@]}" --out recomputed --recompute
law "equal runs" same_run whole recomputed step-00000006
law "another seed is another run" ends 0 "" "${six[@]}" --out seed --seed 1
law "other losses" test "$(rows seed)" != "$(rows whole)"

# b53: resumed = uninterrupted
cp -r whole part
rm -r part/step-00000006
law "a run is resumed" ends 0 "resuming from part/step-00000004" "${six[@]}" --out part --resume
law "b53 resumed is uninterrupted, bit for bit" same_run whole part step-00000006
drawn() { grep -o '"load_history".*' "$1/report.html" | grep -o '^[^:]*:{"step":\[[^]]*\]'; }
law "its report keeps the earlier curve" equal "$(drawn part)" '"load_history":{"step":[1.0,2.0,3.0,4.0,5.0,6.0]'
cp -r whole ended
rm -r ended/step-00000006
mv ended/expert_load.csv loads.csv
mkdir ended/expert_load.csv
law "a run ends at a look into the model" ends 1 "expert_load.csv" "${six[@]}" --out ended --resume --save-every 1
rmdir ended/expert_load.csv
mv loads.csv ended/expert_load.csv
law "it goes on" ends 0 "" "${six[@]}" --out ended --resume
law "with that look" same_run whole ended step-00000006
cp -r whole other_data
rm -r other_data/step-00000006
law "b53 other data are refused" ends 1 "is of windows of 32 tokens, these have 16" "${common[@]}" "${steps[@]}" --seq 16 \
    --out other_data --resume

# interruption
long=("${small[@]}" --save-every 0 --eval-every 0 --report-every 0 --schedule constant --warmup 0)
timeout --foreground 60 "$programs/kimik3-train" "${long[@]}" --steps 100000 --out stopped >stdout 2>stderr &
for _ in $(seq 200); do grep -q "^2," stopped/metrics.csv 2>/dev/null && break; sleep 0.05; done
kill -INT $!
wait $!
law "an interruption has its own exit code" equal $? 130
law "it says how to go on" grep -q 'interrupted after step [0-9]*: go on with --resume' stdout
taken=$(sed -n 's/interrupted after step \([0-9]*\):.*/\1/p' stdout)
law "the report is of the last step" grep -q "\"step\",\"$taken of 100000\"" stopped/report.html
law "the checkpoint is of the last step" test -s "stopped/step-$(printf %08d "$taken")/training.safetensors"
law "it goes on" ends 0 "" "${long[@]}" --steps $((taken + 2)) --out stopped --resume
law "a run without interruption" ends 0 "" "${long[@]}" --steps $((taken + 2)) --out unstopped
law "is the same" same_run stopped unstopped "step-$(printf %08d $((taken + 2)))"

# other rules
law "adamw and a schedule with a decay" ends 0 "adamw, lr 0.001 wsd" "${small[@]}" --steps 3 --out adamw --optimizer adamw \
    --schedule wsd --lr 1e-3
mkdir bare
cp data/train_* bare
law "without validation and tokenizer" ends 0 "0 for validation" --preset tiny --data bare --out bare_run --steps 1 --batch 1 --seq 8
law "no best model" absent bare_run/best
for option in "--eval-every 5" "--eval-windows 5"; do
    law "unless it is asked for" ends 1 "'bare' has no shard val_*.bin to validate on" --preset tiny --data bare --out e1 $option
done
law "its report is of one step, on the training text" grep -q '"text":"the first 8 tokens of the training text"' bare_run/report.html

"$programs/kimik3-prepare" book.txt --out many --tokenizer data --val-fraction 0 --shard-tokens 64 >/dev/null
crowded() { ( ulimit -Sn 64; ends 0 "" --preset tiny --data many --out many_run --steps 1 --batch 1 --seq 8 --report-every 0 ); }
law "there are many shards" test "$(ls many | wc -l)" -gt 70
law "more of them than a process opens unasked" crowded

# wrong input: exit 1 and what to do
law "no folder" ends 1 "kimik3-prepare makes one from text" --data nowhere --out e1
mkdir empty
law "no shards" ends 1 "no shard train_*.bin in the folder" --data empty --out e1
for _ in 1 2 3; do seq 1 3000 | tr 0-9 a-j; done >words.txt
"$programs/kimik3-prepare" words.txt --out large --tokenizer train:1100 >/dev/null
law "a vocabulary too large" ends 1 "kimik3-prepare --tokenizer train:1024 fits" --data large --out e1
law "a vocabulary too large for a preset without room for bytes" ends 1 "the preset golden has room for 67; take a preset" \
    --preset golden --data large --out e1
law "a sequence too long" ends 1 "takes sequences of at most 512 tokens, got 513" --data data --out e1 --seq 513
law "too little data" ends 1 "a batch of 999 x 32 tokens needs 999 windows" --data data --seq 32 --batch 999 --out e1
law "nothing to resume" ends 1 "leave --resume out to begin" "${small[@]}" --out e1 --resume
law "warm-up longer than the run" ends 1 "warm-up takes 0 to 5 steps" "${small[@]}" --steps 5 --warmup 6 --out e1
law "nothing is left" absent e1
law "--out is a file" ends 1 "book.txt" "${small[@]}" --out book.txt
cp -r whole other
sed -i 's/"num_experts_per_token": 2/"num_experts_per_token": 3/' other/step-00000006/config.json
law "a checkpoint of another model" ends 1 "num_experts_per_token differ" "${small[@]}" --steps 9 --out other --resume
cp -r whole cut
truncate -s 100000 cut/step-00000006/model.safetensors
law "a checkpoint that was cut off" ends 1 "model.safetensors" "${small[@]}" --steps 9 --out cut --resume
limited() { ( ulimit -f 2000; "$programs/kimik3-train" "${small[@]}" --steps 2 --out full >/dev/null 2>stderr; [ $? = 1 ] ); }
law "b55 a disk that is full is reported" limited
law "with the file" grep -qE 'model.safetensors: cannot write the file: File too large' stderr
law "b55 no half checkpoint is left" equal "$(cd full && echo *)" "expert_load.csv metrics.csv report.html"

# wrong usage: exit 2
law "help" ends 0 "--weight-decay" --help
law "no arguments" ends 2 "--data is required"
law "an unknown option" ends 2 "--nonsense" "${small[@]}" --out e2 --nonsense
law "an unknown preset" ends 2 "the presets of this program are golden, tiny" --data data --out e2 --preset huge
law "an unknown optimizer" ends 2 "one of adamw, muon" "${small[@]}" --out e2 --optimizer sgd
law "an unknown schedule" ends 2 "one of constant, linear, cosine, wsd" "${small[@]}" --out e2 --schedule step
law "no steps" ends 2 "--steps: a number above 0 is wanted, got '0'" "${small[@]}" --out e2 --steps 0
law "no rate" ends 2 "--lr: a number above 0 is wanted, got 'nan'" "${small[@]}" --out e2 --lr nan
law "no number" ends 2 "--lr" "${small[@]}" --out e2 --lr fast
law "a seed below zero" ends 2 "--seed" "${small[@]}" --out e2 --seed -1
law "a number that C reads in base eight" ends 2 "--steps: a number above 0 is wanted, below 2^64 and without zeros" \
    "${small[@]}" --out e2 --steps 010
law "a seed beyond its type" ends 2 "--seed: 0 or a number above it is wanted, below 2^64" "${small[@]}" --out e2 \
    --seed 18446744073709551616
law "decay steps of a schedule without" ends 2 "--decay-steps: without effect here: --schedule cosine has none" \
    "${small[@]}" --out e2 --decay-steps 5
law "a recorded step on the CPU" ends 2 "--eager: without effect here: --device cpu" "${small[@]}" --out e2 --eager
law "a file in the folder's place" ends 1 "--out: 'book.txt' cannot be made a folder" "${small[@]}" --out book.txt
head -c 400 book.txt >page.txt
"$programs/kimik3-prepare" page.txt --out page --tokenizer data/tokenizer.json >/dev/null || exit 1
law "a validation text below one sequence" ends 1 "the longest val shard in 'page' has" --preset tiny --data page \
    --out e2 --batch 1 --seq 64
law "nothing is left" absent e2

[ $failed = 0 ] && echo "all laws hold"
exit $failed
