#!/usr/bin/env bash
# Installs what fsdpctl is built and tested with. Safe to repeat: does nothing that is done already.
#
#   scripts/setup.sh packages     Debian packages (scripts/packages.txt); needs root only if some are missing
#   scripts/setup.sh cuda         nvcc for the CUDA plug-in, if there is none, in the user's cache (about 300 MB)
#   scripts/setup.sh libtorch     LibTorch for training, in the user's cache (540 MB to fetch, 490 MB kept)
#   scripts/setup.sh torch        real PyTorch for the tests, in a virtual environment in the user's cache (about 5 GB)
#   scripts/setup.sh              these four
#   scripts/setup.sh sanitizer    compute-sanitizer, for a machine with a GPU (tests/gpu/run.sh)
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
  export DEBIAN_FRONTEND=noninteractive
  # An installation that was interrupted must be finished before apt-get does anything else.
  [ -z "$(dpkg --audit)" ] || dpkg --configure -a > /dev/null
  apt-get update -qq || true   # without network, what was fetched before may do
  if ! apt-get install -y -qq --no-install-recommends "${missing[@]}" > /dev/null; then
    die "apt-get could not install these packages (see above). They are Debian 12's; elsewhere, or without network, install
  their equivalents (scripts/packages.txt says what each is for), then: make build"
  fi
  say "packages installed"
}

cache=${XDG_CACHE_HOME:-$HOME/.cache}/fsdpctl

# One set-up at a time works in the cache. What an interrupted one left unfinished is removed: it has gigabytes.
own_cache() {
  mkdir -p "$cache"
  exec 9> "$cache/setup.lock"
  if ! flock -n 9; then
    say "waiting for another set-up"
    flock 9
  fi
  rm -rf "$cache"/*.building-*
  trap 'rm -rf "$cache"/*.building-*' EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM
}

# ---- nvcc

toolkit=$cache/cuda-13.0   # where cmake/CudaPlugin.cmake looks, too

# As in cmake/CudaPlugin.cmake: release 13.0 or newer.
is_nvcc() { "$1" --version 2> /dev/null | grep -Eq 'release (1[3-9]|[2-9][0-9])\.'; }

# install_wheels FOLDER REQUIREMENTS PROGRAM: unpacks pinned wheels into FOLDER, all or nothing; PROGRAM is one of theirs.
install_wheels() {
  local building
  own_cache
  building=$(mktemp -d "$1.building-XXXXXX")
  if python3 -m venv "$building/pip" &&
     "$building/pip/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps \
         --target "$building/wheels" -r "$2" &&
     "$building/wheels/$3" --version > /dev/null; then
    rm -rf "$1"
    mv -T "$building/wheels" "$1"
  fi
  rm -rf "$building"
  [ -x "$1/$3" ]
}

setup_cuda() {
  local nvcc
  for nvcc in "${CUDA_PATH:-/usr/local/cuda}/bin/nvcc" nvcc "$toolkit/nvidia/cu13/bin/nvcc"; do
    if is_nvcc "$nvcc"; then
      say "nvcc is there: $(command -v "$nvcc")"
      return
    fi
  done
  say "installing nvcc into $toolkit (about 300 MB)"
  if install_wheels "$toolkit" scripts/cuda-requirements.txt nvidia/cu13/bin/nvcc; then
    say "nvcc installed"
  elif [ "${CI:-}" = true ]; then
    die "nvcc could not be installed (see above)"
  else
    say "nvcc could not be installed (see above); the build will leave the CUDA plug-in out"
  fi
}

# ---- compute-sanitizer

sanitizer=$cache/compute-sanitizer-13.0   # where tests/gpu/run.sh looks, too

setup_sanitizer() {
  if [ -x "$sanitizer/nvidia/cu13/bin/compute-sanitizer" ]; then
    say "compute-sanitizer is there: $sanitizer"
  elif install_wheels "$sanitizer" scripts/sanitizer-requirements.txt nvidia/cu13/bin/compute-sanitizer; then
    say "compute-sanitizer installed into $sanitizer"
  else
    die "compute-sanitizer could not be installed (see above)"
  fi
}

# ---- real PyTorch

requirements=tests/torch-requirements.txt
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
  own_cache
  if check_environment "$environment"; then
    say "it is there now"
    return
  fi
  local building
  building=$(mktemp -d "$environment.building-XXXXXX")
  # Built under another name and renamed when it works: what bears the final name is whole.
  if python3 -m venv "$building" &&
     "$building/bin/python" -m pip install --quiet --disable-pip-version-check -r $requirements &&
     check_environment "$building" import; then
    grep -rIl --null "$building" "$building/bin" "$building/pyvenv.cfg" | xargs -0 -r sed -i "s|$building|$environment|g"
    rm -rf "$environment"
    mv -T "$building" "$environment"
    say "real PyTorch installed"
    return
  fi
  rm -rf "$building"
  say "real PyTorch could not be installed (see above); the tests that need it will be reported as skipped"
}

# ---- LibTorch

libtorch=$cache/libtorch-$(sed -n 's/^torch==\([0-9.]*\) .*/\1/p' scripts/libtorch-requirements.txt)

# Unpacks from the wheels in directory $1 into directory $2 only what a CPU program is built and run with.
unpack_libtorch() {
  python3 - "$1" "$2" << 'PYTHON'
import pathlib, re, sys, zipfile
wanted = re.compile(r"torch/(lib/lib(torch_cpu|c10|gomp)\.so[.0-9]*|include/.*|version\.py)"
                    r"|nvidia/cu13/lib/lib(cupti|cudart)\.so\.13|(torch-[^/]*/)(licenses/)?LICENSE|torch-[^/]*/NOTICE")
for wheel in pathlib.Path(sys.argv[1]).glob("*.whl"):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(sys.argv[2], [name for name in archive.namelist() if wanted.fullmatch(name)])
PYTHON
}

setup_libtorch() {
  if [ -e "$libtorch/complete" ]; then
    say "LibTorch is there: $libtorch"
    return
  fi
  if [ "$(uname -sm)" != "Linux x86_64" ]; then
    say "LibTorch is fetched for Linux on x86-64 only; elsewhere: cmake -DLIBTORCH_ROOT=..., or build without training"
    return
  fi
  say "fetching LibTorch into $libtorch (540 MB)"
  own_cache
  local building platforms=(--platform manylinux2014_x86_64)
  building=$(mktemp -d "$libtorch.building-XXXXXX")
  for glibc in 2_28 2_27 2_26 2_25 2_24 2_17; do platforms+=(--platform "manylinux_${glibc}_x86_64"); done
  # pip refuses what has another hash. Built under another name and renamed when it is whole.
  if python3 -m venv "$building/pip" &&
     "$building/pip/bin/python" -m pip download --quiet --disable-pip-version-check --no-deps --require-hashes --no-cache-dir \
         --only-binary=:all: --python-version 3.11 --implementation cp --abi cp311 --abi none "${platforms[@]}" \
         -d "$building/wheels" -r scripts/libtorch-requirements.txt &&
     unpack_libtorch "$building/wheels" "$building/root" && touch "$building/root/complete"; then
    rm -rf "$libtorch"
    mv -T "$building/root" "$libtorch"
    rm -rf "$building"
    say "LibTorch installed"
    return
  fi
  rm -rf "$building"
  if [ "${CI:-}" = true ]; then die "LibTorch could not be fetched (see above)"; fi
  say "LibTorch could not be fetched (see above); the build will leave training out"
}

case "${1:-all}" in
  packages) setup_packages ;;
  cuda) setup_cuda ;;
  libtorch) setup_libtorch ;;
  torch) setup_torch ;;
  sanitizer) setup_sanitizer ;;
  all) setup_packages; setup_cuda; setup_libtorch; setup_torch ;;
  *) die "unknown step '$1': packages, cuda, libtorch, torch or sanitizer" ;;
esac
