#!/usr/bin/env bash
# Fails where a library defines anything of Gloo, as a class of the stub headers that is used by value would make it.
#
#   check_stub.sh LIBRARY
set -euo pipefail
symbols=$(nm -C "$1")
grep -q 'U c10d::ProcessGroupGloo::ProcessGroupGloo' <<< "$symbols" || { echo "this is not the library of the Gloo transport"; exit 1; }
if grep -E '(vtable|typeinfo)( name)? for (gloo::|c10d::ProcessGroupGloo)|[TtWVvBbDdRr] (gloo::|c10d::ProcessGroupGloo::GlooStore)' <<< "$symbols"; then
  echo "the symbols above must come from LibTorch"
  exit 1
fi
