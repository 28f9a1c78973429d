#!/usr/bin/env bash
# Installs a build into a temporary prefix and uses what is there: program, man page, completions, CMake package.
#
#   check.sh BUILD SOURCE COMPILER
set -euo pipefail
build=$1 source=$2 compiler=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cmake --install "$build" --prefix "$work/prefix" > /dev/null
"$work/prefix/bin/fsdpctl" --version
for file in share/man/man1/fsdpctl.1 share/bash-completion/completions/fsdpctl share/zsh/site-functions/_fsdpctl \
            share/fish/vendor_completions.d/fsdpctl.fish; do
  [ -s "$work/prefix/$file" ] || { echo "missing: $file"; exit 1; }
done
# Nothing that is installed may remember where it was built.
if grep -rlF "$source" "$work/prefix/share" "$work/prefix/include" "$work/prefix"/lib*/cmake "$work/prefix"/lib/*/cmake 2> /dev/null; then
  echo "the files above name the source directory"
  exit 1
fi

cmake -S "$source/tests/install" -B "$work/consumer" -G Ninja -DCMAKE_PREFIX_PATH="$work/prefix" -DCMAKE_CXX_COMPILER="$compiler" > /dev/null
cmake --build "$work/consumer" > /dev/null
answer=$("$work/consumer/consumer" "$source/samples/dcp-fsdp2-w4")
echo "$answer"
[ "$answer" = "dcp, 28 tensors" ]
