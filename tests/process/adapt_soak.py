#!/usr/bin/env python3
"""Runs that adapt, of random layouts and random slow actions: each has the bits of one that stays.

Every run changes its program when it may (adapt_gain 0), with slow actions that begin and end at
random steps.  Some are killed at a random step, or while programs change, and come back.  Losses,
parameters and optimizer states have to be those of the same run without any of it.

Prints "N of N" and how often programs changed; exits with 1 after any failure. PENSTOCK_SEED
repeats an earlier one.  Needs the standard library.
"""

from __future__ import annotations

import argparse
import random
import sys
import unittest
from typing import ClassVar

import comebacks
import support

LAYOUTS = [
    ("1f1b", 4, 1, 0),
    ("gpipe", 4, 1, 0),
    ("interleaved_1f1b", 2, 1, 0),
    ("zbv", 2, 1, 0),
    ("zb_h1", 4, 1, 0),
    ("1f1b", 2, 2, 1),
    ("1f1b", 2, 2, 3),
    ("gpipe", 2, 2, 2),
]
STEPS = 24


class Adapted(comebacks.ComebackTest):
    """One run of a layout."""

    layout = LAYOUTS[0]
    generator = random.Random()
    changes: ClassVar[list[int]] = []

    def runTest(self) -> None:  # noqa: N802
        schedule, pipe, data, stage = self.layout
        values = {
            "gradient_accumulation_steps": 8 // data,
            "model": {"layers": 6, "hidden": 16},
            "mesh": {"pipe": pipe, "data": data},
            "zero_optimization": {"stage": stage},
            "checkpoint": {"save_interval": 5},
            "run": {"steps": STEPS},
            "schedule": {"name": schedule},
        }
        whole = self.undisturbed(self.training(**values))
        windows = self.generator.randint(1, 4)
        values["schedule"] |= {"adapt": True, "window_steps": windows, "adapt_gain": 0}
        config = self.training("adapting.json", **values)
        run = self.folder / "adapted"
        result = self.train(config, "--run", run, *self.slow(pipe * data), *self.death(pipe * data))
        self.assert_code(result, 0)
        self.assertEqual(support.losses(run), support.losses(whole))
        result = self.checkpoint("diff", whole, run)
        self.assert_code(result, 0)
        self.assertRegex(result.out, r"\d+ tensors are equal, 0 are not")
        self.changes.append(len(comebacks.events_of(run, "program_changed")))
        self.assert_nothing_left()

    def slow(self, ranks: int) -> list[str]:
        words = []
        for _ in range(self.generator.randint(1, 6)):
            first = self.generator.randint(1, STEPS)
            fault = (
                f"slow:rank={self.generator.randrange(ranks)},step={first}"
                f",at={self.generator.choice('FBIW')}"
                f",seconds={self.generator.choice([0.001, 0.003, 0.01])}"
                f",until={self.generator.randint(first, STEPS)}"
            )
            words += ["--inject", fault]
        return words

    def death(self, ranks: int) -> list[str]:
        rank = self.generator.randrange(ranks)
        where = self.generator.choice(
            ["", "at=program", f"step={self.generator.randint(1, STEPS)},at=F"]
        )
        return ["--inject", f"kill:rank={rank},{where}"] if where else []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=40)
    times = parser.parse_args().times
    Adapted.generator = random.Random(support.SEED)
    good = 0
    for i in range(times):
        Adapted.layout = LAYOUTS[i % len(LAYOUTS)]
        result = unittest.TestResult()
        Adapted().run(result)
        good += result.wasSuccessful()
        for _, text in result.failures + result.errors:
            print(f"run {i + 1}, {Adapted.layout}:\n{text}", flush=True)
    print(f"programs changed {sum(Adapted.changes)} times")
    print(f"adapted bit for bit: {good} of {times} (PENSTOCK_SEED={support.SEED})")
    return 0 if good == times else 1


if __name__ == "__main__":
    sys.exit(main())
