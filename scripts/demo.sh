#!/usr/bin/env bash
# The main job on a real checkpoint: samples/dcp-fsdp2-w4, which PyTorch 2.13 wrote from four ranks training with FSDP2. Then, where
# fsdpctl-train was built, a training: samples/llama-tiny.json on two ranks, killed, and resumed on one.
#
#   scripts/demo.sh [PATH OF fsdpctl]
#
# Shows each command and its real output. Works in a temporary directory and leaves nothing behind.
set -euo pipefail
repository=$(cd "$(dirname "$0")/.." && pwd)
fsdpctl=$(realpath "${1:-$repository/build/tools/fsdpctl}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
cp -r "$repository/samples/dcp-fsdp2-w4" step-3

failures=0
# run EXPECTED-EXIT-CODE ARGUMENTS...
run() {
  local expected=$1 code=0
  shift
  printf '\n$ fsdpctl %s\n' "$*"
  "$fsdpctl" "$@" 2>&1 || code=$?
  if [ "$code" -ne 0 ]; then printf '(exit code %s)\n' "$code"; fi
  if [ "$code" -ne "$expected" ]; then
    printf 'demo: expected exit code %s\n' "$expected"
    failures=$((failures + 1))
  fi
}
say() { printf '\n# %s\n' "$*"; }

say "What is this, and is it whole?"
run 0 inspect step-3
run 0 verify --data step-3

say "Four ranks became three: the same content for another world size."
run 0 reshard step-3 -o step-3-w3 --world-size 3
run 0 diff step-3 step-3-w3

say "The weights for inference, and everything for torch.load."
run 0 convert step-3 -o model.safetensors --to safetensors --part model
run 0 convert step-3 -o everything.pt --to torch
run 0 diff step-3 everything.pt

say "Sealed with a manifest; then one byte of a copy changes on disk."
run 0 verify --write-manifest step-3
cp -r step-3 damaged
printf '\xff' | dd of=damaged/__1_0.distcp bs=1 seek=17500 conv=notrunc status=none
run 3 verify --data damaged

if [ -x "$(dirname "$fsdpctl")/fsdpctl-train" ]; then
  config=$repository/samples/llama-tiny.json
  say "A small Llama learns to write like this project's documents, on two ranks. It is killed after its first checkpoint."
  printf '\n$ fsdpctl train samples/llama-tiny.json --nproc 2 --set logging.interval=10\n'
  "$fsdpctl" train "$config" --nproc 2 --set logging.interval=10 2>&1 &
  training=$!
  until [ -e llama-tiny/step-40 ]; do
    kill -0 "$training" 2> /dev/null || break
    sleep 0.1
  done
  kill -KILL "$training" 2> /dev/null || true
  wait "$training" 2> /dev/null || true
  sleep 1   # its ranks end with it

  say "One rank goes on where two were."
  run 0 train "$config" --resume latest --set logging.interval=10

  say "Its checkpoints are whole, and weights for inference are one command away."
  run 0 verify --data llama-tiny
  run 0 convert llama-tiny -o llama-tiny.safetensors --to safetensors --part model --dtype bfloat16
else
  say "The training is left out: fsdpctl-train was not built (scripts/setup.sh libtorch, then make build)."
fi

if [ "$failures" -ne 0 ]; then
  printf '\ndemo: %s steps did not end as they should\n' "$failures" >&2
  exit 1
fi
printf '\ndemo: all steps ended as they should\n'
