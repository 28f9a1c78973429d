#!/usr/bin/env bash
# What only a machine with a GPU can prove, in under five minutes, from a prepared build.
#
#   tests/gpu/run.sh prepare [BUILD]    collects what is needed into BUILD/gpu, which may be carried to another machine
#   tests/gpu/run.sh [FOLDER]           runs it (default build/gpu): the kernels' tests, bit for bit against the same references
#                                       as the CPU's; compute-sanitizer on them; the benchmark
#
# Exit code 0 if all passed, 1 if something failed or could not be run, 5 without a GPU.
set -uo pipefail
repository=$(cd "$(dirname "$0")/../.." && pwd)

say() { printf 'gpu: %s\n' "$*"; }

find_sanitizer() {
  local root
  for root in "${CUDA_PATH:-/usr/local/cuda}" "${XDG_CACHE_HOME:-$HOME/.cache}/fsdpctl/compute-sanitizer-13.0/nvidia/cu13"; do
    if [ -x "$root/bin/compute-sanitizer" ]; then
      printf '%s\n' "$root"
      return
    fi
  done
}

prepare() {
  set -e
  local build=$1 folder=$1/gpu sanitizer
  rm -rf "$folder"
  mkdir -p "$folder/lib" "$folder/data"
  cp "$build"/tests/gpu_tests "$build"/tests/fsdpctl_kernel_bench "$folder"
  cp "$(find "$build" -name libfsdpctl_cuda.so -not -path "$folder/*" | head -n 1)" "$folder/lib"
  ldd "$build/tests/gpu_tests" | awk '/libfmt/ { print $3 }' | xargs -r -I{} cp {} "$folder/lib"
  cp -r "$repository/tests/data/lightrft" "$folder/data"
  sanitizer=$(find_sanitizer)
  if [ -n "$sanitizer" ]; then
    mkdir "$folder/sanitizer"
    cp "$sanitizer"/bin/{compute-sanitizer,libsanitizer-collection.so} "$sanitizer"/lib/lib{InterceptorInjection,TreeLauncher}*.so \
      "$folder/sanitizer"
  else
    say "no compute-sanitizer found (scripts/setup.sh sanitizer installs it)"
  fi
  say "prepared $folder, $(du -sh "$folder" | cut -f 1)"
}

failures=0
# step NAME SECONDS COMMAND...
step() {
  local name=$1 seconds=$2 code=0 start=$SECONDS
  shift 2
  timeout "$seconds" "$@" || code=$?
  if [ "$code" -eq 0 ]; then
    say "$name: passed in $((SECONDS - start)) s"
  else
    say "$name: FAILED with exit code $code"
    failures=$((failures + 1))
  fi
}

run() {
  local folder=$1 code=0 tool
  if [ ! -x "$folder/gpu_tests" ]; then
    say "nothing prepared in $folder: tests/gpu/run.sh prepare"
    exit 1
  fi
  export LD_LIBRARY_PATH=$folder/lib:${LD_LIBRARY_PATH:-}
  export FSDPCTL_CUDA_PLUGIN=$folder/lib/libfsdpctl_cuda.so FSDPCTL_TEST_DATA=$folder/data
  local bench=$folder/fsdpctl_kernel_bench tests=$folder/gpu_tests
  "$bench" --device cuda --elements 1000 --tensors 1 --runs 1 > /dev/null || code=$?
  if [ "$code" -ne 0 ]; then
    say "the GPU cannot be used, so nothing was proven"
    exit "$code"
  fi
  step "twins" 90 "$tests" --gtest_brief=1
  if [ -x "$folder/sanitizer/compute-sanitizer" ]; then
    # Whole grids only: with one block the tools are slow and see less.
    for tool in memcheck racecheck initcheck synccheck; do
      step "compute-sanitizer $tool" 60 "$folder/sanitizer/compute-sanitizer" --tool "$tool" --error-exitcode 9 \
        "$tests" --gtest_brief=1 --gtest_filter='*/Cuda:-*EveryHalf*:*NarrowsTo*:*BetweenHalves*:*EveryMagnitude*'
    done
  else
    say "compute-sanitizer: FAILED, not there"
    failures=$((failures + 1))
  fi
  step "benchmark, 268M elements, BF16 gradients" 60 "$bench" --device cuda --elements 268435456 --tensors 300
  step "benchmark, 268M elements, FP32 gradients" 60 "$bench" --device cuda --elements 268435456 --tensors 300 --gradient float32
  step "benchmark, 10,000 tensors of 64 elements" 20 "$bench" --device cuda --elements 640000 --tensors 10000
  [ "$failures" -eq 0 ] || { say "$failures steps failed"; exit 1; }
  say "all steps passed"
}

if [ "${1:-}" = prepare ]; then
  prepare "$(realpath "${2:-$repository/build}")"
else
  run "$(realpath "${1:-$repository/build/gpu}")"
fi
