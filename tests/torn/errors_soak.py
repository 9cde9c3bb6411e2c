#!/usr/bin/env python3
"""Lets every call of a save fail, one at a time: the save says where and why, and nothing is lost.

errors_soak.py [--program] [--runs N]: first the program torn_save, each call with each error, once
and from then on; then N runs of `penstock train` with two ranks, where a random call of a random
rank fails.  With "warn" such a run goes on with the metrics of an undisturbed one; with "stop" it
ends with code 3.  Then runs in real places: a full disk, a read-only one, limits of a process.
Prints "N of N" for each.  PENSTOCK_SEED repeats the moments of an earlier one; PENSTOCK_BUILD has
the programs.  Needs root for file systems of its own, and says so where it is not.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
import unittest
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "process"))

import failing_disks
import support
from saves import ERRORS, Tools


def failures_of_program(tools: Tools) -> Iterator[tuple[str, str]]:
    """Each case of torn_save, and what was wrong in it."""
    for step in (30, 20):  # A new one, and one in the place of another.
        with tempfile.TemporaryDirectory(prefix="penstock-test-") as name:
            old = Path(name).resolve() / "old"
            tools.make_old(old)
            calls = tools.calls_of(old, step)
            for error in ERRORS:
                for goes_on in (False, True):
                    for number, call in enumerate(calls, 1):
                        wrong = tools.wrong_after_error(old, step, calls, number, error, goes_on)
                        often = "from then on" if goes_on else "once"
                        yield f"step {step}, {error} {often}, call {number} {call}", wrong


def soak_program(tools: Tools) -> bool:
    good = total = 0
    for case, wrong in failures_of_program(tools):
        total += 1
        good += not wrong
        if wrong:
            print(f"{case}: {wrong}", flush=True)
    print(f"torn_save, each call and error: {good} of {total}", flush=True)
    return good == total > 100


def soak_runs(tools: Tools, times: int, generator: random.Random) -> bool:
    """Any twenty cases in a row have each error with each rank, once and from then on."""
    good = 0
    failing_disks.FailingDisk.disk = tools.disk
    for i in range(times):
        failing_disks.FailingDisk.case = failing_disks.drawn(i, generator)
        test = failing_disks.FailingDisk()
        result = unittest.TestResult()
        test.run(result)
        good += result.wasSuccessful()
        for _, text in result.failures + result.errors:
            print(f"run {i + 1}, {test.case}, {test.call}:\n{text}", flush=True)
    print(f"runs with a failing disk: {good} of {times}", flush=True)
    return good == times


def soak_places() -> bool:
    cases = unittest.defaultTestLoader.loadTestsFromTestCase(failing_disks.Places)
    result = unittest.TestResult()
    cases.run(result)
    for _, reason in result.skipped:
        print(f"skipped: {reason}", flush=True)
    for _, text in result.failures + result.errors:
        print(text, flush=True)
    bad = len(result.failures + result.errors)
    total = result.testsRun - len(result.skipped)
    print(f"runs in places that cannot be written: {total - bad} of {total}", flush=True)
    return bad == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--save", type=Path, default=support.BUILD / "bin" / "torn_save")
    parser.add_argument("--disk", type=Path, default=support.BUILD / "tests" / "libtorn_disk.so")
    parser.add_argument("--runs", type=int, default=60, help="of penstock train (default 60)")
    parser.add_argument("--program", action="store_true", help="torn_save alone")
    options = parser.parse_args()
    tools = Tools(options.save.resolve(), options.disk.resolve(), support.PENSTOCK)
    for program in (tools.save_program, tools.disk, tools.penstock):
        if not program.exists():
            print(f"there is no {program}: run `make` first, or set PENSTOCK_BUILD")
            return 1
    print(f"PENSTOCK_SEED={support.SEED}", flush=True)
    began = time.monotonic()
    well = soak_program(tools)
    if not options.program:
        well = soak_runs(tools, options.runs, random.Random(support.SEED)) and well
        well = soak_places() and well
    print(f"{'all well' if well else 'NOT well'}, {time.monotonic() - began:.0f} s")
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
