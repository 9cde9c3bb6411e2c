"""Runs that lose ranks for good and keep the others in their places.

Takes over 10 s: runs that are started again after lost ranks.  Standard library only.
"""

from __future__ import annotations

import json
import unittest

import support
from comebacks import ComebackTest

# The second stage has most of the work, so whole replicas are slow, and their ranks wait.
COSTS = {"forward": [1, 3], "input": [1, 3], "weight": [1, 3]}
KEPT = {
    "mesh": {"pipe": 2, "data": 3},
    "train_batch_size": 12,
    "schedule": {"window_steps": 0},  # The costs stay as they are given.
    "checkpoint": {"save_interval": 5},
    "launch": {"restarts": 0, "ranks_min": 2},
    "run": {"steps": 20, "eval_interval": 5},
}
LOST = ("--inject", "kill:rank=4,step=8")


class RankTest(ComebackTest):
    def measured_run(self, name: str, costs: dict = COSTS) -> str:
        """A run directory as if a start had measured these costs."""
        (self.folder / name).mkdir()
        (self.folder / name / "costs.json").write_text(json.dumps(costs))
        return name

    def assert_near(self, whole: str, other: str) -> None:
        """The same losses, but for the order in which microbatches' gradients are added."""
        mine, theirs = (support.losses(self.folder / name) for name in (whole, other))
        self.assertEqual([row[0] for row in mine], [row[0] for row in theirs])
        for a, b in zip(mine, theirs, strict=True):
            for x, y in zip(a[1:], b[1:], strict=True):
                self.assertEqual(x == "", y == "")
                if x:
                    self.assertAlmostEqual(float(x), float(y), delta=1e-5)


class KeepingPlaces(RankTest):
    def test_a_run_goes_on_with_the_ranks_that_are_left(self) -> None:
        config = self.training(**KEPT)
        self.assert_code(self.train(config, "--run", "whole"), 0)
        run = self.measured_run("kept")
        again = ("--inject", "kill:rank=1,step=13,start=2")
        result = self.train(config, "--run", run, *LOST, *again)
        self.assert_code(result, 0)
        self.assertIn(
            "penstock: going on with 5 ranks: all stay in their places, without rank 2 of "
            "pipe(2) x data(3), whose microbatches other ranks of its stages take; 12 samples a "
            "step as before; by simulation ",
            result.err,
        )
        self.assertRegex(result.err, r"by simulation [\d.]+ ms a step, with whole replicas [\d.]+")
        self.assertIn("penstock: going on with 4 ranks: ", result.err)
        self.assert_near("whole", run)
        self.assert_nothing_left()
        # The run goes on with whole replicas when it has all ranks again.
        more = self.train(config, "--run", run, "--resume", "auto", "--steps", "22")
        self.assert_code(more, 0)
        self.assertIn("penstock: resumed after step 20", more.err)

    def test_with_optimizer_states_cut_and_a_report(self) -> None:
        more = {"zero_optimization": {"stage": 2}, "run": {"steps": 12, "timeline_steps": 3}}
        config = self.training(**support.merged(KEPT, more))
        self.assert_code(self.train(config, "--run", "whole"), 0)
        run = self.measured_run("kept")
        self.assert_code(self.train(config, "--run", run, *LOST), 0)
        self.assert_near("whole", run)
        self.assertFalse((self.folder / run / "schedule.csv").exists())
        report = self.run_words(support.PENSTOCK, "report", run)
        self.assert_code(report, 0)
        self.assertIn("with 5 ranks instead of 6: rank 4 was killed by SIGKILL", report.out)

    def test_whole_replicas_where_they_are_faster(self) -> None:
        config = self.training(**support.merged(KEPT, {"mesh": {"data": 2}}))
        # Nothing is measured.
        result = self.train(config, "--run", "run", "--inject", "kill:rank=3,step=8")
        self.assert_code(result, 0)
        self.assertRegex(
            result.err,
            r"penstock: it is not faster: by simulation [\d.]+ passes of a stage a step, with "
            r"whole replicas [\d.]+ passes of a stage\n"
            r"penstock: going on with 3 ranks: pipe\(1\) x data\(3\) for pipe\(2\) x data\(2\)",
        )

    def test_where_whole_replicas_cannot_be(self) -> None:
        sizes = {"mesh": {"data": 2}, "train_batch_size": 8, "launch": {"ranks_min": 3}}
        config = self.training(**support.merged(KEPT, sizes))
        run = self.measured_run("run", {"forward": [1, 9], "input": [1, 9], "weight": [1, 9]})
        result = self.train(config, "--run", run, "--inject", "kill:rank=3,step=8")
        self.assert_code(result, 0)
        # Three ranks make no whole replicas of as many samples.
        self.assertRegex(result.err, r"with 3 ranks: .*; by simulation [\d.]+ ms a step\n")

    def test_whole_replicas_after_a_start_that_saved_nothing(self) -> None:
        config = self.training(**KEPT)
        run = self.measured_run("run")
        again = ("--inject", "exception:rank=0,step=7,start=2")
        result = self.train(config, "--run", run, *LOST, *again)
        self.assert_code(result, 0)
        self.assertIn("penstock: going on with 5 ranks: all stay in their places", result.err)
        self.assertIn("penstock: going on with 4 ranks: pipe(2) x data(2) for", result.err)

    def test_what_a_program_of_replicas_cannot_train_is_not_rerouted(self) -> None:
        config = self.training(**support.merged(KEPT, {"zero_optimization": {"stage": 3}}))
        result = self.train(config, "--run", self.measured_run("run"), *LOST)
        self.assert_code(result, 0)
        self.assertNotIn("looking for a program", result.err)
        # Ranks hold as much on one stage as on two, and wait for nobody.
        self.assertIn("going on with 4 ranks: pipe(1) x data(4)", result.err)


class OfAUser(RankTest):
    """A program of several replicas that a user has made."""

    def program(self) -> None:
        words = ("schedule", "reroute", "1f1b", "--ranks", "2", "--microbatches", "2")
        more = ("--replicas", "2", "--lost", "1", "-o", "program.json")
        self.assert_code(self.run_words(support.PENSTOCK, *words, *more), 0)

    def config_with(self, **changes: object) -> object:
        program = {"file": str(self.folder / "program.json")}
        sizes = {"mesh": {"pipe": 3, "data": 1}, "train_batch_size": 4}
        return self.config("three.json", schedule=program, **sizes, **changes)

    def test_trains(self) -> None:
        self.program()
        result = self.train(self.config_with(), "--run", "run", "--save", "weights")
        self.assert_code(result, 0)
        self.assertIn(
            "1f1b without rank 1(ranks=3, stages=2, microbatches=4, replicas=2)", result.err
        )
        shards = sorted(p.name for p in (self.folder / "weights").glob("*.safetensors"))
        self.assertEqual(len(shards), 2, shards)  # One of each stage.

    def test_is_refused_what_it_cannot_have(self) -> None:
        self.program()
        result = self.train(self.config_with(zero_optimization={"stage": 3}), "--run", "run")
        self.assert_code(result, 2)
        what = "the schedule is a program of several replicas, and zero_optimization.stage is 3"
        self.assertIn(what, result.err)

    def optimizer_bytes(self, config: object) -> list[int]:
        """What `penstock memory` tells, by the schedule's rank."""
        told = self.run_words(support.PENSTOCK, "memory", str(config), "--json")
        self.assert_code(told, 0)
        ranks = json.loads(told.out)["pipe_ranks"]
        return [rank["between_steps"]["optimizer"] for rank in ranks]

    def test_has_its_memory_told(self) -> None:
        self.program()
        zero = {"zero_optimization": {"stage": 1}, "train_batch_size": 4}
        alone = self.config("alone.json", mesh={"pipe": 2, "data": 1}, **zero)
        shared = self.config("shared.json", mesh={"pipe": 2, "data": 2}, **zero)
        whole, half = self.optimizer_bytes(alone), self.optimizer_bytes(shared)
        # The first stage has a rank of its own, the second one two.
        told = self.optimizer_bytes(self.config_with(zero_optimization={"stage": 1}))
        self.assertEqual(told[:2], [whole[0], half[1]])


if __name__ == "__main__":
    unittest.main()
