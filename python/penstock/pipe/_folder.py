"""A folder of files that is there as a whole or not at all, and knows what belongs to it.

    DIRECTORY/TAG/checkpoint.json   by file, its size and its SHA-256
    DIRECTORY/.TAG.saving/          the next one, while it is written
    DIRECTORY/.TAG.before/          what TAG was, between two renames; read where there is no TAG

Files of others in such a folder stay when it is replaced.  Knows no ranks and no engine.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from penstock.errors import ConfigError

__all__ = ["Draft", "Saved"]

_LIST = "checkpoint.json"
_FORMAT = 1
_OURS = re.compile(r"(layer_\d+|loss_fn)-model_states\.pt|(optim|rank)_states-.*\.pt|engine\.pt")
Entry = dict[str, Any]
"""bytes and sha256 of a file."""


@dataclass
class Draft:
    """A folder in the making.  files: what write() has written here.

    Raises ConfigError for what cannot be written.
    """

    folder: Path
    files: dict[str, Entry] = field(default_factory=dict)

    @property
    def _temporary(self) -> Path:
        return _beside(self.folder, "saving")

    def begin(self) -> None:
        """By one rank, before all others write: an empty folder."""
        try:
            _remove(self._temporary)
            self._temporary.mkdir(parents=True)
        except OSError as error:
            raise ConfigError(f"{self.folder}: cannot be written: {error}") from error

    def write(self, name: str, values: Any) -> None:
        """A file of it, on the disk when this returns."""
        path = self._temporary / name
        try:
            with path.open("wb") as file:
                counted: Any = _Counted(file)
                torch.save(values, counted)
                file.flush()
                os.fsync(file.fileno())
        except (OSError, RuntimeError) as error:  # The latter is what torch makes of the former.
            raise ConfigError(f"{self.folder / name}: cannot be written: {error}") from error
        self.files[name] = {"bytes": counted.size, "sha256": counted.digest.hexdigest()}

    def finish(self, files: Mapping[str, Entry]) -> None:
        """By one rank, when all have written: these are its files, and it takes its place."""
        try:
            self._keep_others()
            with (self._temporary / _LIST).open("w", encoding="utf-8") as file:
                json.dump({"format": _FORMAT, "files": files}, file, indent=1, sort_keys=True)
                file.flush()
                os.fsync(file.fileno())
            _sync(self._temporary)
            before = _beside(self.folder, "before")
            if self.folder.exists():
                _remove(before)
                self.folder.rename(before)
            self._temporary.rename(self.folder)
            _sync(self.folder.parent)
            _remove(before)
        except OSError as error:
            raise ConfigError(f"{self.folder}: cannot be written: {error}") from error

    def drop(self) -> None:
        """By one rank: nothing comes of it.  What cannot be removed stays until begin()."""
        with suppress(OSError):
            _remove(self._temporary)

    def _keep_others(self) -> None:
        """Copies what somebody else has put into the folder that is replaced."""
        old = _present(self.folder)
        for each in old.iterdir() if old is not None else ():
            if each.name == _LIST or _OURS.fullmatch(each.name):
                continue
            if each.is_dir() and not each.is_symlink():
                shutil.copytree(each, self._temporary / each.name, symlinks=True)
            else:
                shutil.copy2(each, self._temporary / each.name, follow_symlinks=False)


class Saved:
    """A folder that is complete: its files, and no other, are read.

    given: what was asked for.  identity: differs from that of every other one.

    Raises ConfigError for what is no such folder, and for a file that is missing, is none of it
    though it is called like one, or is not what was written.
    """

    def __init__(self, folder: Path) -> None:
        self.given = folder
        found = _present(folder)
        if found is None:
            raise ConfigError(f"{folder}: there is no such checkpoint{_others(folder)}")
        self.folder = found
        try:
            text = (found / _LIST).read_text(encoding="utf-8")
            content = json.loads(text)
            self.files: dict[str, Entry] = dict(content["files"])
            is_known = content["format"] == _FORMAT
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"{found}: is no whole checkpoint: {_LIST} cannot be read: {error}"
            ) from error
        if not is_known:
            raise ConfigError(
                f"{found / _LIST}: has format {content['format']!r}, must have {_FORMAT}"
            )
        self.identity = hashlib.sha256(text.encode()).hexdigest()
        self._compare()

    def read(self, name: str, *, is_mapped: bool = False) -> Any:
        """A file's values.  is_mapped: their tensors are the file's pages, to be copied soon."""
        path = self.folder / name
        if name not in self.files:
            raise ConfigError(f"{path}: is no file of this checkpoint")
        try:
            if _digest(path) != self.files[name]["sha256"]:
                raise ValueError("its content is not what was saved")
            return torch.load(path, map_location="cpu", weights_only=True, mmap=is_mapped)
        except Exception as error:  # Of as many kinds as a file can be broken.
            raise ConfigError(f"{path}: cannot be read: {error}") from error

    def _compare(self) -> None:
        for name, entry in self.files.items():
            path = self.folder / name
            size = path.stat().st_size if path.is_file() else None
            if size is None:
                raise ConfigError(f"{path}: is missing")
            if size != entry["bytes"]:
                raise ConfigError(
                    f"{path}: cannot be read: it has {size} bytes, and was saved with "
                    f"{entry['bytes']}"
                )
        for each in sorted(self.folder.iterdir()):
            if _OURS.fullmatch(each.name) and each.name not in self.files:
                raise ConfigError(f"{each}: does not belong to this checkpoint: remove it")


class _Counted:
    """A file of which size and digest are known."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self.size = 0
        self.digest = hashlib.sha256()

    def write(self, data: Any) -> int:
        self.digest.update(data)
        self.size += len(data)
        self._file.write(data)
        return len(data)

    def flush(self) -> None:
        self._file.flush()


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _beside(folder: Path, what: str) -> Path:
    return folder.with_name(f".{folder.name}.{what}")


def _present(folder: Path) -> Path | None:
    """The folder, or what it was when its replacement was cut off; None where there is neither."""
    for each in (folder, _beside(folder, "before")):
        if each.is_dir():
            return each
    return None


def _others(folder: Path) -> str:
    """What else there is, for a message."""
    if not folder.parent.is_dir():
        return f", and no folder {folder.parent}"
    names = sorted(each.parent.name for each in folder.parent.glob(f"*/{_LIST}"))
    shown = [each for each in names if not each.startswith(".")]
    return f": in {folder.parent} there are {', '.join(shown)}" if shown else ""


def _remove(path: Path) -> None:
    if path.is_symlink():
        path.unlink()
    elif path.exists():
        shutil.rmtree(path)


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
