"""What events.jsonl says of runs that die, are stopped, and go on.

Takes over 10 s: many runs of four ranks, and each rank loads torch.  Standard library only.
"""

from __future__ import annotations

import os
import signal
import time
import unittest

import support
from comebacks import ComebackTest, course_of, events_of, kinds_of


class Events(ComebackTest):
    def test_they_are_of_this_run_alone_unless_it_goes_on(self) -> None:
        config = self.training(run={"steps": 2}, checkpoint={"save_interval": 0})
        run = self.undisturbed(config, "run")
        self.assertEqual(kinds_of(run), ["started", "finished"])
        self.undisturbed(config, "run")
        self.assertEqual(kinds_of(run), ["started", "finished"])
        saving = self.training("saving.json", run={"steps": 4}, checkpoint={"save_interval": 4})
        self.undisturbed(saving, "run")
        longer = self.training("longer.json", run={"steps": 6}, checkpoint={"save_interval": 6})
        result = self.train(longer, "--run", "run", "--resume", "auto")
        self.assert_code(result, 0)
        of_first = ["started", "saved", "finished"]
        self.assertEqual(kinds_of(run), [*of_first, "started", "resumed", "saved", "finished"])
        self.assertEqual(events_of(run, "resumed")[0]["lost_steps"], 0)

    def test_a_stop_is_written_and_is_no_failure(self) -> None:
        run = self.start_train(self.training(run={"steps": 10_000}), "run")
        run.await_step(3)
        run.process.send_signal(signal.SIGTERM)
        self.assert_code(run.wait(), 75)
        last = events_of(run.directory)[-1]
        self.assertEqual(
            (last["event"], last["reason"], last["exit_code"]), ("stopped", "as asked", 75)
        )
        self.assertNotIn("failed", kinds_of(run.directory))
        self.assertIn(
            f"after step {last['step']}, as asked", (run.directory / "loss.svg").read_text()
        )

    def test_a_line_that_was_cut_and_a_file_that_cannot_be_read_end_no_run(self) -> None:
        config = self.training(run={"steps": 40})
        run = self.undisturbed(config, "run")
        whole = (run / "events.jsonl").read_text()
        (run / "events.jsonl").write_text(whole + '{"event": "sav')
        longer = self.training("longer.json", run={"steps": 41})
        self.assert_code(self.train(longer, "--run", "run", "--resume", "auto"), 0)
        self.assertTrue((run / "events.jsonl").read_text().startswith(whole))
        self.assertEqual(kinds_of(run)[-1], "finished")
        (run / "events.jsonl").write_text('{"event": 3}\n')
        longest = self.training("longest.json", run={"steps": 42})
        result = self.train(longest, "--run", "run", "--resume", "auto")
        self.assert_code(result, 0)
        self.assertIn("earlier events of the run are not marked in its loss curve", result.text)

    def test_events_that_cannot_be_written_are_told_once_and_end_no_steps(self) -> None:
        run = self.start_train(self.training(), "run")
        self.await_checkpoint(run)
        events = run.directory / "events.jsonl"
        events.unlink()
        events.mkdir()
        os.kill(run.ranks()[1], signal.SIGKILL)
        result = run.wait()
        self.assert_code(result, 3)
        self.assertEqual(course_of(run.directory)[-1]["step"], 200)
        self.assertIn('not all of it could be written to "run": events.jsonl', result.text)

    def test_a_line_that_rank_0_left_cut_is_no_part_of_the_launcher_s_next_one(self) -> None:
        run = self.start_train(self.training(run={"steps": 2000}), "run")
        self.await_checkpoint(run)
        os.kill(run.ranks()[1], signal.SIGKILL)
        run.await_text("penstock: resumed after step")
        self.await_events(run, "resumed")
        os.kill(run.ranks()[0], signal.SIGSTOP)
        with (run.directory / "events.jsonl").open("a") as events:
            events.write('{"event": "sav')
        os.kill(run.ranks()[0], signal.SIGKILL)
        run.await_text("penstock: resumed after step", 2)
        run.process.send_signal(signal.SIGTERM)
        self.assert_code(run.wait(), 75)
        self.assertEqual(kinds_of(run.directory).count("failed"), 2)

    def await_events(self, run: support.Started, kind: str) -> None:
        deadline = time.monotonic() + support.PATIENCE
        while not events_of(run.directory, kind):
            self.assertLess(time.monotonic(), deadline, f"no event {kind}")
            time.sleep(0.01)


class GoesOn(ComebackTest):
    """A run that goes on keeps what its directory has; another one does not."""

    def test_a_checkpoint_of_this_directory_may_be_written_in_any_way(self) -> None:
        config = self.training(run={"steps": 2}, checkpoint={"save_interval": 2})
        run = self.undisturbed(config, "run")
        (self.folder / "best").symlink_to(run / "checkpoints" / "step-00000004")
        ways = ["run/checkpoints/step-00000002/", "best", "./run//checkpoints/step-00000006"]
        for times, way in enumerate(ways, 1):
            steps = str(2 + 2 * times)
            result = self.train(config, "--run", "run", "--steps", steps, "--resume", way)
            self.assert_code(result, 0)
            self.assertEqual(kinds_of(run).count("finished"), times + 1)
        trained = [line["step"] for line in course_of(run) if "loss" in line]
        self.assertEqual(trained, list(range(1, 9)))

    def test_lost_steps_count_also_before_the_first_save_of_its_own(self) -> None:
        base = self.undisturbed(
            self.training(run={"steps": 4}, checkpoint={"save_interval": 4}), "base"
        )
        config = self.training("run.json", run={"steps": 40}, checkpoint={"save_interval": 30})
        more = ["--resume", base / "checkpoints" / "step-00000004"]
        result = self.train(config, "--run", "run", *more, "--inject", "kill:rank=0,step=20")
        self.assert_code(result, 0)
        run = self.folder / "run"
        (failed,) = events_of(run, "failed")
        self.assertGreater(failed["step"], 4)
        first, second = (event["lost_steps"] for event in events_of(run, "resumed"))
        self.assertEqual((first, second), (0, failed["step"] - 4))
        self.assertIn(
            f"after step {failed['step']}, {second} steps done again: rank 0 was killed",
            self.run_words(support.PENSTOCK, "report", "run").out,
        )

    def test_without_a_checkpoint_the_run_is_another_one_but_not_its_restarts(self) -> None:
        self.undisturbed(self.training(run={"steps": 2}, checkpoint={"save_interval": 0}), "run")
        config = self.training("saving.json", run={"steps": 4})
        fault = "kill:rank=0,step=3"
        result = self.train(config, "--run", "run", "--resume", "auto", "--inject", fault)
        self.assert_code(result, 0)
        run = self.folder / "run"
        self.assertEqual(
            kinds_of(run), ["started", "failed", "restarting", "started", "saved", "finished"]
        )
        (_, again) = events_of(run, "started")
        self.assertEqual(again["lost_steps"], events_of(run, "failed")[0]["step"])

    def test_a_start_that_fails_early_does_not_change_how_the_run_ended_before(self) -> None:
        config = self.training(run={"steps": 2}, checkpoint={"save_interval": 2})
        run = self.undisturbed(config, "run")
        more = ["--run", "run", "--steps", "4", "--resume", "auto"]
        no_restart = ["--set", "launch.restarts=0"]
        early = ["--inject", "kill:rank=1,at=build"]
        self.assert_code(self.train(config, *more, *early, *no_restart), 4)
        self.assertEqual(kinds_of(run), ["started", "saved", "finished"])
        self.assert_code(self.train(config, *more, *early), 0)
        self.assertEqual(
            kinds_of(run)[3:],
            ["failed", "restarting", "started", "resumed", "saved", "finished"],
        )
        self.assertTrue(events_of(run, "failed")[0]["before_ready"])
        report = self.run_words(support.PENSTOCK, "report", "run").out
        self.assertIn("  after step 2: finished\n", report)
        self.assertRegex(report, r"  after step 2: rank 1 .* while the ranks started\n")


class Stopped(ComebackTest):
    def test_at_once_is_a_stop_too(self) -> None:
        run = self.start_train(self.training(run={"steps": 10_000}), "run")
        run.await_step(3)
        os.kill(run.ranks()[1], signal.SIGSTOP)
        run.process.send_signal(signal.SIGTERM)
        run.await_text("stopping after the current step")
        run.process.send_signal(signal.SIGINT)
        self.assert_code(run.wait(), 75)
        last = events_of(run.directory)[-1]
        self.assertEqual(
            (last["event"], last["reason"], last["exit_code"]), ("stopped", "at once by SIGINT", 75)
        )
        self.assertNotIn("failed", kinds_of(run.directory))

    def test_between_two_starts_it_is_heard(self) -> None:
        run = self.start_train(self.training(run={"steps": 10_000}), "run")
        self.await_checkpoint(run)
        first = run.ranks()[1]
        os.kill(first, signal.SIGKILL)
        # One that saves nothing is followed by a pause.
        deadline = time.monotonic() + support.PATIENCE
        while run.ranks().get(1, first) == first:
            self.assertLess(time.monotonic(), deadline, "the run does not start again")
            time.sleep(0.01)
        os.kill(run.ranks()[1], signal.SIGKILL)
        run.await_text("starting the run again in 1 s")
        run.process.send_signal(signal.SIGTERM)
        result = run.wait()
        self.assert_code(result, 75)
        self.assertEqual(result.text.count("starting the run again"), 2)


if __name__ == "__main__":
    unittest.main()
