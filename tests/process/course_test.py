#!/usr/bin/env python3
"""The course of a run: epochs, validation sets by name, the best model, its end, its rates.

Takes over 10 s: runs that are killed, go on, and end early.
"""

from __future__ import annotations

import json
import struct
import unittest
from pathlib import Path

from support import ProcessTest, raw_lines

BEST = {"best": "far", "patience": 3}
RATES = {"type": "Linear", "params": {"warmup": 0.25}}
VOCABULARY = 32
SEQUENCE, BATCH = 8, 4


def write_tokens(path: Path, factor: int, count: int) -> str:
    tokens = [(factor * i * i + i) % VOCABULARY for i in range(count)]
    path.write_bytes(struct.pack(f"<{count}H", *tokens))
    return str(path)


class CourseTest(ProcessTest):
    def course(self, name: str = "course.json", **changes: object) -> Path:
        """Training makes the losses of "far" fall, and then rise."""
        data = {
            "path": write_tokens(self.folder / "t.bin", 1, 40 * SEQUENCE + 1),
            "validation": {
                "near": write_tokens(self.folder / "near.bin", 1, 8 * SEQUENCE + 1),
                "far": write_tokens(self.folder / "far.bin", 3, 8 * SEQUENCE + 1),
            },
            "format": "uint16",
        }
        run = {"steps": 60, "eval_interval": 4, "eval_batches": 2, "sample_bytes": 0}
        changes["run"] = run | changes.pop("run", {})
        return self.config(
            name,
            train_batch_size=BATCH,
            mesh={"pipe": 2, "data": 1},
            data=data,
            model={"vocabulary": VOCABULARY, "sequence_length": SEQUENCE},
            optimizer={"params": {"lr": 0.01}},
            checkpoint={"asynchronous": False},
            **changes,
        )

    def lines(self, run: str) -> list[dict]:
        """Of metrics.jsonl, without what times say."""
        values = map(json.loads, raw_lines(self.folder / run))
        return [{k: v for k, v in line.items() if "second" not in k} for line in values]

    def run_of(self, config: Path, run: str, *words: object) -> str:
        result = self.train(config, "--run", run, *words)
        self.assert_code(result, 0)
        return result.err

    def saved(self, folder: str) -> list[bytes]:
        files = sorted((self.folder / folder).glob("*.safetensors"))
        self.assertTrue(files, folder)
        return [file.read_bytes() for file in files]


class TheBestModel(CourseTest):
    def test_is_saved_and_the_run_ends_when_no_better_one_comes(self) -> None:
        said = self.run_of(self.course(run=BEST), "r", "--save", "best")
        lines = self.lines("r")
        validations = [line for line in lines if "val_loss" in line]
        far = [line["val_losses"]["far"] for line in validations]
        self.assertEqual(far, [line["val_loss"] for line in validations], "the set that counts")
        lowest = min(range(len(far)), key=far.__getitem__)
        self.assertEqual(lowest, len(far) - 4, "three were waited for")
        self.assertGreater(lowest, 0)
        step = validations[lowest]["step"]
        self.assertEqual([line["step"] for line in validations if "best" in line][-1], step)
        self.assertLess(lines[-1]["step"], 60)
        self.assertEqual(lines[-1]["step"], step + 12)
        self.assertIn(f"stopped early after step {step + 12}", said)
        self.assertIn("validation loss of near", said)
        self.assertIn(">far", (self.folder / "r/loss.svg").read_text().replace("of far", ">far"))
        # The model is that of a run which ends there, the last one that of one which ends later.
        self.run_of(self.course(), "short", "--save", "short", "--steps", step)
        self.assertEqual(self.saved("best"), self.saved("short"))
        self.run_of(self.course(), "long", "--save", "long", "--steps", step + 12)
        self.assertEqual(self.saved("r/last"), self.saved("long"))
        self.assertNotEqual(self.saved("best"), self.saved("long"))

    def test_of_a_run_that_is_killed_twice_is_the_same(self) -> None:
        config = self.course(run=BEST)
        self.run_of(config, "whole", "--save", "one", "--checkpoint-every", 100)
        end = self.lines("whole")[-1]["step"]
        words = ("--save", "two", "--checkpoint-every", 3)
        for number, step in enumerate((end - 7, end - 1)):
            result = self.train(
                config, "--run", "r", *words, "--set", "launch.restarts=0",
                "--inject", f"kill:rank=1,step={step}", *("--resume", "auto")[: 2 * number],
            )  # fmt: skip
            self.assert_code(result, 4)
        self.run_of(config, "r", *words, "--resume", "auto")
        self.assertEqual(self.lines("r"), self.lines("whole"))
        self.assertEqual(self.saved("two"), self.saved("one"))
        # It is over, however often it is started.
        said = self.run_of(config, "r", *words, "--resume", "auto")
        self.assertIn("stopped early", said)
        self.assertEqual(self.lines("r"), self.lines("whole"))
        self.assertEqual(self.saved("two"), self.saved("one"))

    def test_a_longer_run_validates_where_a_shorter_one_had_ended(self) -> None:
        config = self.course(run=BEST | {"patience": 0})
        self.run_of(config, "whole", "--save", "one", "--steps", 16)
        words = ("--save", "two", "--checkpoint-every", 8, "--resume", "auto", "--steps")
        self.run_of(config, "r", *words, 8)
        self.run_of(config, "r", *words, 16)
        self.assertEqual(self.lines("r"), self.lines("whole"))
        self.assertEqual(self.saved("two"), self.saved("one"))

    def test_a_set_that_is_none_is_an_error(self) -> None:
        result = self.train(self.course(run={"best": "fat"}), "--run", "r")
        self.assert_code(result, 2)
        self.assertIn('did you mean "far"', result.err)


class ItsLength(CourseTest):
    def without_steps(self, config: Path) -> Path:
        values = json.loads(config.read_text())
        del values["run"]["steps"]
        config.write_text(json.dumps(values))
        return config

    def test_is_that_of_epochs(self) -> None:
        config = self.without_steps(self.course())
        said = self.run_of(config, "r", "--epochs", 1.5)
        steps = [line for line in self.lines("r") if "loss" in line]
        self.assertEqual(len(steps), 15, "40 samples, 4 a step")
        self.assertEqual([line["epoch"] for line in steps][-1], 1.5)
        self.assertIn("1.5 epochs in 15 steps", said)
        self.assertIn("step 15/15", said)

    def test_is_said_once(self) -> None:
        result = self.train(self.course(), "--run", "r", "--epochs", 2)
        self.assert_code(result, 2)
        self.assertIn("run.steps", result.err)

    def test_text_has_no_epochs(self) -> None:
        config = self.without_steps(self.config())
        result = self.train(config, "--run", "r", "--epochs", 2)
        self.assert_code(result, 2)
        self.assertIn("samples of text are drawn anew", result.err)


class ItsRates(CourseTest):
    def rates(self, run: str) -> list[float]:
        return [line["lr"] for line in self.lines(run) if "lr" in line]

    def test_of_a_longer_run_are_kept_or_rescaled(self) -> None:
        config = self.course(scheduler=RATES)
        every = ("--checkpoint-every", 4, "--resume", "auto")
        for run in ("keep", "rescale"):
            self.run_of(config, run, *every, "--steps", 8)
        self.run_of(config, "long", "--steps", 16)
        said = self.run_of(config, "keep", *every, "--steps", 12, "--schedule", "keep")
        self.assertIn("keeps its course, which ends with step 8", said)
        # The next part of the run knows where the course ended.
        said = self.run_of(config, "keep", *every, "--steps", 16, "--schedule", "keep")
        self.assertIn("keeps its course, which ends with step 8", said)
        self.assertEqual(self.rates("keep")[8:], [0.0] * 8)
        said = self.run_of(config, "rescale", *every, "--steps", 16)
        self.assertIn("at step 8 to", said)
        self.assertIn("--schedule keep", said)
        self.assertEqual(self.rates("rescale")[8:], self.rates("long")[8:])
        self.assertEqual(self.rates("rescale")[:8], self.rates("keep")[:8])


if __name__ == "__main__":
    unittest.main()
