"""The program torn_save under the disk of disk.cpp, and what every save must leave.

torn_test.py ends it at any call; errors_test.py and errors_soak.py let calls fail.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

# What TORN_ERROR may be, and the system's words for it.
ERRORS = {
    "ENOSPC": os.strerror(errno.ENOSPC),
    "EIO": os.strerror(errno.EIO),
    "EDQUOT": os.strerror(errno.EDQUOT),
    "EROFS": os.strerror(errno.EROFS),
    "SHORT": os.strerror(errno.ENOSPC),
}
NOTE = "note.txt"  # Somebody's own file, in the folder of a checkpoint.
REMOVALS = ("unlink", "unlinkat", "remove")
LOCK = ".penstock-lock"  # A save goes on without one, and the next save takes over what is left.


@dataclass(frozen=True)
class Call:
    """One that changes a file below the folder."""

    name: str
    path: str


def calls_in(count: Path) -> list[Call]:
    """What TORN_COUNT has."""
    lines = count.read_text().splitlines() if count.exists() else []
    return [Call(*line.split(" ", 1)) for line in lines]


def steps_in(directory: Path) -> list[int]:
    names = (re.fullmatch(r"step-(\d{8})", path.name) for path in directory.glob("*"))
    return sorted(int(name[1]) for name in names if name)


def content_of(folder: Path) -> str:
    """A digest of a checkpoint's shards; empty where it has none."""
    shards = sorted(folder.glob("*.safetensors"))
    return hashlib.sha256(b"".join(shard.read_bytes() for shard in shards)).hexdigest() * bool(
        shards
    )


def is_told(text: str, path: str, words: str, below: Path) -> bool:
    """Whether the first line has the system's words, and the path or a folder that it is in."""
    known = Path(path.removesuffix(".removing"))
    places = [place for place in (Path(path), known, *known.parents) if place.is_relative_to(below)]
    line = text.splitlines()[0] if text else ""
    return words in line and any(f'"{place}"' in line for place in places)


@dataclass(frozen=True)
class Tools:
    """The programs: torn_save, the disk, penstock."""

    save_program: Path
    disk: Path
    penstock: Path

    def save(
        self, directory: Path, step: int, seed: int = 0, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "TORN_FOLDER": str(directory), **variables}
        if variables:
            environment["LD_PRELOAD"] = str(self.disk)
        words = [self.save_program, str(directory), str(step), str(seed or step)]
        return subprocess.run(words, env=environment, capture_output=True, text=True, check=False)

    def why_not_whole(self, directory: Path) -> str:
        """Why one of the checkpoints is not; else empty."""
        words = [self.penstock, "checkpoint", "verify", str(directory)]
        result = subprocess.run(words, capture_output=True, text=True, check=False)
        return "" if result.returncode == 0 else result.stdout + result.stderr

    def make_old(self, directory: Path) -> None:
        """Checkpoints of steps 10 and 20, and somebody's note in the latter."""
        directory.mkdir()
        for step in (10, 20):
            self.save(directory, step)
        (directory / "step-00000020" / NOTE).write_text("mine")

    def calls_of(self, old: Path, step: int) -> list[Call]:
        """Those of a save of `step` beside what is in `old`, as paths below that folder."""
        directory, count = old.with_name("counted"), old.with_name("count")
        shutil.copytree(old, directory)
        self.save(directory, step, 21, TORN_COUNT=str(count))
        shutil.rmtree(directory)
        calls = calls_in(count)
        count.unlink()
        return [Call(call.name, call.path.replace(str(directory), str(old))) for call in calls]

    def wrong_after_next_save(self, directory: Path) -> str:
        """What is wrong when step 40 is saved on a sound disk; else empty."""
        result = self.save(directory, 40)
        if result.returncode != 0:
            return f"the next save fails: {result.stderr}"
        left = sorted(path.name for path in directory.iterdir())
        if left[-1:] != ["step-00000040"] or any("." in name for name in left):
            return f"after the next save there are {left}"
        return self.why_not_whole(directory)

    def wrong_after_fault(self, directory: Path, step: int) -> str:
        """What is wrong among the checkpoints after a save of `step` that failed."""
        there = steps_in(directory)
        allowed = [[10, 20], [10, 20, step], [20, step]] if step != 20 else [[10, 20]]
        if there not in allowed:
            return f"there are steps {there}"
        note = directory / "step-00000020" / NOTE
        if not note.exists() or note.read_text() != "mine":
            return "the note in step 20 is lost"
        return self.why_not_whole(directory)

    def wrong_after_error(
        self, old: Path, step: int, calls: list[Call], at: int, error: str, goes_on: bool
    ) -> str:
        """What is wrong when call number `at`, of those of a save of `step`, fails; else empty."""
        call = calls[at - 1]
        # It gets its name, and the flush of that is the last that can go wrong.
        named = max(i for i, each in enumerate(calls, 1) if each.path == f"{old}/step-{step:08}")
        directory = old.with_name("failing")
        shutil.copytree(old, directory)
        try:
            more = {"TORN_ON": "1"} if goes_on else {}
            result = self.save(directory, step, 21, TORN_AT=str(at), TORN_ERROR=error, **more)
            path = call.path.replace(str(old), str(directory))
            new = directory / f"step-{step:08}"
            is_of_lock = LOCK in call.path
            if result.returncode == 0:
                # What is left of the folder that was replaced goes with the next save.
                is_left = call.name in REMOVALS and ".saving" in path
                if not is_left and not is_of_lock:
                    return "the save does not tell of it"
            elif result.returncode != 3:
                return f"it ended with {result.returncode}: {result.stderr}"
            elif not is_told(result.stderr, path, ERRORS[error], directory):
                return f"the message does not say {path} and why: {result.stderr}"
            if wrong := self.wrong_after_fault(directory, step):
                return wrong
            is_new = content_of(new) not in (content_of(old / new.name), "")
            is_saved = at > named + 1 or (is_of_lock and result.returncode == 0)
            if is_new != is_saved and not (is_new and goes_on):
                return f"step {step} is {'new' if is_new else 'old'}: {result.stderr}"
            return self.wrong_after_next_save(directory)
        finally:
            shutil.rmtree(directory)
