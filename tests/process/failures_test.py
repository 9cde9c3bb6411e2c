"""Ranks that die or stop, and runs that are told to stop.  Needs the standard library.

Takes over 10 s: a stopped rank is noticed after a heartbeat of 3 s.
"""

from __future__ import annotations

import os
import random
import signal
import time
import unittest

import failures
import support
from failures import FailureTest


class Killed(FailureTest):
    def test_the_run_ends_and_names_rank_and_signal(self) -> None:
        generator = random.Random(support.SEED)
        rank = generator.randrange(4)
        failure = self.fail_rank(rank, signal.SIGKILL, generator)
        print(f"kill -9 of rank {rank}: over after {failure.seconds:.2f} s")

    def test_the_step_is_named_once_a_heartbeat_has_passed(self) -> None:
        # A rank's position travels with its heartbeat, a fifth of heartbeat_seconds apart.
        generator = random.Random(support.SEED + 1)
        failure = self.fail_rank(1, signal.SIGKILL, generator, pause=1.3)
        self.assertGreater(failures.last_step(failure.text) or 0, 0, failure.text)


class Stopped(FailureTest):
    def stop(self, rank: int) -> None:
        failure = self.fail_rank(rank, signal.SIGSTOP, random.Random(support.SEED + 2))
        print(f"SIGSTOP of rank {rank}: over after {failure.seconds:.2f} s")

    def test_rank_zero(self) -> None:
        self.stop(0)

    def test_another_rank(self) -> None:
        self.stop(random.Random(support.SEED).randrange(1, 4))


class Asked(FailureTest):
    """The launcher is told to stop, as a terminal or a batch system does."""

    def stop_by(self, number: signal.Signals, code: int) -> support.Started:
        run = self.start_train(
            self.config(run={"steps": 1_000_000, "timeline_steps": 1}),
            "asked",
            "--save",
            "asked/weights",
        )
        run.await_step(3)
        began = time.monotonic()
        run.process.send_signal(number)
        result = run.wait()
        print(f"{number.name}: over after {time.monotonic() - began:.2f} s")
        self.assert_code(result, code)
        causes = support.root_causes(result.text)
        self.assertEqual(causes, [f"stopped by {number.name}"])
        self.assert_metrics_whole(run)
        for name in ("config.resolved.json", "schedule.svg", "timeline.json", "loss.svg"):
            self.assertGreater((run.directory / name).stat().st_size, 0, name)
        self.assert_nothing_left(within=0)
        return run

    def test_ctrl_c_ends_after_the_step(self) -> None:
        run = self.stop_by(signal.SIGINT, 130)
        # What was trained is kept, and whole: the index names files that are there.
        names = {path.name for path in (run.directory / "weights").iterdir()}
        self.assertIn("model.safetensors.index.json", names)
        self.assertEqual(len([n for n in names if n.endswith(".safetensors")]), 2, names)

    def test_sigterm_means_preempted(self) -> None:
        self.stop_by(signal.SIGTERM, 75)

    def test_a_second_ctrl_c_ends_at_once(self) -> None:
        run = self.start_long()
        run.await_step(3)
        os.kill(run.ranks()[1], signal.SIGSTOP)  # So that no step can end any more.
        run.process.send_signal(signal.SIGINT)
        time.sleep(0.5)
        self.assertIsNone(run.process.poll(), "waits for the end of the step")
        run.process.send_signal(signal.SIGINT)
        result = run.wait()
        self.assert_code(result, 130)
        self.assertIn("SIGINT: stopping at once", result.err)
        self.assertIn("stopped at once by SIGINT", result.err)
        self.assert_nothing_left(within=0)

    def test_before_the_first_step(self) -> None:
        run = self.start_long()
        deadline = time.monotonic() + support.PATIENCE
        while len(run.ranks()) < 4 and time.monotonic() < deadline:
            time.sleep(0.005)
        run.process.send_signal(signal.SIGINT)
        self.assert_code(run.wait(), 130)
        self.assert_nothing_left(within=0)


class LauncherKilled(FailureTest):
    def test_no_orphan_is_left(self) -> None:
        run = self.start_long()
        run.await_step(3)
        self.note_traces([run.pid, *run.ranks().values()])
        began = time.monotonic()
        run.process.kill()
        over = run.await_end_of_all()
        print(f"kill -9 of the launcher: over after {over - began:.2f} s")
        self.assertEqual(run.process.wait(), -signal.SIGKILL)
        self.assert_metrics_whole(run)
        self.assert_nothing_left(within=0)


if __name__ == "__main__":
    print(f"PENSTOCK_SEED={support.SEED}")
    unittest.main(verbosity=2)
