#!/usr/bin/env python3
"""Feeds every parser with made-up inputs, one parser after the other: `make fuzz`.

Each target runs until it has had a million inputs or ten minutes of CPU time.  A crash, a leak, a
law that does not hold, an input over 100 ms of CPU time or 1 GiB of memory ends it, and the input
lies in BUILD/fuzz/TARGET/.  What it finds interesting is kept there, too, and is where the next
campaign starts.  Prints a table; exits with 1 if anything was found.
"""

import argparse
import re
import resource
import subprocess
import sys
import time
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
BYTES_MAX = 4096  # Of an input: enough for some hundred actions.
MEMORY_MAX_MIB = 1024
SECONDS_OF_ONE_RUN = 120  # Each reads its corpus anew; between them CPU time is asked for.


def names() -> list[str]:
    return sorted(path.name for path in (FOLDER / "corpus").iterdir())


def cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def run_piece(target: str, build: Path, runs: int, seconds: int) -> tuple[int, str]:
    """One run of libFuzzer: its exit status and what it printed."""
    kept = build / "fuzz" / target
    (kept / "corpus").mkdir(parents=True, exist_ok=True)
    command = [
        str(build / "bin" / f"fuzz_{target}"),
        str(kept / "corpus"),
        str(FOLDER / "corpus" / target),
        f"-artifact_prefix={kept}/",
        f"-runs={runs}",
        f"-max_total_time={seconds}",
        f"-max_len={BYTES_MAX}",
        f"-rss_limit_mb={MEMORY_MAX_MIB}",
        "-timeout=30",  # Wall time, for what hangs; the target itself counts CPU time.
        "-print_final_stats=1",
    ]
    dictionary = FOLDER / "words" / f"{target}.dict"
    if dictionary.exists():
        command.append(f"-dict={dictionary}")
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    return done.returncode, done.stderr


def number(pattern: str, text: str) -> int:
    found = re.findall(pattern, text)
    return int(found[-1]) if found else 0


def run_target(target: str, build: Path, runs: int, cpu_minutes: float) -> bool:
    began, cpu_before = time.monotonic(), cpu_seconds()
    inputs, covered, status, printed = 0, 0, 0, ""
    while status == 0 and inputs < runs and cpu_seconds() - cpu_before < 60 * cpu_minutes:
        status, printed = run_piece(target, build, runs - inputs, SECONDS_OF_ONE_RUN)
        executed = number(r"stat::number_of_executed_units:\s*(\d+)", printed)
        if status == 0 and executed == 0:
            sys.exit(f"fuzz_{target} ran nothing:\n{printed}")
        inputs += executed
        covered = number(r"cov: (\d+)", printed) or covered
    cpu, wall = cpu_seconds() - cpu_before, time.monotonic() - began
    verdict = "nothing found" if status == 0 else f"FOUND, exit {status}"
    print(
        f"{target:22} {inputs:8} inputs {cpu:6.0f} s of CPU {wall:6.0f} s {covered:6} edges"
        f"  {verdict}",
        flush=True,
    )
    if status != 0:
        print(printed[-6000:], flush=True)
    return status == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=Path, help="folder of the preset fuzz, built")
    parser.add_argument("targets", nargs="*", default=names(), help="default: all")
    parser.add_argument("--runs", type=int, default=1_000_000, help="inputs per target")
    parser.add_argument("--cpu-minutes", type=float, default=10, help="per target")
    args = parser.parse_args()
    clean = [run_target(t, args.build, args.runs, args.cpu_minutes) for t in args.targets]
    sys.exit(0 if all(clean) else 1)


if __name__ == "__main__":
    main()
