"""A save whose disk has an error says where and why, and leaves what was there.

errors_test.py SAVE DISK PENSTOCK: of each error one call of each name, and places that are full,
read only or limited.  errors_soak.py has every call and whole runs.
"""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
import tempfile
import unittest
from collections.abc import Callable
from pathlib import Path

import places
from saves import ERRORS, Tools, is_told, steps_in

TOOLS: Tools


class Errors(unittest.TestCase):
    def setUp(self) -> None:
        holder = tempfile.TemporaryDirectory(prefix="penstock-test-")
        self.addCleanup(holder.cleanup)
        self.folder = Path(holder.name).resolve()

    def test_one_call_of_each_name_with_each_error(self) -> None:
        old = self.folder / "old"
        TOOLS.make_old(old)
        calls = TOOLS.calls_of(old, 20)
        firsts = {call.name: number for number, call in reversed([*enumerate(calls, 1)])}
        for name in ("mkdir", "open", "write", "fsync", "close", "rename", "renameat2"):
            self.assertIn(name, firsts)
        tried = 0
        for index, error in enumerate(ERRORS):
            for name, number in sorted(firsts.items())[index % 2 :: 2]:
                with self.subTest(error=error, call=name):
                    wrong = TOOLS.wrong_after_error(old, 20, calls, number, error, goes_on=False)
                    self.assertEqual(wrong, "")
                    tried += 1
        print(f"errors of one call: {tried}")

    def test_an_old_checkpoint_that_is_not_removed(self) -> None:
        old = self.folder / "old"
        TOOLS.make_old(old)
        calls = TOOLS.calls_of(old, 30)
        first = next(i for i, call in enumerate(calls, 1) if call.path.endswith(".removing"))
        self.assertGreater(len(calls), first + 1)
        for number in range(first, len(calls) + 1):
            with self.subTest(call=calls[number - 1]):
                wrong = TOOLS.wrong_after_error(old, 30, calls, number, "EIO", goes_on=False)
                self.assertEqual(wrong, "")

    def test_a_disk_that_stays_full(self) -> None:
        old = self.folder / "old"
        TOOLS.make_old(old)
        calls = TOOLS.calls_of(old, 30)
        number = next(i for i, call in enumerate(calls, 1) if call.name == "write")
        wrong = TOOLS.wrong_after_error(old, 30, calls, number, "ENOSPC", goes_on=True)
        self.assertEqual(wrong, "")


class Places(unittest.TestCase):
    """Real ones, without the disk of disk.cpp."""

    def save(
        self, directory: Path, step: int, before: Callable[[], None] | None = None
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [TOOLS.save_program, directory, str(step)],
            preexec_fn=before,
            restore_signals=False,  # A file that becomes too large is an error, and no signal.
            capture_output=True,
            text=True,
            check=False,
        )

    def assert_refused(
        self, result: subprocess.CompletedProcess[str], path: Path, why: int
    ) -> None:
        self.assertEqual(result.returncode, 3, result.stderr)
        words = os.strerror(why)
        self.assertTrue(is_told(result.stderr, str(path), words, path.parent), result.stderr)

    def test_a_disk_of_one_mebibyte(self) -> None:
        place = places.small_disk_for(self, "1m")
        result = self.save(place / "checkpoints", 10)
        self.assertRegex(result.stderr, r'penstock: cannot write "[^"]+": No space left')
        self.assertEqual(result.returncode, 3)
        self.assertEqual([*(place / "checkpoints").iterdir()], [])

    def test_a_disk_with_room_for_one(self) -> None:
        directory = places.small_disk_for(self, "8m") / "checkpoints"
        self.assertEqual(self.save(directory, 10).returncode, 0)
        result = self.save(directory, 20)
        self.assertEqual(result.returncode, 3)
        self.assertIn("No space left on device", result.stderr)
        self.assertEqual([path.name for path in directory.iterdir()], ["step-00000010"])
        self.assertEqual(TOOLS.why_not_whole(directory), "")

    def test_a_disk_that_becomes_read_only(self) -> None:
        place = places.small_disk_for(self, "40m")
        directory = place / "checkpoints"
        self.assertEqual(self.save(directory, 10).returncode, 0)
        places.set_read_only(place, True)
        saving = directory / "step-00000020.saving"
        self.assert_refused(self.save(directory, 20), saving, errno.EROFS)
        self.assert_refused(self.save(place / "others", 20), place / "others", errno.EROFS)
        self.assertEqual(TOOLS.why_not_whole(directory), "")
        places.set_read_only(place, False)
        self.assertEqual(self.save(directory, 20).returncode, 0)
        self.assertEqual(steps_in(directory), [10, 20])

    def test_limits_of_a_process(self) -> None:
        with tempfile.TemporaryDirectory(prefix="penstock-test-") as name:
            directory = Path(name).resolve() / "checkpoints"
            self.assertEqual(self.save(directory, 10).returncode, 0)
            shard = directory / "step-00000020.saving" / "shard-00000-of-00002.safetensors"
            large = places.with_limit(resource.RLIMIT_FSIZE, 1 << 20)
            self.assert_refused(self.save(directory, 20, large), shard, errno.EFBIG)
            # Standard input, output and errors, and so many more.
            codes = []
            for more in range(4):
                few = places.with_limit(resource.RLIMIT_NOFILE, 3 + more)
                result = self.save(directory, 20, few)
                codes.append(result.returncode)
                if result.returncode == 3:
                    self.assertIn("Too many open files", result.stderr)
            self.assertIn(3, codes)
            self.assertEqual(codes[-1], 0)
            self.assertEqual(TOOLS.why_not_whole(directory), "")


if __name__ == "__main__":
    TOOLS = Tools(*map(Path, sys.argv[1:4]))
    unittest.main(argv=[sys.argv[0], *sys.argv[4:]], verbosity=2)
