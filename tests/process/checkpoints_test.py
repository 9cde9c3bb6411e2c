"""Checkpoints by real processes: runs that die, are stopped, and go on.

Takes over 10 s: many runs of four ranks, and each rank loads torch.  Standard library only.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
import unittest

import support
from comebacks import ComebackTest, course_of, events_of, kinds_of
from support import PENSTOCK


class Killed(ComebackTest):
    def test_the_run_ends_as_if_nothing_had_happened(self) -> None:
        config = self.training()
        whole = self.undisturbed(config)
        generator = random.Random(support.SEED)
        run = self.start_train(config, "killed")
        self.await_checkpoint(run)
        for times in (1, 2):
            os.kill(run.ranks()[generator.randrange(4)], signal.SIGKILL)
            run.await_text("penstock: resumed after step", times)
        result = run.wait()
        self.assert_code(result, 0)
        self.assertIn("penstock: starting the run again (1 of 3", result.text)
        self.assert_same(whole, run.directory)
        self.assert_nothing_left()

    def await_saved_event(self, run: support.Started) -> None:
        deadline = time.monotonic() + support.PATIENCE
        events = run.directory / "events.jsonl"
        while not (events.exists() and '"event": "saved"' in events.read_text()):
            self.assertLess(time.monotonic(), deadline, "no event of a save")
            time.sleep(0.01)

    def test_the_run_directory_and_the_report_say_what_happened(self) -> None:
        run = self.start_train(self.training(), "run")
        self.await_saved_event(run)
        os.kill(run.ranks()[3], signal.SIGKILL)
        self.assert_code(run.wait(), 0)
        kinds = kinds_of(run.directory)
        begin = kinds.index("failed")
        self.assertEqual(kinds[0], "started")
        self.assertEqual(set(kinds[1:begin]), {"saved"})
        self.assertEqual(kinds[begin : begin + 4], ["failed", "restarting", "started", "resumed"])
        self.assertEqual(set(kinds[begin + 4 : -1]), {"saved"})
        self.assertEqual(kinds[-1], "finished")
        started, failed, restarting, again, resumed = (
            events_of(run.directory)[i] for i in (0, begin, begin + 1, begin + 2, begin + 3)
        )
        self.assertEqual((started["step"], started["ranks"]), (0, 4))
        self.assertIn("pipe(2) x data(2), 1f1b(", started["layout"])
        self.assertRegex(started["time"], r"^20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$")
        self.assertEqual(failed["exit_code"], 4)
        self.assertIn("rank 3 was killed by SIGKILL", failed["reason"])
        self.assertEqual(
            {key: restarting[key] for key in ("attempt", "pause_seconds", "ranks")},
            {"attempt": 1, "pause_seconds": 0, "ranks": 4},
        )
        self.assertEqual(again["step"], resumed["step"])
        self.assertEqual(resumed["step"] + resumed["lost_steps"], failed["step"])
        self.assertTrue(resumed["folder"].endswith(f"step-{resumed['step']:08}"))
        # Rank 0 may be killed between the name of a checkpoint and its event.
        saved = {event["step"] for event in events_of(run.directory, "saved")}
        self.assertEqual(saved | {resumed["step"]}, {40, 80, 120, 160, 200})
        report = self.run_words(PENSTOCK, "report", "run")
        self.assert_code(report, 0)
        steps = ", ".join(map(str, sorted(saved)))
        self.assertIn(f"saved after steps {steps}\n", report.out)
        self.assertRegex(
            report.out,
            r"started again 1 time:\n"
            rf"  after step {failed['step']}(, \d+ steps? done again)?: "
            r"rank 3 was killed by SIGKILL\n"
            r"finished after step 200\n",
        )
        for name in ("loss.svg", "report.html"):
            picture = (run.directory / name).read_text()
            self.assertRegex(picture, rf">after step {failed['step']}\b.*: rank 3 was killed")
            self.assertEqual(picture.count("<title>saved after step "), len(saved))

    def test_a_run_that_was_asked_to_stop_is_not_started_again(self) -> None:
        run = self.start_train(self.training(), "killed")
        self.await_checkpoint(run)
        rank = run.ranks()[1]
        os.kill(rank, signal.SIGSTOP)
        run.process.send_signal(signal.SIGTERM)
        run.await_text("stopping after the current step")
        os.kill(rank, signal.SIGKILL)
        result = run.wait()
        self.assert_code(result, 4)
        self.assertNotIn("starting the run again", result.text)

    def test_it_goes_on_as_it_was_started_until_it_has_a_checkpoint(self) -> None:
        self.undisturbed(self.training(run={"steps": 40}), "base")
        other = self.training("other.json", checkpoint={"save_interval": 150})
        base = self.folder / "base" / "checkpoints" / "step-00000040"
        run = self.start_train(other, "killed", "--resume", base)
        run.await_step(1)
        os.kill(run.ranks()[2], signal.SIGKILL)
        result = run.wait()
        self.assert_code(result, 0)
        self.assertEqual(result.text.count("resumed after step 40 from"), 2, result.text)
        self.assertEqual(course_of(run.directory)[0]["step"], 41)

    def test_a_budget_of_none_is_the_end(self) -> None:
        run = self.start_train(self.training(launch={"restarts": 0}), "killed")
        self.await_checkpoint(run)
        os.kill(run.ranks()[1], signal.SIGKILL)
        result = run.wait()
        self.assert_code(result, 4)
        self.assertNotIn("starting the run again", result.text)


class Asked(ComebackTest):
    def test_a_stopped_run_is_saved_and_goes_on_in_another_layout(self) -> None:
        config = self.training(numerics={"invariant": True}, run={"steps": 100})
        whole = self.undisturbed(config)
        run = self.start_train(config, "stopped")
        run.await_step(50)
        run.process.send_signal(signal.SIGTERM)
        result = run.wait()
        self.assert_code(result, 75)
        self.assertRegex(result.text, r"stopped after step \d+, as asked; to go on: --run stopped")
        more = ["--run", "stopped", "--resume", "auto", "--set", "mesh.data=1"]
        result = self.train(config, *more, "--set", "mesh.pipe=1", "--nproc", "1")
        self.assert_code(result, 0)
        self.assertIn("penstock: mesh was pipe(2) x data(2), is pipe(1) x data(1)", result.text)
        self.assert_same(whole, run.directory)

    def test_a_batch_systems_warning_and_the_end_of_its_minutes_save_and_end(self) -> None:
        config = self.training()
        whole = self.undisturbed(config)
        signalled = self.start_train(config, "usr1")
        self.await_checkpoint(signalled)
        signalled.process.send_signal(signal.SIGUSR1)
        result = signalled.wait()
        self.assert_code(result, 75)
        self.assertIn("as asked; to go on: --run", result.text)
        result = self.train(config, "--run", "minutes", "--set", "run.minutes=0.01")
        self.assert_code(result, 75)
        self.assertIn("run.minutes are over; to go on: --run", result.text)
        for name in ("usr1", "minutes"):
            self.assert_code(self.train(config, "--run", name, "--resume", "auto"), 0)
            self.assert_same(whole, self.folder / name)

    def test_a_run_may_save_by_time_alone(self) -> None:
        changes = {"checkpoint": {"save_interval": 0, "save_minutes": 1e-6, "keep_last": 0}}
        config = self.training(run={"steps": 12}, **changes)
        self.assert_code(self.train(config, "--run", "timed"), 0)
        saved = sorted((self.folder / "timed" / "checkpoints").glob("step-*"))
        self.assertGreater(len(saved), 3)
        self.assertEqual(saved[-1].name, "step-00000012")

    def test_a_run_that_is_over_trains_no_more(self) -> None:
        config = self.training(run={"steps": 40})
        whole = self.undisturbed(config)
        before = course_of(whole)
        result = self.train(config, "--run", "whole", "--resume", "auto")
        self.assert_code(result, 0)
        self.assertEqual(course_of(whole), before)


class Damaged(ComebackTest):
    def damage(self, step: int, name: str = "shard-00001-of-00004.safetensors") -> None:
        path = self.folder / "run" / "checkpoints" / f"step-{step:08}" / name
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 4
        path.write_bytes(content)

    def test_an_older_one_is_taken_and_the_reason_told(self) -> None:
        config = self.training(run={"steps": 120})
        whole = self.undisturbed(config)
        self.undisturbed(config, "run")
        self.damage(120)
        result = self.train(config, "--run", "run", "--resume", "auto")
        self.assert_code(result, 0)
        self.assertRegex(
            result.text, r"a newer checkpoint is passed over: rank \d: .*step-00000120.* is damaged"
        )
        self.assertIn("resumed after step 80", result.text)
        self.assert_same(whole, self.folder / "run")

    def test_the_next_save_keeps_what_it_went_on_from(self) -> None:
        config = self.training(run={"steps": 120}, checkpoint={"keep_last": 1})
        self.undisturbed(config, "run")
        more = ["--run", "run", "--resume", "auto", "--set", "run.steps=160"]
        self.assert_code(self.train(config, *more), 0)
        checkpoints = self.folder / "run" / "checkpoints"
        (checkpoints / "step-00000160").rename(checkpoints / "step-00000200")
        (checkpoints / "step-00000200" / "manifest.json").write_text("damaged")
        self.undisturbed(config, "again")
        (self.folder / "again" / "checkpoints" / "step-00000120").rename(
            checkpoints / "step-00000120"
        )
        result = self.train(config, *more)
        self.assert_code(result, 0)
        self.assertIn("did not go on: run/checkpoints/step-00000200.abandoned", result.text)
        self.assertEqual(
            sorted(each.name for each in checkpoints.iterdir()),
            ["step-00000160", "step-00000200.abandoned"],
        )

    def test_none_that_can_be_read_is_an_error(self) -> None:
        config = self.training(run={"steps": 40})
        self.undisturbed(config, "run")
        self.damage(40, "manifest.json")
        result = self.train(config, "--run", "run", "--resume", "auto")
        self.assert_code(result, 3)
        self.assertIn("no checkpoint in", result.text)
        self.assertIn("manifest.json", result.text)
        self.assertEqual(course_of(self.folder / "run")[-1]["step"], 40)


class BadInput(ComebackTest):
    def test_it_is_told_and_nothing_is_lost(self) -> None:
        config = self.training(run={"steps": 40})
        self.undisturbed(config, "run")
        before = course_of(self.folder / "run")
        cases = [
            (["--resume", "auto"], 2, "--run DIR"),
            (["--run", "other", "--resume", "none"], 2, '--resume: "none" is not a directory'),
            (
                ["--run", "run", "--set", "run.steps=20"],
                2,
                "has checkpoints of a run, the newest of step 40",
            ),
            (["--run", "run", "--resume", "auto", "--set", "model.hidden=64"], 3, "as [256, 32]"),
        ]
        for words, code, said in cases:
            with self.subTest(words=words):
                result = self.train(config, *words)
                self.assert_code(result, code)
                self.assertIn(said, result.text)
        self.assertEqual(course_of(self.folder / "run"), before)
        self.assert_code(self.checkpoint("verify", "run"), 0)

    def test_a_directory_that_cannot_be_made_is_told_first(self) -> None:
        (self.folder / "file").write_text("x")
        config = self.training(checkpoint={"directory": "file/x"})
        result = self.train(config, "--run", "run")
        self.assert_code(result, 2)
        self.assertIn('cannot make the directory for checkpoints "file/x"', result.text)


class Unwritable(ComebackTest):
    def run_without_directory(self, name: str, **changes: object) -> support.Result:
        """A run whose directory for checkpoints is lost after the first one."""
        run = self.start_train(self.training(**changes), name)
        self.await_checkpoint(run)
        checkpoints = run.directory / "checkpoints"
        checkpoints.rename(run.directory / "away")
        checkpoints.write_text("no directory")
        return run.wait()

    def test_the_run_goes_on_and_the_last_save_is_an_error(self) -> None:
        result = self.run_without_directory("run")
        self.assert_code(result, 3)
        self.assertRegex(result.text, r"penstock: step \d+ is not saved: ")
        kinds = kinds_of(self.folder / "run")
        self.assertIn("save_failed", kinds)
        self.assertEqual(kinds[-1], "failed")
        self.assertEqual(course_of(self.folder / "run")[-1]["step"], 200)
        (self.folder / "run" / "checkpoints").unlink()
        self.assert_code(self.checkpoint("verify", "run/away"), 0)

    def test_the_run_ends_where_it_is_told_to(self) -> None:
        result = self.run_without_directory("run", checkpoint={"on_failure": "stop"})
        self.assert_code(result, 3)
        self.assertLess(course_of(self.folder / "run")[-1]["step"], 200)


class NotFinite(ComebackTest):
    def test_what_was_saved_before_is_there(self) -> None:
        config = self.training(optimizer={"params": {"lr": 1e30}}, checkpoint={"save_interval": 1})
        result = self.train(config, "--run", "run")
        self.assert_code(result, 6)
        checkpoints = self.folder / "run" / "checkpoints"
        last = course_of(self.folder / "run")[-1]["step"]
        self.assertIn(f"step-{last:08}", [each.name for each in checkpoints.iterdir()])
        self.assert_code(self.checkpoint("verify", "run"), 0)


class Commands(ComebackTest):
    def test_they_say_what_there_is(self) -> None:
        self.undisturbed(self.training(run={"steps": 120}), "run")
        rows = json.loads(self.checkpoint("ls", "run", "--json").out)
        self.assertEqual([row["step"] for row in rows], [120, 80])
        self.assertIn("pipe(2) x data(2)", self.checkpoint("ls", "run").out)
        shown = self.checkpoint("show", "run").out
        self.assertIn("config seed: 7", shown)
        self.assertIn("transformer.h.0.ln_1.weight", shown)
        self.assert_code(self.checkpoint("verify", "run"), 0)
        checkpoints = self.folder / "run" / "checkpoints"
        diff = self.checkpoint("diff", checkpoints / "step-00000080", checkpoints / "step-00000120")
        self.assert_code(diff, 1)
        self.assertIn("exp_avg of head.lm_head.weight", diff.out)
        shard = checkpoints / "step-00000080" / "shard-00002-of-00004.safetensors"
        shard.write_bytes(shard.read_bytes()[:-1])
        verified = self.checkpoint("verify", "run")
        self.assert_code(verified, 3)
        self.assertIn("shard-00002-of-00004.safetensors", verified.out)
        self.assert_code(self.checkpoint("prune", "run", "--keep-last", "1"), 0)
        self.assertEqual([each.name for each in checkpoints.iterdir()], ["step-00000120"])
        self.assert_code(self.checkpoint("ls", "nowhere"), 2)


class Selftest(ComebackTest):
    """A user's own config, resumed, and beside a single process."""

    def selftest(self, what: str, *words: object, **environment: str) -> support.Result:
        config = self.training(
            model={"dropout": 0.1},
            scheduler={"type": "WarmupCosineLR", "params": {"warmup_num_steps": 2}},
        )
        more = ["selftest", what, config, "--steps", "6", *words]
        return self.run_words(support.PENSTOCK, *more, environment=self.environment(**environment))

    def test_a_resumed_run_is_the_one_that_went_on(self) -> None:
        result = self.selftest("resume", "--set", "zero_optimization.stage=3")
        self.assert_code(result, 0)
        self.assertRegex(result.out, r"resumed after step 3 is, .* bit for bit .*: \d+ tensors\n$")
        self.assertEqual(list(self.temporary.iterdir()), [])

    def test_a_layout_is_as_near_to_one_process_as_it_is(self) -> None:
        result = self.selftest("parity", "--set", "numerics.invariant=true")
        self.assert_code(result, 0)
        self.assertIn("bit for bit, what one process has", result.out)
        near = self.selftest("parity", "--set", "zero_optimization.stage=2")
        self.assert_code(near, 0)
        far = self.selftest("parity", "--tolerance", "0")
        self.assert_code(far, 1)
        self.assertRegex(far.out, r"tensors differ from those of one process, .* allowed are 0;")
        self.assertIn(f"runs: {self.temporary}", far.out)

    def test_it_starts_ranks_itself(self) -> None:
        rank = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
        result = self.selftest("resume", **rank)
        self.assert_code(result, 2)
        self.assertIn("a selftest starts its ranks itself", result.text)
        self.assert_code(self.selftest("resume", "--steps", "3"), 2)


if __name__ == "__main__":
    unittest.main()
