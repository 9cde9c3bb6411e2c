#!/usr/bin/env python3
"""Stops each rank at each place of a run, and inside its saves; each stop must be told in time.

The run ends by the heartbeat, with code 5, and names the rank that was stopped.  Prints "N of N"
with the times from the stop to the end of all processes.  Needs the standard library.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
import unittest
from typing import ClassVar

import comebacks
import support

HEARTBEAT_SECONDS = 2
# From the stop to the end of all processes: the heartbeat, the others' notes, and their ends.
SECONDS_MAX = HEARTBEAT_SECONDS + 5.0
LAYOUTS = [(2, 2, 1), (2, 1, 0), (1, 2, 3)]
OPS = ("F", "B", "SEND_F", "RECV_F", "SEND_B", "RECV_B")
TIMES_IN_A_SAVE = 4


class Stop(comebacks.ComebackTest):
    """One run of a layout with one stop."""

    layout = LAYOUTS[0]
    rank = 0
    at = ""
    generator = random.Random()
    not_there = 0
    seconds: ClassVar[list[float]] = []

    def runTest(self) -> None:  # noqa: N802
        pipe, data, stage = self.layout
        config = self.training(
            mesh={"pipe": pipe, "data": data},
            zero_optimization={"stage": stage},
            checkpoint={"save_interval": 2, "asynchronous": self.generator.random() < 0.5},
            launch={"heartbeat_seconds": HEARTBEAT_SECONDS, "restarts": 0},
            run={"steps": 4, "eval_interval": 2, "eval_batches": 1, "sample_bytes": 2},
        )
        more: list[object] = ["--save", "weights"]
        if self.at == "resume":
            self.assert_code(self.train(config, "--run", "run"), 0)
            more += ["--resume", "auto", "--steps", "8"]
        run = self.start_train(
            config, "run", *more, "--inject", f"stop:rank={self.rank},at={self.at}"
        )
        while "injected: stop" not in run.output() and run.process.poll() is None:
            time.sleep(0.005)
        began = time.monotonic()
        result = run.wait()
        if "not injected" in result.err:
            Stop.not_there += 1
            self.assert_code(result, 0)
            return
        run.await_end_of_all()
        taken = time.monotonic() - began
        self.seconds.append(taken)
        self.assert_code(result, 5)
        self.assertRegex(result.err, rf"penstock: rank {self.rank} stopped answering for")
        self.assertLess(taken, SECONDS_MAX, result.err)
        self.assert_nothing_left()
        if any((run.directory / "checkpoints").glob("step-????????")):
            self.assert_code(self.checkpoint("verify", run.directory), 0)


def places() -> list[str]:
    words: list[str] = []

    class Ask(comebacks.ComebackTest):
        def runTest(self) -> None:  # noqa: N802
            refusal = self.train(self.training(), "--inject", "stop:rank=0,at=?").text
            words.extend(comebacks.places(refusal))

    Ask().run(unittest.TestResult())
    return words


def main() -> int:
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    Stop.generator = random.Random(support.SEED)
    good = all_runs = 0
    for Stop.layout in LAYOUTS:
        pipe, data, _ = Stop.layout
        here = [*places(), *OPS]
        for _ in range(TIMES_IN_A_SAVE):
            here.append(f"save,after={Stop.generator.uniform(0, 0.02):.4f}")
        for Stop.at in here:
            for Stop.rank in range(pipe * data):
                result = unittest.TestResult()
                Stop().run(result)
                all_runs += 1
                good += result.wasSuccessful()
                for _, text in result.failures + result.errors:
                    print(f"{Stop.layout}, rank {Stop.rank} at {Stop.at}:\n{text}", flush=True)
        print(f"pipe, data, ZeRO {Stop.layout}: {good} of {all_runs} so far", flush=True)
    middle = statistics.median(Stop.seconds)
    longest = max(Stop.seconds)
    print(f"{len(Stop.seconds)} stops, over after {middle:.2f} s, at most {longest:.2f} s")
    print(f"{Stop.not_there} runs had no such place, and ended well")
    print(f"told, and nothing left: {good} of {all_runs} (PENSTOCK_SEED={support.SEED})")
    return 0 if good == all_runs else 1


if __name__ == "__main__":
    sys.exit(main())
