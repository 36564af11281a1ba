#!/bin/sh
# The whole loop on any machine, without a GPU: measure, sweep, tune, predict, simulate,
# prove. Simulated and estimated numbers are marked. Usage: demo.sh BIN FOLDER
set -eu

bin=$1
folder=$2
mkdir -p "$folder"
export WATTLOOP_STORE="$folder/runs.db"
export WATTLOOP_STATE_DIR="$folder/state"
export WATTLOOP_VIRTUAL_STATE="$folder/virtual"
begun=$(date +%s)

step() {
    printf '\n== %s (after %s s)\n' "$1" "$(($(date +%s) - begun))"
}

step "measure: a small training on this machine's CPU"
"$bin/wattloop" run --name demo -- "$bin/python" examples/digits_mlp.py --epochs 8

step "tune: the settings that reach the same accuracy for less energy"
"$bin/python" examples/tune_digits.py
"$bin/wattloop" tune best

step "sweep: power caps of a virtual GPU (simulated)"
WATTLOOP_VIRTUAL_GPUS=1 "$bin/wattloop" sweep examples/demo_caps.yaml --new -- \
    "$bin/python" -m wattloop.virtual.train --time-scale 120

step "predict: GPT-2 on three GPUs that this machine does not have"
# traced by: wattloop predict --model hf:gpt2 --batch 8 --seq 512 --precision bf16 --save-workload
"$bin/wattloop" predict --model examples/gpt2.json.gz --compare a100,h100,h200

step "simulate and prove: a study of the thesis's cluster, six steps (simulated)"
for part in baseline characterize simulate decide; do
    "$bin/wattloop" study "$part" examples/demo_study.yaml
done
"$bin/wattloop" study validate examples/demo_study.yaml || true

step "report: one page and one PDF"
"$bin/wattloop" report demo-cluster --output "$folder/report.html"
"$bin/wattloop" report demo-cluster --output "$folder/report.pdf"
"$bin/wattloop" report demo --output "$folder/run.html"

step "done"
echo "open $folder/report.html, or the dashboard on all of it:"
echo "    $bin/wattloop serve --store $folder/runs.db"
