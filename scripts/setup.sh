#!/usr/bin/env bash
# Installs what fsdpctl is built and tested with. Safe to repeat: does nothing that is done already.
#
#   scripts/setup.sh packages     Debian packages (scripts/packages.txt); needs root only if some are missing
#   scripts/setup.sh torch        real PyTorch for the tests, in a virtual environment in the user's cache (about 5 GB)
#   scripts/setup.sh              both
#
# The user's own Python is never touched.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf 'setup: %s\n' "$*"; }
die() { printf 'setup: error: %s\n' "$*" >&2; exit 1; }

# ---- Debian packages

installed() {
  # A program or module that is there from elsewhere is as good as its package.
  case "$1" in
    g++ | cmake | make | pkg-config | ccache) command -v "$1" > /dev/null && return ;;
    ninja-build) command -v ninja > /dev/null && return ;;
    python3-venv) python3 -c 'import ensurepip, venv' 2> /dev/null && return ;;
  esac
  [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2> /dev/null)" = installed ]
}

setup_packages() {
  local names missing=()
  names=$(sed -e 's/#.*//' scripts/packages.txt | awk 'NF { print $1 }')
  if ! command -v dpkg-query > /dev/null; then
    say "this is not Debian, so nothing was checked; the build needs the equivalents of:" $names
    return
  fi
  for name in $names; do
    installed "$name" || missing+=("$name")
  done
  if [ ${#missing[@]} -eq 0 ]; then
    say "all packages are there"
    return
  fi
  if [ "$(id -u)" -ne 0 ]; then
    die "these packages are missing, and installing them needs root:
  sudo apt-get install --no-install-recommends ${missing[*]}"
  fi
  say "installing: ${missing[*]}"
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" > /dev/null
  say "packages installed"
}

# ---- real PyTorch

requirements=tests/torch-requirements.txt
cache=${XDG_CACHE_HOME:-$HOME/.cache}/fsdpctl
environment=$cache/torch-$(sed -n 's/^torch==//p' $requirements)

# Has exactly the pinned versions. With `import` also imports them, which takes seconds.
check_environment() {
  [ -x "$1/bin/python" ] && "$1/bin/python" - "$requirements" "${2:-}" << 'PYTHON' 2> /dev/null
import importlib, importlib.metadata, sys
pins = [line.strip().split("==") for line in open(sys.argv[1]) if "==" in line]
for name, version in pins:
    if importlib.metadata.version(name) != version:
        sys.exit(1)
    if sys.argv[2]:
        importlib.import_module(name)
PYTHON
}

setup_torch() {
  if check_environment "$environment"; then
    say "real PyTorch for the tests is there: $environment"
    return
  fi
  say "installing real PyTorch for the tests into $environment (about 5 GB, some minutes)"
  mkdir -p "$cache"
  local building
  building=$(mktemp -d "$environment.building-XXXXXX")
  # Built under another name and renamed when it works: what bears the final name is whole.
  if python3 -m venv "$building" &&
     "$building/bin/python" -m pip install --quiet --disable-pip-version-check -r $requirements &&
     check_environment "$building" import; then
    grep -rIl --null "$building" "$building/bin" "$building/pyvenv.cfg" | xargs -0 -r sed -i "s|$building|$environment|g"
    rm -rf "$environment"
    if mv -T "$building" "$environment" 2> /dev/null || check_environment "$environment"; then
      rm -rf "$building"
      say "real PyTorch installed"
      return
    fi
  fi
  rm -rf "$building"
  say "real PyTorch could not be installed (see above); the tests that need it will be reported as skipped"
}

case "${1:-all}" in
  packages) setup_packages ;;
  torch) setup_torch ;;
  all) setup_packages; setup_torch ;;
  *) die "unknown step '$1': packages or torch" ;;
esac
