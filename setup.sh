#!/bin/sh
# Prepares this checkout, so that a build can follow: libraries, torch, configuration.
#
#   ./setup.sh [PRESET]   PRESET: release (default), dev, asan, tsan; without torch: plan-only,
#                         asan-plan, fuzz (with clang)
#   ./setup.sh --jobs     prints how many compilers this machine can run at once
#   ./setup.sh --python-headers PYTHON   fails, in a line, where extension modules cannot be built
#
# `make` calls it before every build: what is done already costs a fraction of a second.
# Installs missing Debian packages when it may (root, or sudo that asks nothing), else prints the
# line to run and exits with 2, as for all that it cannot mend.  Torch comes from the first of:
# TORCH, PENSTOCK_PYTHON, Torch_DIR, what an earlier run chose, .venv, a python3 that has it, a new
# .venv.  TORCH=cpu installs the build for CPUs into .venv, TORCH=2.14.1 that version, TORCH=PATH
# names a Python that has torch, as PENSTOCK_PYTHON does.  What builds and tests the Python package
# goes into .venv, too.  SETUP_DRY_RUN=1 only prints.
set -eu
cd "$(dirname "$0")"

torch_version=2.13.0  # Installed into a new .venv.
torch_checked=2.13    # Taken from a python3 that nobody pointed at only if it is this one.
torch_least=2.11
cmake_least=3.25
gcc_least=12
fuzz_clang=19  # As in the preset fuzz; libFuzzer comes with its libclang-rt.
chosen_torch=build/.penstock-torch
unfinished=.venv/.penstock-unfinished  # There while torch is being installed into .venv.
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

# Prints the version of the torch that Python $1 finds, " cuda VERSION" behind it where it is built
# for CUDA, and " abi 0" where it has the C++ ABI of before C++11; fails if there is none to build
# against.  Looks without importing, which would take seconds.
torch_of() {
  case $1 in *.venv/bin/python) [ ! -e "$unfinished" ] || return 1 ;; esac
  "$1" - <<'PYTHON' 2>/dev/null
import importlib.util, pathlib, re, sys
spec = importlib.util.find_spec("torch")
if spec is None or not spec.submodule_search_locations:
    sys.exit(1)
folder = pathlib.Path(spec.submodule_search_locations[0])
config = folder / "share/cmake/Torch/TorchConfig.cmake"
if not config.is_file():
    sys.exit(1)
text = (folder / "version.py").read_text()
cuda = re.search(r"^cuda\b[^=]*= '([^']+)'", text, re.MULTILINE)
old_abi = "_GLIBCXX_USE_CXX11_ABI=0" in config.read_text()
print(
    re.search(r"__version__ = '([^']+)'", text)[1]
    + (f" cuda {cuda[1]}" if cuda else "")
    + (" abi 0" if old_abi else "")
)
PYTHON
}

# Sets `torch` to Python $2, which $1 has named, or fails.
choose_python() {
  python=$(command -v "$2") || fail "$1=$2: no such program"
  case $python in /*) ;; *) python=$PWD/$python ;; esac
  found=$(torch_of "$python") || fail "$1=$2 has no torch to build against"
  torch="python=$python"
}

# Sets `torch` to "python=PATH" or "torch_dir=PATH", or leaves it empty when a .venv must be made or
# filled.
choose_torch() {
  torch=
  found=
  case ${TORCH:-} in
    '') ;;
    cpu)
      if [ -x .venv/bin/python ] && found=$(torch_of .venv/bin/python); then
        case $found in *" cuda "*) ;; *) torch="python=$PWD/.venv/bin/python" ;; esac
      fi
      return
      ;;
    [0-9]*)
      torch_version=$TORCH
      if [ -x .venv/bin/python ] && found=$(torch_of .venv/bin/python); then
        case $found in
          "$TORCH" | "$TORCH"[+\ ]*) torch="python=$PWD/.venv/bin/python" ;;
        esac
      fi
      return
      ;;
    *)
      choose_python TORCH "$TORCH"
      return
      ;;
  esac
  if [ -n "${PENSTOCK_PYTHON:-}" ]; then
    choose_python PENSTOCK_PYTHON "$PENSTOCK_PYTHON"
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

# A torch that somebody named, and that cannot be built against.
check_torch() {
  case $torch in python=*) ;; *) return 0 ;; esac
  at_least "${found%% *}" "$torch_least" ||
    fail "torch ${found%% *} of ${torch#python=} is too old: $torch_least or newer is needed;" \
      "TORCH=$torch_version installs one into .venv"
  case $found in
    *" abi 0") fail "torch ${found%% *} of ${torch#python=} has another C++ ABI than this" \
      "compiler's libraries (_GLIBCXX_USE_CXX11_ABI=0); TORCH=$torch_version installs one into" \
      ".venv" ;;
  esac
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
#if !__has_include(<xxhash.h>)
missing libxxhash-dev
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
  "${1:-python3}" -c 'import pathlib, sys, sysconfig
sys.exit(not pathlib.Path(sysconfig.get_path("include"), "Python.h").is_file())' 2>/dev/null
}

missing_packages() {
  command -v cmake >/dev/null || echo cmake
  command -v make >/dev/null || echo make
  command -v python3 >/dev/null || echo python3
  if command -v "${CXX:-g++}" >/dev/null; then
    ask_compiler | sed -n 's/^missing //p'
  else
    echo g++ nlohmann-json3-dev libcli11-dev libgtest-dev libxxhash-dev
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

has_nvidia() { command -v nvidia-smi >/dev/null || [ -e /dev/nvidiactl ]; }

# What pip would install for torch $1: "cuda", "cpu", or "" where this pip cannot say.  Fails where
# there is none to install.
ask_pip() {
  answer=$(.venv/bin/python -m pip install --disable-pip-version-check --quiet --retries 1 \
    --dry-run --ignore-installed --no-deps --report - "torch==$1" 2>&1) || {
    case $answer in
      *"from versions: none"*)
        fail "pip finds no torch at all: is there a network? TORCH=PATH names a Python that has" \
          "torch"
        ;;
      *"from versions:"*)
        [ "${TORCH:-}" != cpu ] || fail "pip finds no build of torch $torch_version for CPUs: set" \
          "PIP_EXTRA_INDEX_URL to PyTorch's index for CPUs, which its site names under \"Get" \
          "started\", and run this again"
        fail "pip finds no torch $torch_version for this Python; TORCH=VERSION names another"
        ;;
    esac
    return 0
  }
  case $answer in
    *'"requires_dist"'*nvidia-* | *'"requires_dist"'*cuda-toolkit*) echo cuda ;;
    *'"requires_dist"'*) echo cpu ;;
  esac
}

# Fails where $2 MB are more than the disk of folder $1 has free.
check_space() {
  command -v df >/dev/null || return 0
  free=$(df -Pk "$1" | awk 'NR == 2 { print int($4 / 1024) }')
  [ -z "$free" ] || [ "$free" -ge "$2" ] || fail "torch $torch_version takes $2 MB while it is" \
    "installed, and the disk of $1 has $free MB free$3"
}

# Installs torch into .venv, which is made, or made anew where an earlier run left it half made.
make_venv() {
  if [ -e "$unfinished" ] ||
    ! { [ -x .venv/bin/python ] && .venv/bin/python -m pip --version >/dev/null 2>&1; }; then
    python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
      fail "torch $torch_version needs Python 3.10 or newer; PENSTOCK_PYTHON may name another"
    say "making .venv"
    run python3 -m venv --clear .venv || fail ".venv could not be made in $PWD; is there space," \
      "and may this user write there?"
  fi
  wanted=$torch_version
  if [ "${TORCH:-}" = cpu ]; then wanted=$torch_version+cpu; fi
  kind=$(ask_pip "$wanted") || exit 2
  if [ "${TORCH:-}" = cpu ]; then kind=cpu; fi
  if [ "$kind" != cpu ]; then
    check_space . 9000 "; the build for CPUs takes 1500: TORCH=cpu"
    has_nvidia || say "no NVIDIA device here, and pip's torch is built for CUDA: 3 GB to" \
      "download, 5 GB in .venv. The build for CPUs is a tenth of that: interrupt this, and run" \
      "the same command with TORCH=cpu"
  else
    check_space . 1500 ""
  fi
  say "installing torch $wanted into .venv"
  [ -n "${SETUP_DRY_RUN:-}" ] || : >"$unfinished"
  run .venv/bin/python -m pip install --disable-pip-version-check "torch==$wanted" ||
    fail "torch could not be installed; run this again, or let PENSTOCK_PYTHON name one with it"
  [ -n "${SETUP_DRY_RUN:-}" ] || rm -f "$unfinished"
  torch="python=$PWD/.venv/bin/python"
  found=$wanted
  [ -n "${SETUP_DRY_RUN:-}" ] || found=$(torch_of .venv/bin/python) ||
    fail "the torch in .venv holds no CMake files; remove .venv and run this again"
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
  --python-headers)
    has_python_headers "$2" || fail "the Python package cannot be built: $2 has no Python.h" \
      "(Debian: apt-get install python3-dev; another Python: PENSTOCK_PYTHON=PATH)"
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
  check_torch
  install_python_tools
fi
configure
