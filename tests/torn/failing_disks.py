"""Runs of `penstock train` whose checkpoints meet a failing disk.

errors_soak.py runs many.  The disk is that of disk.cpp, in the ranks of penstock's own launcher.
"""

from __future__ import annotations

import errno
import os
import random
import resource
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import comebacks
import places
import support
from saves import ERRORS, Call, calls_in, is_told, steps_in
from support import PENSTOCK

STEPS, EVERY = 8, 2


@dataclass(frozen=True)
class Case:
    """Which call of a run fails how."""

    error: str
    rank: int
    goes_on: bool
    on_failure: str
    moment: float  # Of the calls of a rank, from 0 to 1.


def drawn(number: int, generator: random.Random) -> Case:
    errors = list(ERRORS)
    return Case(
        error=errors[number % len(errors)],
        rank=number // len(errors) % 2,
        goes_on=number // (2 * len(errors)) % 2 == 1,
        on_failure=generator.choice(("warn", "stop")),
        moment=generator.random(),
    )


class DiskTest(comebacks.ComebackTest):
    def two_ranks(self, on_failure: str = "warn") -> Path:
        return self.training(
            f"{on_failure}.json",
            mesh={"pipe": 2, "data": 1},
            run={"steps": STEPS},
            checkpoint={
                "save_interval": EVERY,
                "keep_last": 0,
                "asynchronous": False,
                "on_failure": on_failure,
            },
        )

    def assert_whole_checkpoints(self, directory: Path) -> None:
        self.assert_code(self.checkpoint("verify", directory), 0)


class FailingDisk(DiskTest):
    """One run, one failing call."""

    case = Case("EIO", 0, False, "warn", 0.5)
    disk = Path()
    call: Call | None = None

    def run_on_it(self, name: str, **variables: str) -> tuple[support.Result, Path]:
        run = self.folder / name
        folder = run / "checkpoints"
        if variables:
            variables.update(LD_PRELOAD=str(self.disk), TORN_FOLDER=str(folder))
            variables.update(TORN_RANK=str(self.case.rank))
        config = self.two_ranks(self.case.on_failure)
        return self.train(config, "--run", run, **variables), folder

    def runTest(self) -> None:  # noqa: N802
        case = self.case
        count = self.folder / "count"
        result, whole = self.run_on_it("whole", TORN_COUNT=str(count))
        self.assert_code(result, 0)
        calls = calls_in(count)
        self.assertGreater(len(calls), 10)
        # One of the first save, or of a later one.
        at = 1 + int(case.moment * len(calls))
        self.call = calls[at - 1]
        more = {"TORN_ON": "1"} if case.goes_on else {}
        result, failing = self.run_on_it("failing", TORN_AT=str(at), TORN_ERROR=case.error, **more)
        path = self.call.path.replace(str(whole), str(failing))
        self.assert_told(result, path, failing)
        if steps_in(failing):
            self.assert_whole_checkpoints(failing)
        course = comebacks.course_of(failing.parent)
        expected = comebacks.course_of(whole.parent)
        if case.on_failure == "warn":
            self.assertEqual(course, expected)
        else:
            self.assertEqual(course, expected[: len(course)])
        # On a sound disk it goes on, and ends as if nothing had happened.
        again = self.two_ranks(case.on_failure)
        result = self.train(again, "--run", failing.parent, "--resume", "auto")
        self.assert_code(result, 0)
        self.assert_same(whole.parent, failing.parent)
        self.assertEqual([path.name for path in failing.iterdir() if "." in path.name], [])
        self.assert_nothing_left()

    def assert_told(self, result: support.Result, path: str, directory: Path) -> None:
        """One line has the path and the system's words, and the code is the documented one."""
        words = ERRORS[self.case.error]
        lost = [step for step in range(EVERY, STEPS + 1, EVERY) if step not in steps_in(directory)]
        if not lost:  # A removal that nobody needs.
            self.assert_code(result, 0)
            return
        lines = [line for line in result.text.splitlines() if "is not saved: " in line]
        self.assertTrue(lines, result.text)
        self.assertTrue(is_told(lines[0], path, words, directory), result.text)
        ends_badly = STEPS in lost or self.case.on_failure == "stop"
        self.assert_code(result, 3 if ends_badly else 0)


class Places(DiskTest):
    """Real ones, without the disk of disk.cpp."""

    def train_to(self, directory: Path, *words: object, on_failure: str = "warn") -> support.Result:
        config = self.two_ranks(on_failure)
        saved = ["--set", f"checkpoint.directory={directory}"]
        return self.train(config, "--run", "run", *saved, *words)

    def test_a_disk_of_64_kibibytes(self) -> None:
        directory = places.small_disk_for(self, "64k") / "checkpoints"
        result = self.train_to(directory)
        self.assert_code(result, 3)
        self.assertRegex(result.text, r"it needs \d+ MiB, \d+ MiB are free|No space left on device")
        self.assertEqual([*directory.glob("*")], [])

    def test_a_disk_of_one_mebibyte_fills_up_and_stops_the_run(self) -> None:
        directory = places.small_disk_for(self, "1m") / "checkpoints"
        result = self.train_to(directory, "--set", "run.steps=40", on_failure="stop")
        self.assert_code(result, 3)
        self.assertRegex(result.text, r"it needs \d+ MiB, \d+ MiB are free|No space left on device")
        self.assertGreater(len(steps_in(directory)), 0)
        self.assertEqual([path.name for path in directory.iterdir() if "." in path.name], [])
        self.assert_whole_checkpoints(directory)

    def test_a_disk_that_is_read_only(self) -> None:
        place = places.small_disk_for(self, "8m")
        directory = place / "checkpoints"
        directory.mkdir()
        places.set_read_only(place, True)
        result = self.train_to(directory)
        self.assert_code(result, 2)
        self.assertIn(f'"{directory}": {os.strerror(errno.EROFS)}', result.text)
        places.set_read_only(place, False)
        self.assert_code(self.train_to(directory, "--run", "again"), 0)

    def test_a_disk_that_becomes_read_only_and_recovers(self) -> None:
        place = places.small_disk_for(self, "40m")
        config = self.training(
            mesh={"pipe": 2, "data": 1},
            run={"steps": 300, "eval_batches": 1},
            checkpoint={"save_interval": 5, "directory": str(place / "checkpoints")},
        )
        whole = self.undisturbed(config, "whole")
        saved = len(steps_in(place / "checkpoints"))
        for old in (place / "checkpoints").iterdir():
            shutil.rmtree(old)
        run = self.start_train(config, "run")
        run.await_step(20)
        self.until_it_can(lambda: places.set_read_only(place, True))
        run.await_text("is not saved: ")
        run.await_text(os.strerror(errno.EROFS))
        places.set_read_only(place, False)
        self.assert_code(run.wait(), 0)
        self.assertEqual(len(steps_in(place / "checkpoints")), saved)
        self.assert_whole_checkpoints(place / "checkpoints")
        self.assertEqual(comebacks.course_of(run.directory), comebacks.course_of(whole))

    def until_it_can(self, action: Callable[[], None]) -> None:
        """A file system with a file that is being written does not become read only."""
        until = time.monotonic() + support.PATIENCE
        while True:
            try:
                return action()
            except subprocess.CalledProcessError:
                self.assertLess(time.monotonic(), until)
                time.sleep(0.005)

    def test_files_may_not_grow(self) -> None:
        words = [PENSTOCK, "train", self.two_ranks(), "--run", "run"]
        limit = places.with_limit(resource.RLIMIT_FSIZE, 16 << 10)
        result = self.start(*words, "--set", "launch.transport=tcp", before=limit).wait()
        self.assert_code(result, 3)
        self.assertIn(os.strerror(errno.EFBIG), result.text)
        steps = [int(row[0]) for row in support.losses(self.folder / "run")]
        self.assertEqual(sorted(set(steps)), list(range(1, STEPS + 1)))
        self.assertEqual([*(self.folder / "run" / "checkpoints").glob("*")], [])

    def test_few_files_may_be_open(self) -> None:
        config = self.two_ranks()
        words = [PENSTOCK, "train", config, "--run", "run"]
        result = self.start(*words, before=places.with_limit(resource.RLIMIT_NOFILE, 32)).wait()
        self.assertNotIn(result.code, (-6, -11, 134, 139), result.text)
        if result.code == 0:
            self.assert_whole_checkpoints(self.folder / "run" / "checkpoints")
        else:
            self.assertIn("Too many open files", result.text)

    def test_a_device_is_no_directory(self) -> None:
        result = self.train_to(Path("/dev/full"))
        self.assert_code(result, 2)
        self.assertIn('cannot make the directory for checkpoints "/dev/full"', result.text)
