"""`penstock generate`: the same tokens through every pipeline, and bad input.

That they are the right ones is tests/parity/generate_test.py's to say.  Standard library only.
Takes over 10 s: one text for each pipeline, and each rank loads torch.
"""

from __future__ import annotations

import json
import os
import signal
import time
import unittest

import support
from model_folders import TINY_LLAMA, write_gpt2, write_llama, write_random_weights
from support import PENSTOCK, ProcessTest

LAYERS = 2
CONFIG = {
    **TINY_LLAMA,
    "vocab_size": 40,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": LAYERS,
    "tie_word_embeddings": True,
}


class Generate(ProcessTest):
    def setUp(self) -> None:
        super().setUp()
        self.model = write_llama(self.folder / "model", **CONFIG)
        write_random_weights(self.model)

    def generate(self, *words: object, code: int = 0, **environment: str):
        result = self.run_words(
            PENSTOCK,
            "generate",
            self.model,
            *words,
            environment=self.environment(**environment),
        )
        self.assert_code(result, code)
        return result

    def tokens(self, *words: object) -> list[int]:
        told = json.loads(self.generate("--tokens", "3,1,4", "--json", *words).out)
        self.assertEqual(told["prompt_tokens"], [3, 1, 4])
        return told["tokens"]

    def test_every_pipeline_writes_the_same(self) -> None:
        drawing = ("--temperature", 1, "--top-p", 0.9, "--max-tokens", 20)
        for words in (("--max-tokens", 20), (*drawing, "--seed", 4)):
            one = self.tokens(*words)
            self.assertEqual(len(one), 20)
            for pipe in (2, 3, LAYERS + 3):
                self.assertEqual(self.tokens(*words, "--pipe", pipe), one)
        self.assertNotEqual(self.tokens(*drawing, "--seed", 5), one)
        self.assertEqual(self.generate("--tokens", 7, "--max-tokens", 1).out.count(","), 0)
        self.assert_nothing_left()

    def test_it_ends_behind_a_token_that_ends_a_text(self) -> None:
        all_of_them = self.tokens()
        self.assertEqual(len(all_of_them), 64)
        ends = {**CONFIG, "eos_token_id": all_of_them[2]}
        (self.model / "config.json").write_text(json.dumps(ends))
        upto = all_of_them[: all_of_them.index(all_of_them[2]) + 1]
        self.assertEqual(self.tokens(), upto)
        ends["eos_token_id"] = "none"
        (self.model / "config.json").write_text(json.dumps(ends))
        error = self.generate("--tokens", 3, code=2).err
        self.assertIn("eos_token_id: expected a token's number", error)

    def test_what_the_folder_says_of_drawing_is_told(self) -> None:
        says = {"do_sample": True, "temperature": 0.6, "top_k": 50, "max_length": 20}
        (self.model / "generation_config.json").write_text(json.dumps(says))
        error = self.generate("--tokens", 3, "--max-tokens", 1).err
        self.assertIn("do_sample = true, temperature = 0.6, which is passed over", error)
        self.assertNotIn("top_k", error)

    def test_ranks_that_share_layers_write_the_same(self) -> None:
        """Every other text is as likely, bit for bit, up to the rounding of sums over ranks."""
        drawing = ("--temperature", 1, "--top-p", 0.9, "--max-tokens", 20, "--seed", 4)
        for words in (("--max-tokens", 40), drawing):
            one = self.tokens(*words)
            for tensor, pipe in ((2, 1), (4, 1), (2, 2)):
                with self.subTest(f"{words} {tensor} {pipe}"):
                    shared = ("--set", f"mesh.tensor={tensor}", "--pipe", pipe)
                    self.assertEqual(self.tokens(*words, *shared), one)
        self.assert_nothing_left()

    def test_ranks_that_share_layers_of_gpt2_write_the_same(self) -> None:
        self.model = write_gpt2(self.folder / "gpt2", vocab_size=41)
        write_random_weights(self.model)
        one = self.tokens("--max-tokens", 40)
        for tensor, pipe in ((2, 1), (5, 1), (2, 2)):
            with self.subTest(f"{tensor} {pipe}"):
                shared = ("--set", f"mesh.tensor={tensor}", "--pipe", pipe)
                self.assertEqual(self.tokens("--max-tokens", 40, *shared), one)

    def test_files_that_are_none_are_refused_at_once(self) -> None:
        """A pipe in place of a file was waited for without end."""
        for name in ("config.json", "model.safetensors", "generation_config.json"):
            with self.subTest(name):
                path = self.model / name
                before = path.read_bytes() if path.exists() else b""
                path.unlink(missing_ok=True)
                os.mkfifo(path)
                code = 3 if name == "model.safetensors" else 2
                error = self.generate("--tokens", 3, code=code).err
                self.assertIn(name, error)
                self.assertIn("is a pipe, and no file", error)
                path.unlink()
                if before:
                    path.write_bytes(before)

    def test_sizes_of_no_model_take_no_memory(self) -> None:
        """300 bytes of a configuration took all memory."""
        said = {"num_hidden_layers": "in [1, 16384]", "vocab_size": "[1000000000, 16]"}
        for key, words in said.items():
            with self.subTest(key):
                (self.model / "config.json").write_text(json.dumps({**CONFIG, key: 10**9}))
                limit = ("prlimit", f"--as={4 << 30}")
                result = self.run_words(*limit, PENSTOCK, "generate", self.model, "--tokens", "3")
                self.assertIn(result.code, (2, 3))
                self.assertIn(words, result.err)

    def test_bad_input_is_refused(self) -> None:
        refused = {
            "nothing to go on from": (),
            "vocabulary has 0 to 39": ("--tokens", "3,40"),
            "no replicas": ("--tokens", "3", "--nproc", 2),
            "sizes that work: 1, 2, 4": ("--tokens", "3", "--set", "mesh.tensor=3"),
            "2 stages, which 2 ranks each share: there are no replicas": (
                *("--tokens", "3", "--pipe", 2, "--set", "mesh.tensor=2", "--nproc", 8),
            ),
            "use 1 to 5 stages": ("--tokens", "3", "--pipe", LAYERS + 4),
            "above 0, up to 1": ("--tokens", "3", "--top-p", 0),
            "--max-tokens: expected an integer": ("--tokens", "3", "--max-tokens", 0),
            "numbers with ',' between, found \"\"": ("--tokens", ""),
            "numbers with ',' between, found \"1,,2\"": ("--tokens", "1,,2"),
            "numbers with ',' between, found \"-1\"": ("--tokens=-1",),
            'from 1e-06 to 1e+06, found "1e-40"': ("--tokens", "3", "--temperature", "1e-40"),
            'from 1e-06 to 1e+06, found "inf"': ("--tokens", "3", "--temperature", "inf"),
        }
        for text, words in refused.items():
            with self.subTest(text):
                self.assertIn(text, self.generate(*words, code=2).err)
        self.model = self.folder / "none"
        self.assertIn("none", self.generate("--tokens", 3, code=2).err)

    def test_it_stops_when_it_is_asked_to(self) -> None:
        words = ("--tokens", "3,1,4", "--max-tokens", 1 << 20, "--pipe", 2)
        started = self.start(PENSTOCK, "generate", self.model, *words)
        started.await_text(",", times=20)  # Tokens are written as they come.
        started.process.send_signal(signal.SIGTERM)
        result = started.wait()
        self.assert_code(result, 75)
        self.assertRegex(result.out, r"\A\d+(,\d+)*\n\Z")
        self.assert_nothing_left()

    def test_it_stops_before_the_first_token(self) -> None:
        started = self.start(PENSTOCK, "generate", self.model, "--tokens", "3", "--max-tokens", 9)
        deadline = time.monotonic() + support.PATIENCE
        while not started.ranks() and time.monotonic() < deadline:
            time.sleep(0.001)
        started.process.send_signal(signal.SIGTERM)
        result = started.wait()
        self.assert_code(result, 75)
        self.assertEqual(result.out, "")
        self.assert_nothing_left()

    def test_it_ends_when_nobody_reads_any_more(self) -> None:
        script = 'set -o pipefail; "$0" generate "$1" --tokens 3 --max-tokens 9999999 | head -c 20'
        result = self.run_words("bash", "-c", script, PENSTOCK, self.model)
        self.assert_code(result, 1)
        self.assertEqual(len(result.out), 20)
        self.assertIn("cannot write to the standard output", result.err)
        self.assert_nothing_left()

    def test_a_prompt_without_a_tokenizer_says_what_helps(self) -> None:
        error = self.generate("--prompt", "a", code=2, PENSTOCK_PYTHON="/none/python").err
        self.assertIn("/none/python is not there", error)
        self.assertIn("--tokens 1,2,3", error)
        error = self.generate("--prompt", "a", code=2, PENSTOCK_PYTHON="false").err
        self.assertIn("false ended with 1", error)


if __name__ == "__main__":
    unittest.main()
