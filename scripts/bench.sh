#!/usr/bin/env bash
# Measures fsdpctl beside PyTorch and cp: scripts/bench.sh BUILD_DIR [arguments of tests/bench/bench.py]. First the kernels alone.
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1
shift
version=$(sed -n 's/^torch==//p' tests/torch-requirements.txt)
python=${FSDPCTL_TORCH_PYTHON:-${XDG_CACHE_HOME:-$HOME/.cache}/fsdpctl/torch-$version/bin/python}
[ -x "$python" ] || { echo "bench: real PyTorch is not installed: scripts/setup.sh torch" >&2; exit 1; }
"$python" -W ignore tests/bench/kernels.py --bench "$build/tests/fsdpctl_kernel_bench"
exec "$python" -W ignore tests/bench/bench.py --fsdpctl "$build/tools/fsdpctl" --floor "$build/tests/fsdpctl_floor" "$@"
