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
from concurrent.futures import ThreadPoolExecutor

import comebacks
import support

HEARTBEAT_SECONDS = 5
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
    asynchronous = False
    seconds: float | None = None  # None: there was no such place.

    def runTest(self) -> None:  # noqa: N802
        pipe, data, stage = self.layout
        config = self.training(
            mesh={"pipe": pipe, "data": data},
            zero_optimization={"stage": stage},
            checkpoint={"save_interval": 2, "asynchronous": self.asynchronous},
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
            self.assert_code(result, 0)
            return
        run.await_end_of_all()
        self.seconds = time.monotonic() - began
        self.assert_code(result, 5)
        self.assertRegex(result.err, rf"penstock: rank {self.rank} stopped answering for")
        self.assertLess(self.seconds, SECONDS_MAX, result.err)
        for unfinished in (self.folder / "weights").glob("*.tmp-*"):
            unfinished.unlink()  # Of ranks that were killed; the next run that saves removes it.
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


def stops(generator: random.Random) -> list[Stop]:
    every = []
    words = [*places(), *OPS]
    for layout in LAYOUTS:
        inside = [f"save,after={generator.uniform(0, 0.02):.4f}" for _ in range(TIMES_IN_A_SAVE)]
        for at in [*words, *inside]:
            for rank in range(layout[0] * layout[1]):
                stop = Stop()
                stop.layout, stop.rank, stop.at = layout, rank, at
                stop.asynchronous = generator.random() < 0.5
                every.append(stop)
    return every


def run(stop: Stop) -> bool:
    result = unittest.TestResult()
    stop.run(result)
    for _, text in result.failures + result.errors:
        print(f"{stop.layout}, rank {stop.rank} at {stop.at}:\n{text}", flush=True)
    return result.wasSuccessful()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=4, help="runs at once; most of it is waiting")
    every = stops(random.Random(support.SEED))
    with ThreadPoolExecutor(parser.parse_args().jobs) as pool:
        good = sum(pool.map(run, every))
    seconds = [stop.seconds for stop in every if stop.seconds is not None]
    middle, longest = statistics.median(seconds), max(seconds)
    print(f"{len(seconds)} stops, over after {middle:.2f} s, at most {longest:.2f} s")
    print(f"{len(every) - len(seconds)} runs had no such place")
    print(f"as they should: {good} of {len(every)} (PENSTOCK_SEED={support.SEED})")
    return 0 if good == len(every) else 1


if __name__ == "__main__":
    sys.exit(main())
