#!/usr/bin/env python3
"""Planning benchmarks: penstock against torch's Python, its largest size, and cost against size.

Compare: interleaved 1F1B, the compute order generated, messages added, verified and lowered to a
plan per rank, against torch's constructor, which generates, validates and adds messages.  All are
warm processes that plan once when asked; they are asked in turn, in a fresh order each time, and
the figure compared is the median of wall times.  One of ours keeps the memory it freed, the other
(penstock_cold) gives it back and faults it in again, as the first planning of a process does.
Large: one planning and simulation, with its time and memory.  Fit: CPU time over sizes, and the
exponent of actions that fits it best.
Prints JSON lines.  torch runs if a Python has it (--python, default: .venv or bench/.venv-peers).
"""

import argparse
import json
import math
import os
import platform
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PHASES = ["generate_s", "messages_s", "verify_s", "lower_s"]
COMPARED = (64, 4, 256)  # Ranks, stages per rank, microbatches.
LARGE = (1024, 2, 4096)
LARGE_SECONDS_MAX, LARGE_GIB_MAX = 60, 8e9 / 2**30
AT_LEAST = 100  # Times as fast as torch.
# Sizes from 24 thousand to 13 million actions; ranks and microbatches grow in turn.
FITTED = [(16, 2, 128), (16, 2, 512), (64, 2, 512), (64, 2, 2048), (256, 2, 2048), (256, 2, 4096)]


class Planner:
    """A process that plans one schedule for each line it is sent."""

    def __init__(self, command: list[str], sizes: tuple[int, int, int]):
        self.process = subprocess.Popen(
            [*command, *map(str, sizes)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def plan(self) -> dict:
        self.process.stdin.write("plan\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"{self.process.args} ended with {self.process.wait()}")
        return json.loads(line)

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()


def ours(build: Path, *options: str) -> list[str]:
    return [str(build / "bench" / "bench_planning"), *options, "interleaved_1f1b"]


def torch_command(python: Path | None) -> list[str] | None:
    candidates = (
        [python] if python else [ROOT / "bench/.venv-peers/bin/python", ROOT / ".venv/bin/python"]
    )
    for candidate in candidates:
        if candidate.exists():
            return [str(candidate), "-W", "ignore", str(ROOT / "bench/peers/torch_planning.py")]
    return None


def spread(values: list[float]) -> dict:
    return {
        "median_ms": round(1000 * statistics.median(values), 3),
        "min_ms": round(1000 * min(values), 3),
        "max_ms": round(1000 * max(values), 3),
    }


def compare(build: Path, python: Path | None, repetitions: int) -> list[dict]:
    commands = {
        "penstock": ours(build),
        "penstock_cold": ours(build, "--cold"),
        "torch": torch_command(python),
    }
    if not commands["torch"]:
        print("# torch is not installed, run `make bench-peers`", file=sys.stderr)
        del commands["torch"]
    planners = {name: Planner(command, COMPARED) for name, command in commands.items()}
    for planner in planners.values():
        planner.plan()  # Warms it up.
    results: dict[str, list[dict]] = {name: [] for name in planners}
    for _ in range(repetitions):
        for name in random.sample(list(planners), len(planners)):
            results[name].append(planners[name].plan())
    for planner in planners.values():
        planner.close()
    for result in results["penstock"] + results["penstock_cold"]:
        result["seconds"] = sum(result[phase] for phase in PHASES)
    lines = []
    for name, repeated in results.items():
        line = {"case": "compare", "contender": name, "actions": repeated[0]["actions"]}
        line |= spread([result["seconds"] for result in repeated])
        cpu = statistics.median(result["cpu_s"] for result in repeated)
        lines.append(line | {"median_cpu_ms": round(1000 * cpu, 3)})
        if name != "torch":
            for phase in PHASES:
                median = statistics.median(result[phase] for result in repeated)
                lines[-1][phase.replace("_s", "_ms")] = round(1000 * median, 3)
    if "torch" in results:
        medians = {line["contender"]: line for line in lines}
        for contender in ("penstock", "penstock_cold"):
            value = medians["torch"]["median_ms"] / medians[contender]["median_ms"]
            lines.append({
                "case": "compare", "ratio": f"torch/{contender}", "value": round(value, 1),
                "at_least": AT_LEAST, "met": value >= AT_LEAST,
            })  # fmt: skip
    return lines


def once(build: Path, sizes: tuple[int, int, int]) -> dict:
    planner = Planner(ours(build), sizes)
    start = time.monotonic()
    result = planner.plan()
    result["wall_s"] = round(time.monotonic() - start, 3)
    planner.close()
    return result


def large(build: Path) -> list[dict]:
    result = once(build, LARGE)
    met = result["wall_s"] < LARGE_SECONDS_MAX and result["peak_gib"] < LARGE_GIB_MAX
    bars = {"seconds_below": LARGE_SECONDS_MAX, "gib_below": round(LARGE_GIB_MAX, 2)}
    return [{"case": "large", **result, **bars, "met": met}]


def fit(build: Path, repetitions: int) -> list[dict]:
    """CPU time of all phases, simulation included, as a power of the number of actions."""
    planners = {sizes: Planner(ours(build), sizes) for sizes in FITTED}
    points: dict[tuple, list[tuple[int, float]]] = {sizes: [] for sizes in FITTED}
    for _ in range(repetitions):
        for sizes in random.sample(FITTED, len(FITTED)):
            result = planners[sizes].plan()
            points[sizes].append((result["actions"], result["all_cpu_s"]))
    for planner in planners.values():
        planner.close()
    lines, xs, ys = [], [], []
    for sizes, measured in points.items():
        actions, cpu = measured[0][0], min(seconds for _, seconds in measured)
        xs.append(math.log(actions))
        ys.append(math.log(cpu))
        lines.append({
            "case": "fit", "sizes": list(sizes), "actions": actions, "cpu_s": round(cpu, 4),
            "ns_per_action": round(1e9 * cpu / actions, 1),
        })  # fmt: skip
    slope, intercept = statistics.linear_regression(xs, ys)
    r2 = statistics.correlation(xs, ys) ** 2
    seconds = round(math.exp(intercept) * 1e9, 3)
    lines.append({
        "case": "fit", "exponent": round(slope, 3), "r_squared": round(r2, 4),
        "ns_times_actions_to_the_exponent": seconds,
    })  # fmt: skip
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=Path, default=ROOT / "build")
    parser.add_argument("--python", type=Path, help="a Python with torch 2.13")
    parser.add_argument("--repetitions", type=int, default=9)
    parser.add_argument("--case", choices=["compare", "large", "fit"])
    args = parser.parse_args()
    commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"],
                            capture_output=True, text=True).stdout.strip()  # fmt: skip
    print(json.dumps({"commit": commit, "machine": platform.machine(), "cores": os.cpu_count(),
                      "repetitions": args.repetitions}))  # fmt: skip
    cases = {
        "compare": lambda: compare(args.build, args.python, args.repetitions),
        "large": lambda: large(args.build),
        "fit": lambda: fit(args.build, 3),
    }
    for name, measure in cases.items():
        if args.case in (None, name):
            for line in measure():
                print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
