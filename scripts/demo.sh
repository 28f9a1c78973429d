#!/usr/bin/env bash
# The main job on a real checkpoint: samples/dcp-fsdp2-w4, which PyTorch 2.13 wrote from four ranks training with FSDP2.
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

if [ "$failures" -ne 0 ]; then
  printf '\ndemo: %s steps did not end as they should\n' "$failures" >&2
  exit 1
fi
printf '\ndemo: all steps ended as they should\n'
