#!/usr/bin/env python3
"""Has DeepSpeed itself write checkpoints, imports them, and goes on: a command, no test.

Usage: imports.py [--record FILE], after `make bench-peers`.  Prints by kind the largest relative
difference of the next three losses.  --record writes the checkpoints of four kinds to an archive,
tests/parity/deepspeed_checkpoints.tar.xz, which the tests read.
"""

import argparse
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
PEER = ROOT / "bench/.venv-peers/bin/python"
OWN = ROOT / ".venv/bin/python"
KINDS = ["zero1", "zero2", "zero3", "pipe0", "pipe1", "pipe1bf16"]
RECORDED = ["zero1", "zero3", "pipe0", "pipe1"]
TRAINS = Path(__file__).with_name("trains.py")


def run(python, *words):
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "build/python")}
    ranks = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--rdzv-backend", "c10d"]
    alone = ["--rdzv-endpoint", "127.0.0.1:0", str(TRAINS)]
    is_run = words[0] != "-m"
    command = [str(python), *([*ranks, *alone] if is_run else []), *map(str, words)]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}\n{done.stdout}{done.stderr}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--record", type=Path)
    record = parser.parse_args().record
    if not PEER.exists():
        sys.exit("imports.py: DeepSpeed is not there: make bench-peers")
    with tempfile.TemporaryDirectory() as name:
        for kind in KINDS:
            folder, into = Path(name, kind), Path(name, "imported", kind)
            folder.mkdir()
            run(PEER, "deepspeed", kind, folder)
            run(OWN, "-m", "penstock", "checkpoint", "import", folder, into)
            run(OWN, "penstock", kind, folder, into)
            different = [float((into / f"different{rank}").read_text()) for rank in (0, 1)]
            print(f"{kind}: the next three losses differ by {max(different):.2g}", flush=True)
            for script in folder.glob("*.py"):  # Of DeepSpeed, beside its checkpoints.
                script.unlink()
        if record is not None:
            with tarfile.open(record, "w:xz") as archive:
                for kind in RECORDED:
                    archive.add(Path(name, kind), kind)
    for left in Path("/dev/shm").glob("deepspeed_allreduce_buffer_*"):
        left.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
