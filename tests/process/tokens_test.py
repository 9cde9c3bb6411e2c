"""`penstock train` on token files: the same tokens in every layout and after a resume.

Losses are compared bit for bit under numerics.invariant, where they depend on the tokens alone.
Standard library only.
Takes over 10 s: one run for each layout, and each rank loads torch.
"""

from __future__ import annotations

import array
import json
import math
import random
import unittest
from pathlib import Path

import support
from support import PENSTOCK, ProcessTest, losses

VOCABULARY = 300
SEQUENCE = 16
BATCH = 8
LAYOUTS = [(1, 1), (2, 1), (1, 2), (2, 2)]


def write_tokens(path: Path, count: int, seed: int, code: str = "H") -> Path:
    generator = random.Random(seed)
    tokens = [generator.randrange(VOCABULARY) for _ in range(count)]
    path.write_bytes(array.array(code, tokens).tobytes())
    return path


def write_note(path: Path, tokens: int, **changes: object) -> None:
    note = {
        "penstock_corpus": 1,
        "token_bytes": 2,
        "tokens": tokens,
        "vocabulary": VOCABULARY,
        "end_of_text": None,
        "tokenizer": "random numbers",
        "tokenizer_hash": "0",
        "masked": False,
        **changes,
    }
    Path(f"{path}.json").write_text(json.dumps(note))


def write_mask(path: Path, tokens: int, share: float) -> None:
    """Of that share of the tokens, in no order, and of none in the fourth of every 5 samples."""
    generator = random.Random(3)
    bits = bytearray((tokens + 7) // 8)
    for token in range(tokens):
        if generator.random() < share and (token - 1) // SEQUENCE % 5 != 3:
            bits[token // 8] |= 1 << token % 8
    Path(f"{path}.mask").write_bytes(bits)


class Tokens(ProcessTest):
    def token_config(self, name: str = "tokens.json", **changes: object) -> Path:
        base = {
            "train_batch_size": BATCH,
            "model": {"vocabulary": VOCABULARY, "sequence_length": SEQUENCE},
            "numerics": {"invariant": True},
            "data": {"path": ""},
            "run": {"steps": 6, "eval_batches": 2},
        }
        return self.config(name, **support.merged(base, changes))

    def corpora(self) -> list[dict[str, object]]:
        """Two sources, of which one has a mask; an epoch of the second is 5 steps of its share."""
        first = write_tokens(self.folder / "first.bin", 3000, 1)
        second = write_tokens(self.folder / "second.bin", 16 * 11 + 1, 2)
        write_note(second, 16 * 11 + 1, masked=True)
        write_mask(second, 16 * 11 + 1, 0.5)
        return [
            {"path": str(first), "format": "uint16", "weight": 3},
            {"path": str(second), "weight": 1},
        ]

    def course(self, config: Path, name: str, *words: object) -> list[tuple[str, str, str]]:
        result = self.train(config, "--run", name, *words)
        self.assert_code(result, 0)
        return losses(self.folder / name)

    def test_every_layout_sees_the_same_tokens(self) -> None:
        sources = self.corpora()
        courses = []
        for pipe, data in LAYOUTS:
            config = self.token_config(
                f"{pipe}x{data}.json",
                data={"sources": sources},
                mesh={"pipe": pipe, "data": data},
            )
            courses.append(self.course(config, f"run{pipe}x{data}"))
        self.assertEqual(len(courses[0]), 7)  # With the validation.
        for course in courses[1:]:
            self.assertEqual(course, courses[0])
        # Another order of samples would not give that.
        other = self.token_config(data={"sources": sources}, seed=8, mesh={"pipe": 1, "data": 1})
        self.assertNotEqual(self.course(other, "other"), courses[0])

    def test_a_run_goes_on_with_the_sample_after_in_another_layout(self) -> None:
        sources = self.corpora()
        whole = self.token_config(data={"sources": sources}, mesh={"pipe": 1, "data": 1})
        expected = self.course(whole, "whole")
        saved = {"directory": str(self.folder / "checkpoints"), "save_interval": 3}
        begins = self.token_config(
            "begins.json",
            data={"sources": sources},
            mesh={"pipe": 2, "data": 1},
            checkpoint=saved,
        )
        first = self.course(begins, "first", "--steps", 3)
        goes_on = self.token_config(
            "goes_on.json",
            data={"sources": sources},
            mesh={"pipe": 1, "data": 2},
            checkpoint=saved,
        )
        second = self.course(goes_on, "second", "--resume", "auto")
        self.assertEqual(first[:3], expected[:3])
        self.assertEqual(second, expected[3:])

    def test_the_loss_is_the_mean_of_the_tokens_that_count(self) -> None:
        """Cut into 8 microbatches, of which some count nothing, or taken as one."""
        sources = self.corpora()[1:]
        values = []
        for size in (1, BATCH):
            config = self.token_config(
                f"of{size}.json",
                train_micro_batch_size_per_gpu=size,
                data={"sources": sources},
                mesh={"pipe": 1, "data": 1},
                run={"steps": 2},
            )
            for row in self.course(config, f"micro{size}"):
                values.append([float(value) for value in row if value != ""])
        for one, other in zip(values[:3], values[3:], strict=True):
            for a, b in zip(one, other, strict=True):
                # Sums of 64 terms in another order, in float.
                self.assertTrue(math.isclose(a, b, rel_tol=64 * 2**-24), (a, b))

    def test_formats_of_the_same_tokens_train_alike(self) -> None:
        tokens = write_tokens(self.folder / "raw.bin", 2000, 5)
        values = array.array("H", tokens.read_bytes())
        header = array.array("i", [20240520, 1, 2000, *[0] * 253])
        llmc = self.folder / "llmc.bin"
        llmc.write_bytes(header.tobytes() + values.tobytes())
        megatron = self.folder / "m.bin"
        megatron.write_bytes(array.array("i", values).tobytes())
        index = b"MMIDIDX\0\0" + array.array("q", [1]).tobytes() + b"\4"
        index += array.array("q", [2, 3]).tobytes() + array.array("i", [500, 1500]).tobytes()
        (self.folder / "m.idx").write_bytes(index + array.array("q", [0, 2000, 0, 1, 2]).tobytes())
        note = self.folder / "note.bin"
        note.write_bytes(array.array("I", values).tobytes())
        write_note(note, 2000, token_bytes=4)
        courses = []
        for path, form in [
            (tokens, "uint16"),
            (llmc, "auto"),
            (megatron, "auto"),
            (self.folder / "m", "megatron"),
            (note, "auto"),
        ]:
            config = self.token_config(
                data={"path": str(path), "format": form}, mesh={"pipe": 1, "data": 1}
            )
            courses.append(self.course(config, f"run{len(courses)}", "--steps", 2))
        for course in courses[1:]:
            self.assertEqual(course, courses[0])

    def refuse(self, pattern: str, *words: object, **changes: object) -> None:
        mesh = {"pipe": 1, "data": 2}
        result = self.train(self.token_config(mesh=mesh, **changes), "--run", "run", *words)
        self.assert_code(result, 2)
        self.assertRegex(result.err, pattern)
        self.assertNotIn("terminate", result.err)

    def test_bad_data_end_the_run_with_their_place(self) -> None:
        path = write_tokens(self.folder / "t.bin", 2000, 5)
        self.refuse(r'"\S+t.bin", byte 0: nothing says how', data={"path": str(path)})
        raw = {"path": str(path), "format": "uint16"}
        self.refuse(
            r'"\S+t.bin", byte \d+: token \d+ is 299; the model\'s vocabulary has 0 to 298',
            data=raw,
            model={"vocabulary": 299},
        )
        self.refuse(
            r"train_batch_size|has 2 tokens|sample takes",
            data={"path": str(write_tokens(self.folder / "u.bin", 2, 5)), "format": "uint16"},
        )
        write_note(path, 2000)
        self.refuse(
            r'tokenizer "random numbers" has a vocabulary of 300, and the model one of 256',
            data={"path": str(path)},
            model={"vocabulary": 256},
        )
        self.refuse(r"is for token files", data={"path": str(self.text), "validation": str(path)})
        self.refuse(
            r"the model.s vocabulary is 100: text is read as bytes, which take 256",
            data={"path": str(self.text)},
            model={"vocabulary": 100},
        )

    def test_validation_has_a_file_of_its_own(self) -> None:
        path = write_tokens(self.folder / "t.bin", 2000, 5)
        held = write_tokens(self.folder / "held.bin", 16 * 9 + 1, 6)
        data = {"path": str(path), "format": "uint16", "validation": str(held)}
        config = self.token_config(data=data, mesh={"pipe": 1, "data": 1})
        result = self.train(config, "--run", "run")
        self.assert_code(result, 0)
        self.assertIn("2000 tokens, 124 samples to train on, 9 to validate", result.err)
        self.assertFalse((self.folder / "run" / "sample.txt").exists())
        self.assert_code(self.run_words(PENSTOCK, "memory", config), 0)

    def folder_of_nanogpt(self, name: str) -> Path:
        """Its two token files, and what its preparation leaves beside them."""
        folder = self.folder / name
        folder.mkdir()
        write_tokens(folder / "train.bin", 2000, 5)
        write_tokens(folder / "val.bin", 16 * 9 + 1, 6)
        (folder / "input.txt").write_text("First Citizen:\n" * 40)
        (folder / "prepare.py").write_text("import os\n" * 40)
        return folder

    def test_a_folder_of_nanogpt_is_trained_on_as_it_lies(self) -> None:
        folder = self.folder_of_nanogpt("letters")
        (folder / "meta.pkl").write_bytes(b"\x80\x04}.")
        mesh = {"pipe": 1, "data": 1}
        raw = {"format": "uint16", "validation": str(folder / "val.bin")}
        named = self.token_config(
            "n.json", data={"path": str(folder / "train.bin"), **raw}, mesh=mesh
        )
        whole = self.token_config(data={"path": str(folder)}, mesh=mesh)
        result = self.train(whole, "--run", "run")
        self.assert_code(result, 0)
        self.assertIn("2000 tokens, 124 samples to train on, 9 to validate", result.err)
        self.assertEqual(losses(self.folder / "run"), self.course(named, "named"))
        result = self.run_words(PENSTOCK, "train", whole, "--set", "data.format=text", "--run", "t")
        self.assertIn("bytes of validation text in 3 files", result.err)

    def test_a_step_in_which_nothing_counts_is_found_before_the_first(self) -> None:
        path = write_tokens(self.folder / "t.bin", 16 * 40 + 1, 5)
        write_note(path, 16 * 40 + 1, masked=True)
        bits = bytearray(16 * 40 // 8 + 1)
        self.refuse(r"exist|not there", data={"path": str(path)})
        mask = Path(f"{path}.mask")
        mask.write_bytes(bits)
        data = {"path": str(path), "shuffle": False}
        self.refuse(r"no token of the samples to train on counts", data=data)
        bits[: 16 * 2 * BATCH // 8] = b"\xff" * (16 * 2 * BATCH // 8)
        mask.write_bytes(bits)
        held = str(write_tokens(self.folder / "held.bin", 16 * 9 + 1, 6))
        write_note(Path(held), 16 * 9 + 1)
        data["validation"] = held
        self.refuse(r"no token of any sample of step 3 counts", data=data)
        self.assertFalse((self.folder / "run" / "metrics.jsonl").exists())


if __name__ == "__main__":
    unittest.main()
