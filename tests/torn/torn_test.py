"""A save that ends at any of its calls leaves whole checkpoints, with the new one or without.

torn_test.py SAVE DISK PENSTOCK: kills the program SAVE before each call that changes files, and
then loses all that was not flushed, too (DISK, disk.cpp).  Prints "N of N" for each.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

SAVE, DISK, PENSTOCK = sys.argv[1:4]


def save(directory: Path, step: int, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "TORN_FOLDER": str(directory), **variables}
    if variables:
        environment["LD_PRELOAD"] = DISK
    words = [SAVE, str(directory), str(step)]
    return subprocess.run(words, env=environment, capture_output=True, text=True, check=False)


def steps_in(directory: Path) -> list[int]:
    names = (re.fullmatch(r"step-(\d{8})", path.name) for path in directory.iterdir())
    return sorted(int(name[1]) for name in names if name)


def is_whole(directory: Path) -> str:
    """Why one of the checkpoints is not; else empty."""
    words = [PENSTOCK, "checkpoint", "verify", str(directory)]
    result = subprocess.run(words, capture_output=True, text=True, check=False)
    return "" if result.returncode == 0 else result.stdout + result.stderr


def torn(folder: Path, step: int, call: int, **variables: str) -> str:
    """What is wrong after a save of `step`, beside steps 10 and 20, that ended before a call."""
    directory = folder / f"at-{call}"
    directory.mkdir()
    for old in (10, 20):
        save(directory, old)
    result = save(directory, step, TORN_AT=str(call), **variables)
    if result.returncode != 99:
        return f"it ended with {result.returncode}: {result.stderr}"
    there = steps_in(directory)
    allowed = [[10, 20], [10, 20, step], [20, step]] if step != 20 else [[10, 20]]
    if there not in allowed:
        return f"there are steps {there}"
    if problem := is_whole(directory):
        return problem
    if save(directory, 40).returncode != 0:
        return "the next save fails"
    left = sorted(path.name for path in directory.iterdir())
    newest = ["step-00000040"] if step == 20 else []
    if left[-1:] != (newest or ["step-00000040"]) or any("." in name for name in left):
        return f"after the next save there are {left}"
    return is_whole(directory)


def main() -> int:
    all_good = True
    for step in (30, 20):  # A new one, and one in the place of another.
        for power in ("", "lost"):
            with tempfile.TemporaryDirectory(prefix="penstock-test-") as name:
                folder = Path(name).resolve()
                counted = folder / "counted"
                counted.mkdir()
                for old in (10, 20):
                    save(counted, old)
                count = folder / "count"
                save(counted, step, TORN_COUNT=str(count))
                calls = int(count.read_text())
                more = {"TORN_POWER": power} if power else {}
                good = 0
                for call in range(1, calls + 1):
                    wrong = torn(folder, step, call, **more)
                    good += not wrong
                    if wrong:
                        print(f"step {step}, call {call}, power {power or 'kept'}: {wrong}")
                what = "and unflushed bytes lost" if power else "killed"
                place = "a new step" if step == 30 else "a step in the place of another"
                print(f"{place}, {what}: {good} of {calls} calls leave whole checkpoints")
                all_good = all_good and good == calls and calls > 10
    return 0 if all_good else 1


if __name__ == "__main__":
    sys.exit(main())
