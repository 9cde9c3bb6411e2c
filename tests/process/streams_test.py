"""Commands whose standard streams are closed, full, or read by nobody.

Needs the standard library; a Python with torch and tokenizers for what tokenizes.
"""

from __future__ import annotations

import errno
import os
import unittest
from collections.abc import Callable
from pathlib import Path

import refused_calls
import support
from support import PENSTOCK

SCHEDULE = (PENSTOCK, "schedule", "1f1b", "--ranks", 4, "--microbatches", 8)


def closing(*streams: int) -> Callable[[], None]:
    return lambda: [os.close(stream) for stream in streams] and None


def to(path: str, *streams: int) -> Callable[[], None]:
    def point() -> None:
        file = os.open(path, os.O_WRONLY)
        for stream in streams:
            os.dup2(file, stream)

    return point


def to_no_reader() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    os.dup2(writing, 1)


def leaving(folder: Path) -> Callable[[], None]:
    """Into a folder that is gone by then."""

    def leave() -> None:
        folder.mkdir()
        os.chdir(folder)
        folder.rmdir()

    return leave


class Streams(refused_calls.Errands):
    def command(self, before: Callable[[], None], *words: object, **variables: str) -> int:
        return self.under(before, *words, **variables).code

    def assert_trains(self, name: str, before: Callable[[], None], **variables: str) -> None:
        config = self.config(mesh={"pipe": 2, "data": 1}, run={"steps": 3})
        words = (PENSTOCK, "train", config, "--run", name, "--save", f"{name}-weights")
        self.assertEqual(self.command(before, *words, **variables), 0)
        self.assertEqual(len(support.raw_lines(self.folder / name)), 4)
        self.assert_nothing_left(within=3)

    def test_a_run_needs_none(self) -> None:
        self.assert_trains("closed", closing(0, 1, 2))
        self.assert_trains("input", closing(0))
        self.assert_trains("full", to("/dev/full", 1, 2))
        self.assert_trains("unread", to_no_reader)

    def test_a_rank_of_another_launcher_needs_none(self) -> None:
        config = self.config(mesh={"pipe": 1, "data": 1}, run={"steps": 3})
        words = (PENSTOCK, "train", config, "--run", "rank")
        variables = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
        port = str(support.free_port())
        code = self.command(closing(0, 1, 2), *words, MASTER_PORT=port, **variables)
        self.assertEqual(code, 0)
        self.assertEqual(len(support.raw_lines(self.folder / "rank")), 4)

    def test_an_answer_that_cannot_be_written_is_told(self) -> None:
        for before in (closing(1), closing(0, 1, 2), to("/dev/full", 1), to_no_reader):
            self.assertEqual(self.command(before, *SCHEDULE), 1)
        result = self.under(closing(1), *SCHEDULE)
        self.assertIn("cannot write to the standard output", result.err)
        self.assertEqual(self.command(closing(0, 2), *SCHEDULE), 0)

    def test_a_program_that_ranks_run_has_all_three(self) -> None:
        code = "import os; [os.fstat(n) for n in (0, 1, 2)]; print('told', flush=True)"
        words = (PENSTOCK, "launch", "--nproc", 2, "--", "python3", "-c", code)
        for streams in ((0,), (1,), (0, 1, 2)):
            self.assertEqual(self.command(closing(*streams), *words), 0)

    def test_a_folder_that_is_gone(self) -> None:
        self.assert_code(self.under(leaving(self.folder / "gone"), *SCHEDULE), 0)
        result = self.under(leaving(self.folder / "away"), PENSTOCK, "train", self.config())
        self.assertIn(result.code, (0, 2), result.text)

    def test_tokenizing(self) -> None:
        self.python = refused_calls.tokenizing_python()
        self.make_tokenizer()
        if not self.python:
            self.skipTest("no Python with tokenizers; name one with PENSTOCK_TORCH_PYTHON")
        for before in (closing(0, 1, 2), closing(0), closing(2), closing(1)):
            self.assertEqual(self.tokenize_errand("again", before).code, 0)
            for path in self.folder.glob("again.bin*"):
                path.unlink()
        result = self.tokenize("full", to("/dev/full", 1))
        self.assert_code(result, 1)
        self.assertEqual(
            result.err,
            f"penstock: cannot write to the standard output: {os.strerror(errno.ENOSPC)}\n",
        )
        self.assertTrue((self.folder / "full.bin.json").exists(), "the corpus is whole")


if __name__ == "__main__":
    unittest.main(verbosity=2)
