#!/usr/bin/env python3
"""Pipeline benchmarks: penstock against the bare Gloo loop, torch and DeepSpeed.

Every contender is a program of its own (two ranks, one thread each).  One alternation runs each of
them once, in a fresh order, and takes the median of its steps; the figures compared are the lower
quartiles over the alternations, because a shared machine only ever adds time.  Prints one JSON line
a case and contender, then one a ratio, with the bar it is judged by.

The peers run if bench/setup_peers.sh has installed them (`make bench-peers`).
"""

import argparse
import json
import os
import platform
import random
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PEERS = ROOT / "bench" / ".venv-peers" / "bin" / "python"
SMALL = ["--width", "8", "--batch", "32", "--microbatches", "32"]
LARGE = ["--width", "512", "--batch", "256", "--microbatches", "8"]

# (case, arguments, contenders, [(over, under, at most)]): the ratio over / under and its bar.
CASES = [
    ("d8/1f1b", [*SMALL, "--schedule", "1f1b"], ["penstock", "bare", "torch"],
     [("penstock", "bare", 1.25), ("penstock", "torch", 1 / 1.6)]),
    ("d8/gpipe", [*SMALL, "--schedule", "gpipe"], ["penstock", "torch"],
     [("penstock", "torch", 1 / 1.6)]),
    ("d8/1f1b/sgd", [*SMALL, "--schedule", "1f1b", "--sgd"], ["penstock", "deepspeed", "torch"],
     [("penstock", "deepspeed", 1 / 1.6), ("penstock", "torch", 1 / 1.6)]),
    ("d512/1f1b", [*LARGE, "--schedule", "1f1b"], ["penstock", "bare", "torch"],
     [("penstock", "bare", 1.05), ("penstock", "torch", 1.0)]),
    ("d512/gpipe", [*LARGE, "--schedule", "gpipe"], ["penstock", "torch"],
     [("penstock", "torch", 1.0)]),
    ("d512/1f1b/sgd", [*LARGE, "--schedule", "1f1b", "--sgd"], ["penstock", "deepspeed", "torch"],
     [("penstock", "deepspeed", 1.0), ("penstock", "torch", 1.0)]),
]  # fmt: skip


def command_of(contender: str, build: Path) -> list[str] | None:
    """The words that start a contender, or None where it is not installed."""
    programs = {"penstock": "bench_pipeline", "bare": "bench_bare_loop"}
    if contender in programs:
        return [str(build / "bench" / programs[contender])]
    if not PEERS.exists():
        return None
    script = {"torch": "torch_pipelining.py", "deepspeed": "deepspeed_pipeline.py"}[contender]
    return [str(PEERS), str(ROOT / "bench" / "peers" / script)]


def run_once(command: list[str], arguments: list[str], steps: int) -> dict:
    words = [*command, *arguments, "--steps", str(steps)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode != 0 or not lines:
        sys.exit(f"{' '.join(words)} failed ({done.returncode}):\n{done.stdout}{done.stderr}")
    return json.loads(lines[-1])


def lower_quartile(values: list[float]) -> float:
    return statistics.quantiles(values, n=4, method="inclusive")[0]


def spread(values: list[float]) -> dict:
    return {
        "lower_quartile_ms": round(lower_quartile(values), 3),
        "median_ms": round(statistics.median(values), 3),
        "min_ms": round(min(values), 3),
        "max_ms": round(max(values), 3),
    }


def measure(case, build: Path, alternations: int, steps: int) -> list[dict]:
    name, arguments, contenders, ratios = case
    commands = {c: command_of(c, build) for c in contenders}
    present = [c for c in contenders if commands[c]]
    for contender in set(contenders) - set(present):
        print(f"# {name}: {contender} is not installed, run `make bench-peers`", file=sys.stderr)
    medians: dict[str, list[float]] = {c: [] for c in present}
    for _ in range(alternations):
        for contender in random.sample(present, len(present)):
            result = run_once(commands[contender], arguments, steps)
            medians[contender].append(result["median_ms"])
            planned = result.get("planned_activations")
            if planned is not None and result["peak_activations"] != planned:
                alive = result["peak_activations"]
                sys.exit(f"{name}: {alive} activations alive, {planned} planned")
    lines = [{"case": name, "contender": c, **spread(medians[c])} for c in present]
    for over, under, bar in ratios:
        if over in medians and under in medians:
            ratio = lower_quartile(medians[over]) / lower_quartile(medians[under])
            lines.append({
                "case": name,
                "ratio": f"{over}/{under}",
                "value": round(ratio, 3),
                "at_most": round(bar, 3),
                "met": ratio <= bar,
            })  # fmt: skip
    return lines


def remove_deepspeed_buffers() -> None:
    """DeepSpeed leaves its all-reduce buffers in shared memory."""
    for path in Path("/dev/shm").glob("deepspeed_allreduce_buffer_*"):
        path.unlink()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=Path, default=ROOT / "build")
    parser.add_argument("--alternations", type=int, default=12)
    parser.add_argument("--steps", type=int, default=30, help="timed steps of one run")
    parser.add_argument("--case", help="only cases whose name contains this")
    args = parser.parse_args()
    commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"],
                            capture_output=True, text=True).stdout.strip()  # fmt: skip
    print(json.dumps({"commit": commit, "machine": platform.machine(), "cores": os.cpu_count(),
                      "alternations": args.alternations, "steps": args.steps}))  # fmt: skip
    try:
        for case in CASES:
            if args.case and args.case not in case[0]:
                continue
            for line in measure(case, args.build, args.alternations, args.steps):
                print(json.dumps(line), flush=True)
    finally:
        remove_deepspeed_buffers()


if __name__ == "__main__":
    main()
