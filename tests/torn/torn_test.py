"""A save that ends at any of its calls leaves whole checkpoints, with the new one or without.

torn_test.py SAVE DISK PENSTOCK: kills the program SAVE before each call that changes files, and
then loses all that was not flushed, too (DISK, disk.cpp).  Prints "N of N" for each.
Takes over 10 s: a process for each call of a save, twice.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from saves import Tools


def torn(tools: Tools, old: Path, step: int, call: int, **variables: str) -> str:
    """What is wrong after a save of `step`, beside steps 10 and 20, that ended before a call."""
    directory = old.with_name("torn")
    shutil.copytree(old, directory)
    try:
        result = tools.save(directory, step, 21, TORN_AT=str(call), **variables)
        if result.returncode != 99:
            return f"it ended with {result.returncode}: {result.stderr}"
        if wrong := tools.wrong_after_fault(directory, step):
            return wrong
        return tools.wrong_after_next_save(directory)
    finally:
        shutil.rmtree(directory)


def main() -> int:
    tools = Tools(*map(Path, sys.argv[1:4]))
    all_good = True
    for step in (30, 20):  # A new one, and one in the place of another.
        for power in ("", "lost"):
            with tempfile.TemporaryDirectory(prefix="penstock-test-") as name:
                old = Path(name).resolve() / "old"
                tools.make_old(old)
                calls = len(tools.calls_of(old, step))
                more = {"TORN_POWER": power} if power else {}
                good = 0
                for call in range(1, calls + 1):
                    wrong = torn(tools, old, step, call, **more)
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
