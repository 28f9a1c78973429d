#!/usr/bin/env bash
# Runs tests/torch/real_torch.py with the environment that scripts/setup.sh made; a visible skip (77) without it.
#   run.sh FSDPCTL conversions|training
#   run.sh FSDPCTL resuming TRAIN_STEPS
set -euo pipefail
cd "$(dirname "$0")/../.."
version=$(sed -n 's/^torch==//p' tests/torch-requirements.txt)
python=${FSDPCTL_TORCH_PYTHON:-${XDG_CACHE_HOME:-$HOME/.cache}/fsdpctl/torch-$version/bin/python}
[ -x "$python" ] || { echo "SKIPPED: real PyTorch is not installed: scripts/setup.sh torch"; exit 77; }
exec "$python" -B -W ignore tests/torch/real_torch.py "$2" --fsdpctl "$1" ${3:+--trainer "$3"} --fixtures "${FSDPCTL_FIXTURES:-../shared/fixtures}"
