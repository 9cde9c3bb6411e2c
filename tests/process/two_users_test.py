#!/usr/bin/env python3
"""A folder has one user at a time: who comes second is refused, and what is there stays."""

from __future__ import annotations

import json
import os
import signal
import time
import unittest
from pathlib import Path

from model_folders import write_llama
from support import PENSTOCK, ProcessTest, Result, Started, raw_lines

ONE = {"pipe": 1, "data": 1}
LOCK = ".penstock-lock"


class TwoUsers(ProcessTest):
    """The first one trains until it is told to stop."""

    def endless(self, **changes: object) -> Path:
        return self.config("endless.json", **{"mesh": ONE, "run": {"steps": 1_000_000}, **changes})

    def short(self, **changes: object) -> Path:
        return self.config("short.json", **{"mesh": ONE, "run": {"steps": 4}, **changes})

    def first(self, *words: object, **changes: object) -> Started:
        run = self.start_train(self.endless(**changes), "r", *words)
        run.await_step(3)
        return run

    def assert_refused(self, result: Result, *parts: str, code: int = 2) -> None:
        self.assert_code(result, code)
        for part in ("writes there since", f" on {os.uname().nodename}", *parts):
            self.assertIn(part, result.err)

    def stop(self, run: Started, code: int = 75) -> Result:
        run.process.send_signal(signal.SIGTERM)
        result = run.wait()
        self.assert_code(result, code)
        return result

    def test_a_second_run_is_refused_before_it_touches_anything(self) -> None:
        run = self.first("--save", "weights", "--checkpoint-every", "1000000")
        short = self.short()
        folders = {
            "run": ["--run", "r"],
            "resumed": ["--run", "r", "--checkpoint-every", "2", "--resume", "auto"],
            "weights": ["--run", "other", "--save", "weights"],
            "as a run": ["--run", "weights"],
            "checkpoints": [
                *("--run", "other", "--checkpoint-every", "2"),
                *("--set", "checkpoint.directory=r/checkpoints"),
            ],
        }
        for name, words in folders.items():
            with self.subTest(name):
                result = self.train(short, *words)
                self.assert_refused(result, f"process {run.pid} of ", "endless.json --run r")
                self.assertNotIn("step 1/", result.err)
                self.assertFalse((self.folder / "other").exists(), "no new folder is left")
        pruned = self.run_words(PENSTOCK, "checkpoint", "prune", "r", "--keep-last", "1")
        self.assert_refused(pruned, f"process {run.pid} of ", code=3)
        self.stop(run)
        steps = [json.loads(line)["step"] for line in raw_lines(self.folder / "r")]
        self.assertEqual(steps, list(range(1, len(steps) + 1)), "lines of one run")
        self.assertEqual(list(self.folder.rglob("*penstock-lock")), [])

    def test_the_folder_stays_the_runs_own_over_restarts(self) -> None:
        run = self.first("--checkpoint-every", "1000000")
        os.kill(run.ranks()[0], signal.SIGKILL)
        run.await_text("starting the run again")
        self.assert_refused(self.train(self.short(), "--run", "r"))
        run.await_text("step 1/", times=2)
        self.assert_refused(self.train(self.short(), "--run", "r"))
        self.stop(run)

    def test_a_launcher_that_is_killed_leaves_the_folder_free(self) -> None:
        run = self.first("--save", "weights")
        run.process.kill()
        run.wait()
        self.assertTrue((self.folder / "r" / LOCK).exists())
        self.assert_code(self.train(self.short(), "--run", "r", "--save", "weights"), 0)
        self.assertEqual(list(self.folder.rglob("*penstock-lock")), [])

    def test_ranks_that_are_not_recognised_do_not_each_begin_a_run(self) -> None:
        config = self.endless()
        variables = [{"PALS_RANKID": str(rank), "PALS_SIZE": "3"} for rank in range(3)]
        runs = [
            self.start(
                *(PENSTOCK, "train", config, "--run", "r"),
                environment=self.environment(**each),
            )
            for each in variables
        ]
        # Two end by themselves; the third goes on.
        deadline = time.monotonic() + 60
        while sum(run.process.poll() is not None for run in runs) < 2:
            self.assertLess(time.monotonic(), deadline, "more than one of them trains")
            time.sleep(0.02)
        refused = [run for run in runs if run.process.poll() is not None]
        for run in refused:
            self.assert_refused(run.wait(), "PALS_SIZE=3", "torchrun", "mpirun", "srun")
        (left,) = (run for run in runs if run not in refused)
        left.directory = self.folder / "r"
        left.await_step(2)
        self.stop(left)

    def test_runs_without_a_directory_get_one_each(self) -> None:
        short = self.short()
        runs = [self.start(PENSTOCK, "train", short) for _ in range(3)]
        for run in runs:
            self.assert_code(run.wait(), 0)
        self.assertEqual(len(list((self.folder / "runs").iterdir())), 3)


class EarlierRecord(ProcessTest):
    """What a run leaves is not another one's to replace."""

    def record(self) -> dict[str, str]:
        return {
            name: (self.folder / "r" / name).read_text()
            for name in ("metrics.jsonl", "events.jsonl")
        }

    def test_a_run_that_saves_nothing_leaves_checkpoints_their_record(self) -> None:
        config = self.config(mesh=ONE)
        self.assert_code(self.train(config, "--run", "r", "--checkpoint-every", "2"), 0)
        before = self.record()
        for words in ([], ["--steps", "3"], ["--checkpoint-every", "2"]):
            result = self.train(config, "--run", "r", "--set", "seed=99", *words)
            self.assert_code(result, 2)
            self.assertIn("has checkpoints of a run, the newest of step 5", result.err)
        self.assertEqual(self.record(), before)

    def test_without_checkpoints_it_is_kept_beside_the_new_one(self) -> None:
        config = self.config(mesh=ONE)
        records = []
        for number in range(3):
            result = self.train(config, "--run", "r", "--set", f"seed={number}")
            self.assert_code(result, 0)
            self.assertEqual("it is kept in" in result.err, number > 0, result.err)
            records.append(self.record())
        for number, record in enumerate(records[:2], 1):
            kept = self.folder / "r" / f"earlier-{number}"
            self.assertEqual({name: (kept / name).read_text() for name in record}, record)


class Replaced(ProcessTest):
    """What is replaced is there all the time."""

    def test_adapters(self) -> None:
        write_llama(self.folder / "llama")
        config = self.config(mesh=ONE, run={"steps": 20, "save_interval": 1, "sample_bytes": 0})
        values = json.loads(config.read_text())
        values["model"] = {
            "type": "hugging_face", "path": "llama", "weights": "random", "sequence_length": 16,
            "adapter": {"rank": 2, "alpha": 4, "targets": "q_proj"},
        }  # fmt: skip
        config.write_text(json.dumps(values))
        run = self.start_train(config, "r", "--save", "adapters")
        run.await_text("adapters saved to adapters")
        files = [self.folder / "adapters" / name for name in
                 ("adapter_config.json", "adapter_model.safetensors")]  # fmt: skip
        looks = missed = 0
        while run.process.poll() is None:
            looks += 1
            missed += not all(file.exists() for file in files)
        self.assert_code(run.wait(), 0)
        self.assertGreater(looks, 100)
        self.assertEqual(missed, 0, f"of {looks} looks")


if __name__ == "__main__":
    unittest.main()
