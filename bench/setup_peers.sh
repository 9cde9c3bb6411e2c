#!/bin/sh
# Installs what `make bench` compares penstock with into bench/.venv-peers: torch's own pipelining
# and DeepSpeed's, at the versions that docs/benchmarks.md names.  Idempotent.
set -eu
cd "$(dirname "$0")"
python=${PYTHON:-python3}
if [ ! -x .venv-peers/bin/python ]; then "$python" -m venv .venv-peers; fi
.venv-peers/bin/python -m pip install --quiet torch==2.13.0 numpy
.venv-peers/bin/python -m pip install --quiet transformers==5.23.0 peft==0.21.2
DS_BUILD_OPS=0 .venv-peers/bin/python -m pip install --quiet deepspeed==0.19.8
DS_ACCELERATOR=cpu .venv-peers/bin/python -c '
import deepspeed, torch
print("peers: torch", torch.__version__, "deepspeed", deepspeed.__version__)'
