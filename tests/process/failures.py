"""One rank is killed or stopped in the middle of a run: what must be seen then.

failures_test.py does one of each kind, soak.py many.
"""

from __future__ import annotations

import os
import random
import re
import signal
import time
from dataclasses import dataclass

import support
from support import PENSTOCK, ProcessTest

HEARTBEAT_SECONDS = 3


@dataclass
class Failure:
    """What happened to which rank, and how long all processes took to go."""

    rank: int
    step: int
    seconds: float
    text: str


class FailureTest(ProcessTest):
    def start_long(self, name: str = "run", **changes: object) -> support.Started:
        """A run that does not end by itself."""
        values = support.merged(
            {
                "run": {"steps": 1_000_000},
                "launch": {"heartbeat_seconds": HEARTBEAT_SECONDS},
            },
            changes,
        )
        return self.start_train(self.config(**values), name)

    def fail_rank(
        self, rank: int, number: signal.Signals, generator: random.Random, pause: float = 0.0
    ) -> Failure:
        """Sends a signal to a rank, at a random moment after a random step."""
        run = self.start_long(f"{number.name}-{rank}")
        step = generator.randint(3, 12)
        run.await_step(step)
        # So that the moment is not always just after a line was written.
        time.sleep(pause + generator.uniform(0.0, 0.05))
        ranks = run.ranks()
        self.assertEqual(sorted(ranks), [0, 1, 2, 3])
        self.note_traces([run.pid, *ranks.values()])
        began = time.monotonic()
        os.kill(ranks[rank], number)
        over = run.await_end_of_all(patience=HEARTBEAT_SECONDS + 30)
        result = run.wait()
        failure = Failure(rank, step, over - began, result.text)
        with self.subTest(rank=rank, signal=number.name, step=step):
            self.assert_told(failure, number, result.code, ranks)
            self.assert_metrics_whole(run)
            self.assert_nothing_left(within=0)
        return failure

    def assert_told(
        self, failure: Failure, number: signal.Signals, code: int, ranks: dict[int, int]
    ) -> None:
        text = failure.text
        causes = support.root_causes(text)
        self.assertEqual(len(causes), 1, f"one root cause line, in:\n{text}")
        others = [rank for rank in ranks if rank != failure.rank]
        if number == signal.SIGKILL:
            self.assertEqual(code, 4, text)
            self.assertTrue(
                causes[0].startswith(f"rank {failure.rank} was killed by SIGKILL"), causes[0]
            )
        else:
            self.assertEqual(code, 5, text)
            self.assertTrue(
                causes[0].startswith(f"rank {failure.rank} stopped answering"), causes[0]
            )
            self.assertIn(f"process {ranks[failure.rank]} is stopped by SIGSTOP", causes[0])
            for rank in others:
                waits = rf"note: rank {rank}: step \d+, waiting .*"
                self.assertRegex(text, waits, "what the others waited for")
        self.assertIn("last seen at", causes[0])
        self.assertRegex(text, r"note: 3 other ranks were ended \(")

    def assert_metrics_whole(self, run: support.Started) -> None:
        """Every line is complete, and the steps are 1, 2, 3, ..."""
        text = (run.directory / "metrics.jsonl").read_text()
        self.assertTrue(text.endswith("\n"), "a line was cut")
        steps = [int(row[0]) for row in support.losses(run.directory)]
        self.assertEqual(steps, list(range(1, len(steps) + 1)))


def last_step(text: str) -> int | None:
    match = re.search(r"last seen at step (\d+)", text)
    return int(match[1]) if match else None


__all__ = ["HEARTBEAT_SECONDS", "PENSTOCK", "Failure", "FailureTest", "last_step"]
