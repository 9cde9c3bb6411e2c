#!/usr/bin/env python3
"""One long run with a fault every 15 s: a random rank is killed or stopped.

It must end with the loss curve of the same run undisturbed, bit for bit, and with its parameters
and optimizer states.  Neither the launcher nor its ranks may grow: their memory and their open
files are looked at before each fault, when the ranks of a start have trained for the same time.
PENSTOCK_SEED repeats the faults of an earlier one.  Needs the standard library.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import time
import unittest
from pathlib import Path

import comebacks
import support

HEARTBEAT_SECONDS = 3
GROWTH_KIB_MAX = 1024
# So slow, on two cores, that there are many faults.
MODEL = {"layers": 4, "hidden": 192, "heads": 4, "sequence_length": 64}


def resident_kib(pid: int) -> int:
    return int(Path(f"/proc/{pid}/status").read_text().split("VmRSS:")[1].split()[0])


class Long(comebacks.ComebackTest):
    steps = 1000
    every = 15.0
    generator = random.Random()

    def runTest(self) -> None:  # noqa: N802
        config = self.training(
            model=MODEL,
            train_batch_size=16,
            train_micro_batch_size_per_gpu=2,
            zero_optimization={"stage": 1},
            run={"steps": self.steps, "eval_batches": 1},
            checkpoint={"save_interval": 10},
            launch={"heartbeat_seconds": HEARTBEAT_SECONDS, "restarts": 20},
        )
        began = time.monotonic()
        self.assert_code(self.start_train(config, "whole").wait(3600), 0)
        print(f"undisturbed: {time.monotonic() - began:.0f} s", flush=True)
        began = time.monotonic()
        run = self.start_train(config, "disturbed")
        starts = 0
        seen: list[tuple[int, int, int, int]] = []
        self.await_checkpoint(run)
        while run.process.poll() is None:
            time.sleep(self.every)
            ranks = run.ranks()
            if run.process.poll() is not None or len(ranks) < 4:
                break
            seen.append(self.sizes(run.pid, list(ranks.values())))
            number = self.generator.choice((signal.SIGKILL, signal.SIGSTOP))
            os.kill(ranks[self.generator.randrange(4)], number)
            starts += 1
            run.await_text("penstock: resumed after step", starts)
        self.assert_code(run.wait(3600), 0)
        print(f"with {starts} faults: {time.monotonic() - began:.0f} s", flush=True)
        self.assertGreaterEqual(starts, 2, "the run was too short for faults")
        self.assert_came_back(run.output(), times=starts)
        self.assert_same(self.folder / "whole", run.directory)
        self.assert_nothing_left()
        for what, sizes in zip(
            ("launcher, KiB", "launcher, files", "ranks, KiB", "ranks, files"),
            zip(*seen, strict=True),
            strict=True,
        ):
            print(f"{what}: {' '.join(map(str, sizes))}", flush=True)
        first, last = seen[0], seen[-1]
        self.assertLess(last[0] - first[0], GROWTH_KIB_MAX, "the launcher grew")
        self.assertEqual(last[1], first[1], "the launcher has more files open")
        self.assertLess(last[2] - first[2], 4 * GROWTH_KIB_MAX, "ranks are larger than before")
        self.assertEqual(last[3], first[3], "the ranks have more files open")

    def sizes(self, launcher: int, ranks: list[int]) -> tuple[int, int, int, int]:
        return (
            resident_kib(launcher),
            len(support.open_files(launcher)),
            sum(resident_kib(pid) for pid in ranks),
            sum(len(support.open_files(pid)) for pid in ranks),
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=Long.steps)
    parser.add_argument("--every", type=float, default=Long.every, help="seconds between faults")
    options = parser.parse_args()
    Long.steps, Long.every = options.steps, options.every
    Long.generator = random.Random(support.SEED)
    result = unittest.TestResult()
    Long().run(result)
    for _, text in result.failures + result.errors:
        print(text, flush=True)
    verdict = "as if undisturbed" if result.wasSuccessful() else "NOT as if undisturbed"
    print(f"{verdict} (PENSTOCK_SEED={support.SEED})")
    return 0 if result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
