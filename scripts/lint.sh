#!/usr/bin/env bash
# Checks that need no test run: shell scripts parse, includes respect the layers, clang-tidy has nothing to say.
set -euo pipefail
cd "$(dirname "$0")/.."
for script in scripts/*.sh .ci/run; do
  bash -n "$script"
done
python3 tests/layering.py .
cmake --preset tidy > /dev/null
cmake --build --preset tidy
