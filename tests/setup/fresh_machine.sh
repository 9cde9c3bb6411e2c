#!/bin/sh
# The README's commands as on a machine where nothing was installed by hand: in a clean clone, with
# an empty home folder, and with no CUDA toolkit in sight.
#
#   tests/setup/fresh_machine.sh KIND FOLDER [TARGET]...    (root; minutes to an hour)
#
#   KIND     cuda: torch as pip finds it without any of its PIP_ variables; on x86-64 the build for
#            CUDA, 3 GB to download.  here: with the variables as they are.
#   FOLDER   must not exist; the clone, the home folder and the logs are made in it, and stay
#   TARGET   of make; default: demo test
#
# Prints figures: sizes, seconds, CPU seconds, and what the whole machine received.  Ends with the
# code of the first target that fails.
set -eu
usage() {
  echo "fresh_machine.sh: $1" >&2
  sed -n '2,14s/^# \{0,1\}//p' "$0" >&2
  exit 2
}

if [ "${FRESH_MACHINE_INSIDE:-}" != yes ]; then
  case ${1:-} in cuda | here) ;; *) usage "KIND is \"${1:-}\", must be cuda or here" ;; esac
  [ -n "${2:-}" ] || usage "FOLDER is missing"
  [ ! -e "$2" ] || usage "$2 exists: name a folder that does not"
  [ "$(id -u)" = 0 ] || usage "only root may hide folders"
  mkdir -p "$2/home" "$2/nothing"
  folder=$(cd "$2" && pwd)
  git clone --quiet "$(git -C "$(dirname "$0")" rev-parse --show-toplevel)" "$folder/penstock"
  FRESH_MACHINE_INSIDE=yes exec unshare --mount "$0" "$1" "$folder" "$@"
fi

kind=$1
folder=$2
shift 4 2>/dev/null || shift $#
[ $# -gt 0 ] || set -- demo test
mount --make-rprivate /
for cuda in /usr/local/cuda*; do
  [ ! -d "$cuda" ] || mount --bind "$folder/nothing" "$cuda"
done
IFS=:
for place in $PATH; do
  [ ! -f "$place/nvcc" ] || mount --bind /dev/null "$place/nvcc"
done
unset IFS
unset CUDA_HOME CUDA_PATH CUDACXX Torch_DIR TORCH PENSTOCK_PYTHON PYTHONPATH VIRTUAL_ENV CCACHE_DIR
[ "$kind" = here ] || unset PIP_FIND_LINKS PIP_EXTRA_INDEX_URL
export HOME="$folder/home" CCACHE_DISABLE=1
! command -v nvcc >/dev/null || usage "nvcc is still in PATH"
cd "$folder/penstock"
received_mb() {
  awk '$1 != "lo:" && NR > 2 { bytes += $2 } END { print int(bytes / 1e6) }' /proc/net/dev
}
for target in "$@"; do
  # CPU seconds of setup, compilers and tests alike.
  began=$(date +%s)
  before=$(received_mb)
  code=0
  bash -c "TIMEFORMAT='%R seconds, %U + %S CPU seconds'; time make $target" \
    >"$folder/$target.log" 2>&1 || code=$?
  echo "make $target: code $code, $(tail -n 1 "$folder/$target.log")," \
    "$(($(received_mb) - before)) MB received"
  if [ "$target" = demo ]; then
    steps=$(find runs -name metrics.jsonl | head -n 1)
    [ -z "$steps" ] ||
      echo "first step after at most $(($(stat -c %W "$steps") - began)) s, $(wc -l <"$steps") rows"
  fi
  [ "$code" = 0 ] || { tail -n 40 "$folder/$target.log" && exit "$code"; }
done
echo ".venv: $(du -sm .venv | cut -f1) MB, build: $(du -sm build | cut -f1) MB"
.venv/bin/python -c "import torch; print('torch', torch.__version__, 'CUDA', torch.version.cuda)"
