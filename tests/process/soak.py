#!/usr/bin/env python3
"""Kills and stops every rank of a 2 x 2 run in turn, many times, and counts how often all was well.

Then many runs at once, so that the ranks of each are late in every order: all must end with 0.
Then long runs, whose ranks must not grow.  Then every fault of tests/faults, many times.

Prints "N of N" and the longest time to the end of all processes; exits with 1 after any failure.
PENSTOCK_SEED repeats the moments of an earlier soak.  Needs the standard library.
"""

from __future__ import annotations

import argparse
import random
import signal
import statistics
import subprocess
import sys
import time
import unittest
from pathlib import Path

import failures
import support

# Until all processes are gone, after a rank was killed or stopped.  Only here a test is timed: the
# others may run beside anything.
KILL_SECONDS_MAX = 5.0
STOP_SECONDS_MAX = failures.HEARTBEAT_SECONDS + 2.0


def one(rank: int, number: signal.Signals, generator: random.Random) -> tuple[float | None, str]:
    """The seconds to the end, and what was wrong; no seconds when the run did not get there."""
    seconds = None

    class Once(failures.FailureTest):
        def runTest(self) -> None:  # noqa: N802
            nonlocal seconds
            seconds = self.fail_rank(rank, number, generator, generator.uniform(0, 0.5)).seconds

    result = unittest.TestResult()
    Once().run(result)
    return seconds, "\n".join(text for _, text in result.failures + result.errors)


def soak(number: signal.Signals, times: int, limit: float, generator: random.Random) -> bool:
    all_good = True
    for rank in range(4 if times else 0):
        good, taken = 0, []
        for i in range(times):
            seconds, wrong = one(rank, number, generator)
            if seconds is not None:
                taken.append(seconds)
                if seconds > limit:
                    wrong += f"over after {seconds:.2f} s, later than {limit:g} s"
            good += not wrong
            if wrong:
                print(f"{number.name} {i + 1} of rank {rank}:\n{wrong}", flush=True)
        timing = f"{statistics.median(taken):.2f} s, at most {max(taken):.2f} s" if taken else "-"
        print(
            f"{number.name} of rank {rank}: {good} of {times}; over after {timing} ({limit:g} s)",
            flush=True,
        )
        all_good = all_good and good == times
    return all_good


def soak_ends(times: int) -> bool:
    """Six short runs at a time; a rank that leaves too early fails another."""
    at_once, good = 6, 0

    class Batch(support.ProcessTest):
        def runTest(self) -> None:  # noqa: N802
            nonlocal good
            config = self.config()
            started = [self.start_train(config, f"run-{i}") for i in range(at_once)]
            for result in [run.wait() for run in started]:
                good += result.code == 0
                if result.code != 0:
                    print(result.err, flush=True)
            self.assert_nothing_left()

    batches = -(-times // at_once)
    whole = [Batch().run() for _ in range(batches)]
    print(f"runs to the end, {at_once} at once: {good} of {batches * at_once}", flush=True)
    return good == batches * at_once and all(result.wasSuccessful() for result in whole)


# Allocators settle within some thousand steps, by less; a leak of 600 bytes a step is more.
GROWTH_KIB_MAX = 1024
SETTLING_STEPS = 1000


def resident_kib(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0])


def soak_memory(steps: int) -> bool:
    """What every rank's memory grows by in so many steps, once it has settled."""
    good = True

    class Long(support.ProcessTest):
        def grow(self, schedule: str, transport: str) -> list[int]:
            config = self.config(
                schedule={"name": schedule},
                launch={"transport": transport},
                run={"steps": SETTLING_STEPS + steps + 200, "eval_batches": 1},
            )
            run = self.start_train(config, f"{schedule}-{transport}")
            run.await_step(SETTLING_STEPS, patience=600)
            pids = run.ranks().values()
            before = [resident_kib(pid) for pid in pids]
            run.await_step(SETTLING_STEPS + steps, patience=600)
            grown = [resident_kib(pid) - kib for pid, kib in zip(pids, before, strict=True)]
            self.end_all()
            run.process.wait()
            return grown

        def runTest(self) -> None:  # noqa: N802
            nonlocal good
            for schedule, transport in (("1f1b", "shm"), ("zbv", "tcp"), ("zb_h1", "gloo")):
                grown = self.grow(schedule, transport)
                good = good and max(grown) < GROWTH_KIB_MAX
                print(
                    f"{schedule} over {transport}, {steps} steps: the ranks grew by"
                    f" {', '.join(map(str, grown))} KiB (below {GROWTH_KIB_MAX})",
                    flush=True,
                )

    result = unittest.TestResult()
    Long().run(result)
    for _, text in result.failures + result.errors:
        print(text, flush=True)
    return good and result.wasSuccessful()


def soak_faults(each: int) -> bool:
    """Each fault on each rank over each transport: tests/faults/faults.cpp."""
    return subprocess.run([support.BUILD / "bin" / "faults", str(each)]).returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20, help="of each rank (default 20)")
    parser.add_argument("--stops", type=int, default=20, help="of each rank (default 20)")
    parser.add_argument("--ends", type=int, default=90, help="runs to the end (default 90)")
    parser.add_argument("--steps", type=int, default=2000, help="of long runs (default 2000)")
    parser.add_argument("--faults", type=int, default=4, help="of each (default 4)")
    options = parser.parse_args()
    if not support.PENSTOCK.exists():
        print(f"there is no {support.PENSTOCK}: run `make` first, or set PENSTOCK_BUILD")
        return 1
    print(f"PENSTOCK_SEED={support.SEED}", flush=True)
    generator = random.Random(support.SEED)
    began = time.monotonic()
    killed = soak(signal.SIGKILL, options.kills, KILL_SECONDS_MAX, generator)
    stopped = soak(signal.SIGSTOP, options.stops, STOP_SECONDS_MAX, generator)
    ended = soak_ends(options.ends)
    level = soak_memory(options.steps) if options.steps else True
    faultless = soak_faults(options.faults) if options.faults else True
    all_well = killed and stopped and ended and level and faultless
    print(f"{'all well' if all_well else 'NOT well'}, {time.monotonic() - began:.0f} s")
    return 0 if all_well else 1


if __name__ == "__main__":
    sys.exit(main())
