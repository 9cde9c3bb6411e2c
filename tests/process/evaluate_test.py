"""`penstock evaluate`: the same loss in every layout, what it counts, and bad input.

Standard library only.
Takes over 10 s: one evaluation for each layout, and each rank loads torch.
"""

from __future__ import annotations

import array
import json
import math
import random
import unittest
from pathlib import Path

from support import PENSTOCK, TINY, ProcessTest, make_text, merged

SEQUENCE = 16
TOKENS = 16 * 21 + 6  # 21 samples, which no batch of 8 divides, and 5 targets behind them.


class Evaluate(ProcessTest):
    def setUp(self) -> None:
        super().setUp()
        generator = random.Random(5)
        tokens = [generator.randrange(256) for _ in range(TOKENS)]
        self.tokens = self.folder / "tokens.bin"
        self.tokens.write_bytes(array.array("H", tokens).tobytes())
        self.text = make_text(self.folder / "text")

    def trained(self) -> Path:
        run = self.folder / "run"
        config = self.config("gpt.json", data={"path": str(self.text)})
        self.assert_code(self.train(config, "--run", run, "--checkpoint-every", 5), 0)
        return run

    def evaluate(self, config: object, *words: object, code: int = 0):
        result = self.run_words(PENSTOCK, "evaluate", config, *words)
        self.assert_code(result, code)
        return result

    def told(self, run: Path, *words: object) -> dict:
        config = self.folder / "gpt.json"
        data = ("--data", self.tokens, "--set", "data.format=uint16")
        resume = ("--run", run, "--resume", "auto")
        return json.loads(self.evaluate(config, *data, *resume, "--json", *words).out)

    def test_every_layout_counts_each_token_once(self) -> None:
        run = self.trained()
        before = sorted(path.name for path in run.iterdir())
        one = self.told(run, "--set", "mesh.pipe=1", "--set", "mesh.data=1")
        self.assertEqual((one["samples"], one["tokens"], one["left_out"]), (21, 21 * SEQUENCE, 5))
        self.assertAlmostEqual(one["perplexity"], math.exp(one["loss"]), places=9)
        # Random tokens are no easier than chance, and after 5 steps not much harder.
        self.assertTrue(math.log(256) - 0.3 < one["loss"] < math.log(256) + 1.5, one)
        for pipe, data in ((2, 1), (1, 2), (2, 2)):
            layout = ("--set", f"mesh.pipe={pipe}", "--set", f"mesh.data={data}")
            self.assertEqual(self.told(run, *layout), one)
        self.assertEqual(sorted(path.name for path in run.iterdir()), before)

    def test_a_checkpoint_is_told_from_another(self) -> None:
        run = self.trained()
        config = self.config("more.json", data={"path": str(self.text)})
        words = ("--run", run, "--resume", "auto", "--steps", 10, "--checkpoint-every", 5)
        self.assert_code(self.train(config, *words), 0)
        newest = self.told(run)
        (older,) = (run / "checkpoints").glob("*5")
        data = ("--data", self.tokens, "--set", "data.format=uint16", "--resume", older)
        first = json.loads(self.evaluate(self.folder / "gpt.json", *data, "--json").out)
        self.assertNotEqual(first["loss"], newest["loss"])
        self.assertEqual(first["tokens"], newest["tokens"])

    def test_each_set_has_a_result_of_its_own(self) -> None:
        run = self.trained()
        (self.folder / "more.bin").write_bytes(array.array("H", range(SEQUENCE * 3 + 1)).tobytes())
        config, more = self.folder / "gpt.json", self.folder / "more.bin"
        words = ("--set", "data.format=uint16", "--run", run, "--resume", "auto")
        sets = ("--data", f"random={self.tokens}", "--data", more)
        told = json.loads(self.evaluate(config, *sets, *words, "--json").out)["sets"]
        self.assertEqual(list(told), ["random", "more"])
        self.assertEqual(told["random"], self.told(run))
        self.assertEqual((told["more"]["samples"], told["more"]["left_out"]), (3, 0))
        one = ("--data", f"a={more}", "--set", "mesh.pipe=2")
        told_one = json.loads(self.evaluate(config, *one, *words, "--json").out)["sets"]
        self.assertEqual(told_one, {"a": told["more"]})
        lines = self.evaluate(config, *sets, *words).out.splitlines()
        self.assertRegex(lines[0], r"^random: loss \S+ nats a token, perplexity \S+; 336 tokens")
        self.assertTrue(lines[1].startswith("more: loss "), lines)
        self.assertEqual(len(lines), 2)
        twice = ("--data", more, "--data", f"more={self.tokens}")
        self.assertIn('both named "more"', self.evaluate(config, *twice, *words, code=2).err)
        self.assertIn("names no file", self.evaluate(config, "--data", "a=", *words, code=2).err)

    def test_bad_input_is_refused(self) -> None:
        config = self.config("no_data.json", data={"path": ""})
        data = ("--data", self.tokens)
        error = self.evaluate(config, *data, code=2).err
        self.assertIn("names no weights to evaluate", error)
        run = self.trained()
        resume = ("--run", run, "--resume", "auto")
        self.assertIn("is text", self.evaluate(config, "--data", self.text, *resume, code=2).err)
        self.assertIn("no data", self.evaluate(config, *resume, code=2).err)
        error = self.evaluate(config, "--data", self.folder / "none.bin", *resume, code=2).err
        self.assertIn("does not exist", error)
        nowhere = ("--run", self.folder / "nowhere", "--resume", "auto")
        uint16 = ("--set", "data.format=uint16")
        error = self.evaluate(config, *data, *uint16, *nowhere, code=2).err
        self.assertIn("no checkpoint to evaluate", error)
        error = self.evaluate(config, *data, *uint16, "--resume", "auto", code=2).err
        self.assertIn("--run DIR", error)
        error = self.evaluate(self.folder, *data, code=2).err
        self.assertIn("config.json", error)

    def test_a_mask_that_leaves_out_all_is_an_error(self) -> None:
        run = self.trained()
        note = {
            "penstock_corpus": 1,
            "token_bytes": 2,
            "tokens": TOKENS,
            "vocabulary": 256,
            "end_of_text": None,
            "tokenizer": "none",
            "tokenizer_hash": "0",
            "masked": True,
        }
        Path(f"{self.tokens}.json").write_text(json.dumps(note))
        Path(f"{self.tokens}.mask").write_bytes(bytes((TOKENS + 7) // 8))
        resume = ("--run", run, "--resume", "auto")
        words = ("--data", self.tokens, *resume)
        error = self.evaluate(self.folder / "gpt.json", *words, code=2).err
        self.assertIn("no token of the files counts", error)


if __name__ == "__main__":
    assert merged(TINY, {})["model"]["sequence_length"] == SEQUENCE
    unittest.main()
