#!/usr/bin/env python3
"""What follows the last step loses nothing that was trained.

Takes over 10 s: runs that end in all ways behind their last step.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import time
import unittest
from pathlib import Path

from support import PENSTOCK, ProcessTest, Started, environment_of, raw_lines

ONE = {"pipe": 1, "data": 1}
VOCABULARY = 64


def write_tokens(path: Path, count: int, *, bad_at: int | None = None) -> Path:
    """uint16, below VOCABULARY but for the one at `bad_at`."""
    tokens = [(7 * i) % VOCABULARY for i in range(count)]
    if bad_at is not None:
        tokens[bad_at] = 999
    path.write_bytes(struct.pack(f"<{count}H", *tokens))
    return path


class BeforeTheFirstStep(ProcessTest):
    """What can be known then is not found at the end."""

    def assert_refused(self, config: Path, said: str) -> None:
        result = self.train(config, "--run", "r", "--save", "weights")
        self.assert_code(result, 2)
        self.assertIn(said, result.err)
        self.assertNotIn("step 1/", result.err)
        self.assertFalse((self.folder / "weights").exists())

    def tokens(self, validation: Path, **changes: object) -> Path:
        data = {
            "path": str(write_tokens(self.folder / "t.bin", 2000)),
            "validation": str(validation),
            "format": "uint16",
        }
        return self.config(
            mesh=ONE, data=data, model={"vocabulary": VOCABULARY},
            run={"eval_batches": 40, "sample_bytes": 0}, **changes,
        )  # fmt: skip

    def test_a_validation_token_beyond_the_vocabulary(self) -> None:
        bad = write_tokens(self.folder / "v.bin", 4000, bad_at=3331)
        self.assert_refused(self.tokens(bad), "999")

    def test_a_validation_in_which_nothing_counts(self) -> None:
        none = write_tokens(self.folder / "v.bin", 4000)
        none.with_name("v.bin.mask").write_bytes(bytes(500))
        note = {
            "penstock_corpus": 1, "token_bytes": 2, "tokens": 4000, "vocabulary": VOCABULARY,
            "end_of_text": None, "tokenizer": "t", "tokenizer_hash": "0", "masked": True,
        }  # fmt: skip
        none.with_name("v.bin.json").write_text(json.dumps(note))
        self.assert_refused(self.tokens(none), "no token of its samples counts")

    def test_stages_that_the_layers_do_not_fill(self) -> None:
        # Two blocks, the embedding and the head.
        for pipe, pipeline in ((8, {}), (2, {"partition": "type:nothing"})):
            config = self.config(mesh={"pipe": pipe, "data": 8 // pipe}, pipeline=pipeline)
            began = time.monotonic()
            result = self.train(config, "--run", "r")
            self.assert_code(result, 2)
            self.assertIn("layer", result.err)
            self.assertNotIn("rank ", result.err, "the launcher finds it")
            self.assertLess(time.monotonic() - began, 5)


class BehindTheLastStep(ProcessTest):
    """The last checkpoint and the weights are there before anything else happens."""

    def saved(self) -> bool:
        return (self.folder / "weights/model.safetensors.index.json").exists()

    def await_saved(self, run: Started) -> None:
        run.await_text("weights saved to weights")
        self.assertTrue(self.saved())

    def test_a_validation_that_does_not_end_keeps_them(self) -> None:
        config = self.config(mesh=ONE, run={"eval_batches": 1_000_000})
        run = self.start_train(config, "r", "--save", "weights", "--checkpoint-every", "100")
        self.await_saved(run)
        self.assertTrue((self.folder / "r/checkpoints/step-00000005/manifest.json").exists())
        self.assertNotIn("validation loss", run.output())
        run.process.kill()
        run.wait()

    def test_a_run_that_was_ended_there_goes_on_there(self) -> None:
        words = ("--save", "weights", "--checkpoint-every", "100")
        endless = self.config("endless.json", mesh=ONE, run={"eval_batches": 1_000_000})
        run = self.start_train(endless, "r", *words)
        self.await_saved(run)
        run.process.kill()
        run.wait()
        config = self.config(mesh=ONE)
        self.assert_code(self.train(config, "--run", "whole", "--save", "other"), 0)
        for _ in range(2):  # The second time, there is nothing left to do.
            result = self.train(config, "--run", "r", *words, "--resume", "auto")
            self.assert_code(result, 0)
            kept = [self.without_times(line) for line in raw_lines(self.folder / "r")]
            whole = [self.without_times(line) for line in raw_lines(self.folder / "whole")]
            self.assertEqual(kept, whole)

    def without_times(self, line: str) -> dict[str, object]:
        values = json.loads(line)
        return {key: value for key, value in values.items() if "second" not in key}

    def test_a_last_checkpoint_that_fails_keeps_the_weights(self) -> None:
        config = self.config(mesh=ONE)
        result = self.train(
            config, "--run", "r", "--save", "weights", "--checkpoint-every", "5",
            "--inject", "enospc:rank=0,step=5,at=save",
        )  # fmt: skip
        self.assert_code(result, 3)
        self.assertIn("step 5 is not saved", result.err)
        self.assertTrue(self.saved())
        self.assertIn("validation loss", result.err)
        events = [json.loads(line)["event"] for line in
                  (self.folder / "r/events.jsonl").read_text().splitlines()]  # fmt: skip
        self.assertNotIn("finished", events)

    def test_pictures_that_cannot_be_written_keep_the_weights(self) -> None:
        config = self.config(mesh=ONE)
        (self.folder / "r/loss.svg").mkdir(parents=True)
        result = self.train(config, "--run", "r", "--save", "weights")
        self.assert_code(result, 3)
        self.assertTrue(self.saved())


class Minutes(ProcessTest):
    """run.minutes count from the start of the run, whatever happens in between."""

    BEGAN = "PENSTOCK_RUN_BEGAN"

    def test_a_restart_begins_none_anew(self) -> None:
        config = self.config(
            mesh=ONE, run={"steps": 1_000_000, "minutes": 1}, steps_per_print=1_000_000,
            checkpoint={"save_interval": 1_000_000}, launch={"heartbeat_seconds": 120},
        )  # fmt: skip
        run = self.start_train(config, "r")
        run.await_step(2)
        first = run.ranks()[0]
        began = environment_of(first)[self.BEGAN]
        os.kill(first, signal.SIGKILL)
        run.await_text("starting the run again")
        while not (ranks := run.ranks()) or ranks[0] == first:
            time.sleep(0.01)
        self.assertEqual(environment_of(ranks[0])[self.BEGAN], began)
        run.process.kill()
        run.wait()

    def test_a_rank_counts_those_before_its_start(self) -> None:
        config = self.config(mesh=ONE, run={"steps": 40, "minutes": 5})
        ten_minutes_ago = time.clock_gettime(time.CLOCK_BOOTTIME) - 600
        variables = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            variables["MASTER_PORT"] = str(free.getsockname()[1])
        result = self.train(config, "--run", "r", **{**variables, self.BEGAN: str(ten_minutes_ago)})
        self.assert_code(result, 75)
        self.assertIn("stopped after step 1, run.minutes are over", result.err)

    def test_when_they_are_over_nothing_starts_again(self) -> None:
        config = self.config(
            mesh=ONE, run={"steps": 1_000_000, "minutes": 0.05}, steps_per_print=1_000_000,
            checkpoint={"save_interval": 1_000_000}, launch={"heartbeat_seconds": 120},
        )  # fmt: skip
        result = self.train(
            config, "--run", "r", "--inject", "delay:rank=0,at=data,seconds=4",
            "--inject", "kill:rank=0,at=build",
        )  # fmt: skip
        self.assert_code(result, 75)
        self.assertIn("not started again", result.err)


class Copies(ProcessTest):
    """Memory that is told has what asynchronous saves copy."""

    def told(self, *words: str) -> dict[str, int]:
        result = self.run_words(PENSTOCK, "memory", self.config(mesh=ONE), "--json", *words)
        self.assert_code(result, 0)
        return json.loads(result.out)["pipe_ranks"][0]["peak"]

    def test_of_a_run_that_saves(self) -> None:
        without = self.told()
        every = self.told("--set", "checkpoint.save_interval=2")
        told_anyway = self.told(
            "--set", "checkpoint.save_interval=2", "--set", "checkpoint.asynchronous=false"
        )
        self.assertEqual(without["checkpoint"], 0)
        self.assertEqual(told_anyway, without)
        self.assertEqual(every["checkpoint"], every["parameters"] + every["optimizer"])
        self.assertEqual(every["total"], without["total"] + every["checkpoint"])


if __name__ == "__main__":
    unittest.main()
