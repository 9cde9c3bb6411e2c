"""Files that came from somewhere else: opened without a wait, and only if they are regular ones.

An archive can hold pipes, and links to devices that never end.  penstock/core/foreign_file.h is the
same in C++.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

from penstock.errors import ConfigError, Error

MOST = 1 << 28
"""Bytes of a file that is read whole, such as a tokenizer's."""

_KINDS = {stat.S_IFDIR: "folder", stat.S_IFIFO: "pipe", stat.S_IFSOCK: "socket"}


def open_foreign(
    path: str | Path, kind: type[Error] = ConfigError, most: int | None = None
) -> BinaryIO:
    """Raises `kind` for what cannot be opened, is no regular file, or too large."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as error:
        raise kind(f"{path}: cannot be read: {error.strerror}") from None
    problem = _problem(os.fstat(descriptor), most)
    if problem is not None:
        os.close(descriptor)
        raise kind(f"{path}: {problem}")
    return os.fdopen(descriptor, "rb")


def _problem(status: os.stat_result, most: int | None) -> str | None:
    if not stat.S_ISREG(status.st_mode):
        return f"is a {_KINDS.get(stat.S_IFMT(status.st_mode), 'device')}, and no file"
    if most is not None and status.st_size > most:
        return f"larger than {most} bytes"
    return None


def read_foreign(path: str | Path, most: int = MOST, kind: type[Error] = ConfigError) -> bytes:
    """All of it; one that is larger than `most` bytes is refused before it is read."""
    with open_foreign(path, kind, most) as file:
        return file.read(most)
