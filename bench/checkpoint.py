#!/usr/bin/env python3
"""What checkpoints cost: the stall of an asynchronous save, the disk's share, and the peers.

Runs bench_checkpoint once (how: bench/checkpoint.cpp), then penstock, DeepSpeed and torch DCP, in
turn, on the same state (bench/peers/checkpoint.py).  Prints JSON lines: the figures, and ratios and
their bars.  A ratio is that of medians.  Needs 10 GB on the disk of --folder.
"""

import argparse
import datetime
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PEERS = ROOT / "bench/.venv-peers/bin/python"
OWN = ROOT / ".venv/bin/python"


def run(command, **environment):
    done = subprocess.run(
        [str(word) for word in command],
        env={**os.environ, "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        sys.exit(f"{command} ended with {done.returncode}\n{done.stderr}")
    return json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))


def free_port():
    import socket

    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return str(listening.getsockname()[1])


def ratio(name, value, **bar):
    (kind, limit), *_ = bar.items()
    met = value <= limit if kind == "at_most" else value >= limit
    print(json.dumps({"ratio": name, "value": round(value, 4), **bar, "met": met}), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--blocks", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--alternations", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=None)
    given = parser.parse_args()
    facts = {"day": str(datetime.date.today()), "machine": platform.processor() or "x86_64"}
    sizes = {"width": given.width, "batch": given.batch, "cores": os.cpu_count()}
    print(json.dumps({**facts, **sizes}), flush=True)
    median = statistics.median
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        program = ROOT / "build/bench/bench_checkpoint"
        words = [folder, given.width, given.batch, given.blocks, given.repeats]
        found = run([program, *words])
        print(json.dumps(found), flush=True)
        blocks = zip(found["with_ms"], found["without_ms"], strict=True)
        ratio(
            "stall of a save every 10 steps", median([a / b for a, b in blocks]) - 1, at_most=0.02
        )
        shards = zip(found["shard_ms"], found["bare_shard_ms"], strict=True)
        ratio("what digests add to a shard", median([a / b for a, b in shards]) - 1, at_most=0.01)
        ratio(
            "a save, of the disk",
            median(found["write_ms"]) / median(found["save_ms"]),
            at_least=0.8,
        )
        ratio(
            "a load, of the disk", median(found["read_ms"]) / median(found["load_ms"]), at_least=0.8
        )
    if not PEERS.exists():
        return
    contenders = {"penstock": OWN, "deepspeed": PEERS, "dcp": PEERS}
    times = {name: {"save_ms": [], "load_ms": []} for name in contenders}
    for _ in range(given.alternations):
        for name in random.sample(sorted(contenders), len(contenders)):
            with tempfile.TemporaryDirectory(dir=given.folder) as folder:
                words = [contenders[name], ROOT / "bench/peers/checkpoint.py", name]
                port = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
                path = {"PYTHONPATH": str(ROOT / "build/python")} if name == "penstock" else {}
                found = run([*words, Path(folder) / "c", given.width, 3], **port, **path)
            for key, values in times[name].items():
                values.extend(found[key])
    for left in Path("/dev/shm").glob("deepspeed_allreduce_buffer_*"):
        left.unlink(missing_ok=True)
    for name, each in times.items():
        print(json.dumps({"contender": name, **each}), flush=True)
    for peer in ("deepspeed", "dcp"):
        ours = median(times["penstock"]["save_ms"]) + median(times["penstock"]["load_ms"])
        theirs = median(times[peer]["save_ms"]) + median(times[peer]["load_ms"])
        ratio(f"save and load, of {peer}", ours / theirs, at_most=1.0)


if __name__ == "__main__":
    main()
