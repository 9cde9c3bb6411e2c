#!/usr/bin/env python3
"""Kills a random rank of a run at a random moment, many times; each run must come back.

Layouts take turns.  Every run is killed once or twice: from outside, at any moment after its first
checkpoint, or by itself, at an instruction of a step, in the update, or inside a save.  It has to
end alone, with the losses, parameters and optimizer states of the same run undisturbed, bit for
bit.  Prints "N of N" with the times from a kill to its report and to the
next finished step.

PENSTOCK_SEED repeats the moments of an earlier one.  Needs the standard library.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import statistics
import sys
import time
import unittest
from typing import ClassVar

import comebacks
import support

LAYOUTS = [(2, 1, 0), (1, 2, 1), (1, 2, 2), (1, 2, 3), (2, 2, 0), (2, 2, 1), (2, 2, 3)]


class Comeback(comebacks.ComebackTest):
    """One run of a layout, and what it took."""

    layout = LAYOUTS[0]
    generator = random.Random()
    detected: ClassVar[list[float]] = []
    resumed: ClassVar[list[float]] = []

    def runTest(self) -> None:  # noqa: N802
        pipe, data, stage = self.layout
        config = self.training(
            mesh={"pipe": pipe, "data": data},
            zero_optimization={"stage": stage},
            checkpoint={"asynchronous": self.generator.random() < 0.5},
        )
        whole = self.undisturbed(config)
        by_itself = self.generator.random() < 0.5
        times = self.generator.randint(1, 2)
        self.resumes = 0
        run = self.start_train(config, "killed", *(self.faults(times) if by_itself else []))
        if not by_itself:
            self.await_checkpoint(run)
        for kills in range(1, times + 1):
            if by_itself:
                run.await_text("penstock: injected: kill", kills)
                began = time.monotonic()
            else:
                time.sleep(self.generator.uniform(0, 1))
                ranks = run.ranks()
                if run.process.poll() is not None or len(ranks) < pipe * data:
                    break  # It was faster.
                began = time.monotonic()
                os.kill(ranks[self.generator.randrange(pipe * data)], signal.SIGKILL)
            self.await_the_next_step(run, kills, began)
        self.assert_code(run.wait(), 0)
        self.assert_same(whole, run.directory)
        left = [path.name for path in (run.directory / "checkpoints").iterdir()]
        self.assertEqual([name for name in left if "." in name], [], "unfinished checkpoints")
        self.assert_nothing_left()

    def faults(self, times: int) -> list[str]:
        """One in each of the first starts, at places that every layout has."""
        pipe, data, _ = self.layout
        words: list[str] = []
        for start in range(1, times + 1):
            step = self.generator.randint(80 * start - 38, 80 * start)
            rank = self.generator.randrange(pipe * data)
            at = self.generator.choice(("F", "B", "REDUCE_GRAD", "loss", "update", "save"))
            if at == "REDUCE_GRAD" and data == 1:
                at = "SEND_F" if rank < data else "SEND_B"
            if at == "save":
                step = 80 * start
                at += f",after={self.generator.uniform(0, 0.02):.4f}"
            words += ["--inject", f"kill:rank={rank},step={step},at={at},start={start}"]
        return words

    def await_the_next_step(self, run: support.Started, kills: int, began: float) -> None:
        run.await_text("starting the run again", kills)
        self.detected.append(time.monotonic() - began)
        # A run that is killed before its first checkpoint is complete begins anew.
        self.resumes += any(run.directory.glob("checkpoints/step-????????"))
        if self.resumes:
            run.await_text("penstock: resumed after step", self.resumes)
        lines = len(support.raw_lines(run.directory))
        while len(support.raw_lines(run.directory)) <= lines and run.process.poll() is None:
            time.sleep(0.005)
        self.resumed.append(time.monotonic() - began)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=50)
    times = parser.parse_args().times
    Comeback.generator = random.Random(support.SEED)
    good = 0
    for i in range(times):
        Comeback.layout = LAYOUTS[i % len(LAYOUTS)]
        result = unittest.TestResult()
        Comeback().run(result)
        good += result.wasSuccessful()
        for _, text in result.failures + result.errors:
            print(f"run {i + 1}, pipe, data, ZeRO {Comeback.layout}:\n{text}", flush=True)
    for what, seconds in (("reported", Comeback.detected), ("a new step", Comeback.resumed)):
        if seconds:
            middle = statistics.median(seconds)
            print(f"{len(seconds)} kills, {what}: {middle:.2f} s, at most {max(seconds):.2f} s")
    print(f"came back bit for bit: {good} of {times} (PENSTOCK_SEED={support.SEED})")
    return 0 if good == times else 1


if __name__ == "__main__":
    sys.exit(main())
