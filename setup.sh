#!/bin/sh
# Prepares this checkout, so that a build can follow: libraries, torch, configuration.
#
#   ./setup.sh [PRESET]   PRESET: release (default), dev, asan, tsan; without torch: plan-only,
#                         asan-plan, fuzz (with clang)
#   ./setup.sh --jobs     prints how many compilers this machine can run at once
#
# `make` calls it before every build: what is done already costs a fraction of a second.
# Installs missing Debian packages when it may (root, or sudo that asks nothing), else prints the
# line to run and exits with 2.  Torch comes from the first of: PENSTOCK_PYTHON, Torch_DIR, what an
# earlier run chose, .venv, a python3 that has it, a new .venv.  What builds and tests the Python
# package goes into .venv, too.  SETUP_DRY_RUN=1 only prints.
set -eu
cd "$(dirname "$0")"

torch_version=2.13.0  # Installed into a new .venv.
torch_checked=2.13    # Taken from a python3 that nobody pointed at only if it is this one.
cmake_least=3.25
gcc_least=12
fuzz_clang=19  # As in the preset fuzz; libFuzzer comes with its libclang-rt.
chosen_torch=build/.penstock-torch
python_tools=tools/python_requirements.txt

say() { printf 'setup: %s\n' "$*" >&2; }
fail() {
  say "$@"
  exit 2
}
run() {
  if [ -n "${SETUP_DRY_RUN:-}" ]; then printf '+ %s\n' "$*"; else "$@"; fi
}

# One compiler costs up to 1.5 GiB below the torch line.
jobs() {
  cpus=$(nproc 2>/dev/null || getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1)
  {
    cat /proc/meminfo 2>/dev/null
    for limit in /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes; do
      if [ -r "$limit" ]; then echo "limit: $(cat "$limit")"; fi
    done
  } | awk -v cpus="$cpus" '
    /^MemAvailable:/ { bytes = $2 * 1024 }
    /^limit: [0-9]/ { if (!limit || $2 < limit) limit = $2 }
    END {
      if (limit && (!bytes || limit < bytes)) bytes = limit
      jobs = bytes ? int(bytes / (1.5 * 1024 * 1024 * 1024)) : cpus
      if (jobs > cpus) jobs = cpus
      print jobs < 1 ? 1 : jobs
    }'
}

# Prints the version of the torch that Python $1 finds, and " cuda VERSION" behind it where it is
# built for CUDA; fails if there is none to build against.  Looks without importing, which would
# take seconds.
torch_of() {
  "$1" - <<'PYTHON' 2>/dev/null
import importlib.util, pathlib, re, sys
spec = importlib.util.find_spec("torch")
if spec is None or not spec.submodule_search_locations:
    sys.exit(1)
folder = pathlib.Path(spec.submodule_search_locations[0])
if not (folder / "share/cmake/Torch/TorchConfig.cmake").is_file():
    sys.exit(1)
text = (folder / "version.py").read_text()
cuda = re.search(r"^cuda\b[^=]*= '([^']+)'", text, re.MULTILINE)
print(re.search(r"__version__ = '([^']+)'", text)[1] + (f" cuda {cuda[1]}" if cuda else ""))
PYTHON
}

# Sets `torch` to "python=PATH" or "torch_dir=PATH", or leaves it empty when a .venv must be made.
choose_torch() {
  torch=
  found=
  if [ -n "${PENSTOCK_PYTHON:-}" ]; then
    asked="PENSTOCK_PYTHON=$PENSTOCK_PYTHON"
    python=$(command -v "$PENSTOCK_PYTHON") || fail "$asked: no such program"
    case $python in /*) ;; *) python=$PWD/$python ;; esac
    found=$(torch_of "$python") || fail "$asked has no torch to build against"
    torch="python=$python"
    return
  fi
  if [ -n "${Torch_DIR:-}" ]; then
    [ -f "$Torch_DIR/TorchConfig.cmake" ] || fail "Torch_DIR=$Torch_DIR holds no TorchConfig.cmake"
    torch="torch_dir=$(cd "$Torch_DIR" && pwd)"
    return
  fi
  if [ -r "$chosen_torch" ]; then
    torch=$(cat "$chosen_torch")
    case $torch in
      python=*) found=$(torch_of "${torch#python=}") && return ;;
      torch_dir=*) [ -f "${torch#torch_dir=}/TorchConfig.cmake" ] && return ;;
    esac
    torch=
  fi
  if [ -x .venv/bin/python ] && found=$(torch_of .venv/bin/python); then
    torch="python=$PWD/.venv/bin/python"
    return
  fi
  if [ ! -d .venv ] && python=$(command -v python3) && found=$(torch_of "$python"); then
    case $found in
      "$torch_checked" | "$torch_checked".*) torch="python=$python" ;;
      *) say "$python has torch $found, penstock is checked with $torch_checked: making a .venv;" \
        "PENSTOCK_PYTHON=$python uses it all the same" ;;
    esac
  fi
}

# Asks the compiler, without including anything: its version, and which libraries it cannot see.
ask_compiler() {
  flags=
  for prefix in $(printf '%s' "${CMAKE_PREFIX_PATH:-}" | tr ':;' '  '); do
    flags="$flags -I$prefix/include"
  done
  # shellcheck disable=SC2086  # The flags are words.
  "${CXX:-g++}" $flags -std=c++20 -E -P -x c++ - <<'CPP'
#if defined(__GNUC__) && !defined(__clang__)
gcc __GNUC__
#endif
#if !__has_include(<nlohmann/json.hpp>)
missing nlohmann-json3-dev
#endif
#if !__has_include(<CLI/CLI.hpp>)
missing libcli11-dev
#endif
#if !__has_include(<gtest/gtest.h>)
missing libgtest-dev
#endif
CPP
}

has_libfuzzer() {
  command -v "clang++-$fuzz_clang" >/dev/null || return 1
  for library in "$("clang++-$fuzz_clang" -print-resource-dir)"/lib/*/libclang_rt.fuzzer*; do
    if [ -e "$library" ]; then return 0; fi
  done
  return 1
}

has_python_headers() {
  python3 -c 'import pathlib, sys, sysconfig
sys.exit(not pathlib.Path(sysconfig.get_path("include"), "Python.h").is_file())' 2>/dev/null
}

missing_packages() {
  command -v cmake >/dev/null || echo cmake
  command -v make >/dev/null || echo make
  command -v python3 >/dev/null || echo python3
  if command -v "${CXX:-g++}" >/dev/null; then
    ask_compiler | sed -n 's/^missing //p'
  else
    echo g++ nlohmann-json3-dev libcli11-dev libgtest-dev
  fi
  if [ "$preset" = fuzz ] && ! has_libfuzzer; then
    echo "clang-$fuzz_clang libclang-rt-$fuzz_clang-dev"
  fi
  if [ -n "$needs_torch" ] && [ -z "$torch" ]; then
    python3 -c 'import ensurepip, venv' 2>/dev/null || echo python3-venv
  fi
}

install_packages() {
  required=$(missing_packages | tr '\n' ' ')
  # Faster builds, the launcher that the tests try beside torchrun and our own, the Python package.
  optional=
  if [ ! -f "$stamp" ]; then
    command -v ccache >/dev/null || optional=ccache
    [ -z "$needs_torch" ] || command -v mpirun >/dev/null || optional="$optional openmpi-bin"
    [ -z "$needs_torch" ] || has_python_headers || optional="$optional python3-dev"
  fi
  [ -n "$required$optional" ] || return 0
  sudo=
  if [ "$(id -u)" != 0 ]; then sudo=sudo; fi
  line="${sudo:+sudo }apt-get update && ${sudo:+sudo }apt-get install -y ${required% }"
  if ! command -v apt-get >/dev/null || { [ -n "$sudo" ] && ! sudo -n true 2>/dev/null; }; then
    [ -n "$required" ] || return 0
    if command -v apt-get >/dev/null; then fail "packages are missing; run: $line"; fi
    fail "missing, under Debian's names: ${required% }; install them, then run this again"
  fi
  say "installing $required$optional"
  # shellcheck disable=SC2086  # Package names are words.
  run $sudo apt-get -qq update &&
    run $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends \
      $required $optional || {
    [ -z "$required" ] || fail "the packages could not be installed; run: $line"
    say "could not be installed, going on without: $optional"
  }
  [ -z "${SETUP_DRY_RUN:-}" ] || return 0
  required=$(missing_packages | tr '\n' ' ')
  [ -z "$required" ] || fail "still missing after the installation: $required"
}

# Succeeds when version $1 is at least $2, by major and minor number.
at_least() {
  printf '%s %s\n' "$1" "$2" | awk '{
    split($1, a, ".")
    split($2, b, ".")
    exit !(a[1] > b[1] || a[1] == b[1] && a[2] >= b[2])
  }'
}

check_versions() {
  command -v cmake >/dev/null || return 0  # Only a dry run comes here without it.
  found_cmake=$(cmake --version | awk 'NR == 1 { print $3 }')
  at_least "$found_cmake" "$cmake_least" ||
    fail "cmake $found_cmake is too old: $cmake_least or newer is needed"
  found_gcc=$(ask_compiler | sed -n 's/^gcc //p')
  [ -z "$found_gcc" ] || at_least "$found_gcc" "$gcc_least" ||
    fail "${CXX:-g++} $found_gcc is too old: $gcc_least or newer is needed (CXX names another)"
}

make_venv() {
  if ! { [ -x .venv/bin/python ] && .venv/bin/python -m pip --version >/dev/null 2>&1; }; then
    python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
      fail "torch $torch_version needs Python 3.10 or newer; PENSTOCK_PYTHON may name another"
    say "making .venv"
    run python3 -m venv --clear .venv
  fi
  say "installing torch $torch_version into .venv"
  run .venv/bin/python -m pip install --disable-pip-version-check "torch==$torch_version" ||
    fail "torch could not be installed; run this again, or let PENSTOCK_PYTHON name one with it"
  torch="python=$PWD/.venv/bin/python"
  found=$torch_version
  [ -n "${SETUP_DRY_RUN:-}" ] || found=$(torch_of .venv/bin/python) ||
    fail "the torch in .venv holds no CMake files; remove .venv and run this again"
}

# CMake ends in an error of its own where a torch for CUDA meets no toolkit.
check_cuda() {
  case $found in *" cuda "*) ;; *) return 0 ;; esac
  ! command -v nvcc >/dev/null || return 0
  [ ! -x "${CUDA_HOME:-${CUDA_PATH:-/usr/local/cuda}}/bin/nvcc" ] || return 0
  fail "torch $found is built for CUDA, and building against it takes the CUDA toolkit, which is" \
    "not here (no nvcc). penstock runs on CPUs: install torch's build for CPUs into .venv, by the" \
    "pip line that PyTorch's own site has for it, or name one by PENSTOCK_PYTHON or Torch_DIR;" \
    "or install the toolkit"
}

# What builds and tests the Python package; never into a Python that is not ours.
install_python_tools() {
  [ "$torch" = "python=$PWD/.venv/bin/python" ] || return 0
  installed=.venv/.penstock-tools
  if [ -r "$installed" ] && [ "$(cat "$installed")" = "$(cat "$python_tools")" ]; then return; fi
  say "installing the tools of the Python package into .venv"
  run .venv/bin/python -m pip install --quiet --disable-pip-version-check -r "$python_tools" || {
    say "could not be installed; going on without the tests of the Python package"
    return 0
  }
  [ -n "${SETUP_DRY_RUN:-}" ] || cat "$python_tools" >"$installed"
}

configure() {
  launcher=
  if command -v ccache >/dev/null; then
    # Without this sloppiness every compilation with a precompiled header misses the cache.
    launcher='env;CCACHE_SLOPPINESS=pch_defines,time_macros;ccache'
  fi
  wanted="source=$PWD compiler=${CXX:-} $torch version=$found launcher=$launcher"
  set --
  if [ -f "$stamp" ] && [ "$(cat "$stamp")" != "$wanted" ]; then
    set -- --fresh  # Else what was found in another torch would stay in the cache.
  elif [ -f "$stamp" ] && [ -f "$folder/Makefile" ]; then
    return
  fi
  case $torch in
    python=*) set -- "$@" "-DPENSTOCK_PYTHON=${torch#python=}" ;;
    torch_dir=*) set -- "$@" "-DTorch_DIR=${torch#torch_dir=}" ;;
  esac
  if [ -z "${SETUP_DRY_RUN:-}" ]; then
    mkdir -p "$folder" "$(dirname "$chosen_torch")"
    printf '%s\n' "$wanted" >"$stamp"
    if [ -n "$torch" ]; then printf '%s\n' "$torch" >"$chosen_torch"; fi
  fi
  run cmake --preset "$preset" "$@" "-DCMAKE_CXX_COMPILER_LAUNCHER=$launcher"
}

preset=${1:-release}
case $preset in
  --jobs)
    jobs
    exit
    ;;
  release) folder=build ;;
  plan-only) folder=build-plan ;;
  dev | asan | tsan | asan-plan | fuzz) folder=build-$preset ;;
  *) fail "unknown preset $preset: release, dev, asan, tsan, plan-only, asan-plan or fuzz" ;;
esac
case $preset in
  plan-only | asan-plan | fuzz) needs_torch= ;;
  *) needs_torch=yes ;;
esac
stamp=$folder/.penstock-setup
torch=
found=
if [ -n "$needs_torch" ] && command -v python3 >/dev/null; then choose_torch; fi
install_packages
check_versions
if [ -n "$needs_torch" ] && [ -z "$torch" ]; then make_venv; fi
if [ -n "$needs_torch" ]; then
  check_cuda
  install_python_tools
fi
configure
