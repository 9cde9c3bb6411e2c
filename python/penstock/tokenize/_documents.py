"""Texts and chats from files, in batches that are worth encoding together.

A text file is one document, and is in memory whole.  Of a file of JSON each row is one.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock._foreign_files import open_foreign
from penstock.errors import ConfigError
from penstock.tokenize._chat_keys import kind, refusing_depth
from penstock.tokenize._chats import Chat, Completion, chat_of
from penstock.tokenize._rows import decoded, refuse_others, rows_of

_BATCH_BYTES = 4 << 20  # Bytes of text that is encoded at one time.


@dataclass
class Batch:
    """Each document with where it is from, "file:line"; `bytes_read` of all files so far."""

    texts: list[tuple[str, str]] = field(default_factory=list)
    chats: list[Chat | Completion] = field(default_factory=list)
    bytes_read: int = 0


def bytes_in(path: Path) -> int:
    """Raises ConfigError for what is no file."""
    if path.is_dir():
        raise ConfigError(f"text {str(path)!r} is a folder; name its files")
    if not path.exists():
        raise ConfigError(f"text {str(path)!r} does not exist")
    with open_foreign(path) as file:
        return os.fstat(file.fileno()).st_size


def batches_of(
    paths: Sequence[Path],
    text_field: str | None,
    chat_field: str | None,
    passed_over: Collection[str] = (),
) -> Iterator[Batch]:
    """Raises ConfigError, with file and line, for what is no UTF-8, no JSON, or lacks the field.

    passed_over: keys of a chat's row that need not be known.
    """
    batch = Batch()
    size = 0
    for path in paths:
        rows: Iterator[tuple[str, int, Any]] = _whole(path)
        if text_field or chat_field:
            rows = rows_of(path)
        for where, raw, document in rows:
            if chat_field:
                with refusing_depth(where):
                    batch.chats.append(chat_of(where, document, chat_field, passed_over))
            else:
                text = _text_in(where, document, text_field) if text_field else document
                batch.texts.append((where, text))
            batch.bytes_read += raw
            size += raw
            if size >= _BATCH_BYTES:
                yield batch
                batch = Batch(bytes_read=batch.bytes_read)
                size = 0
    yield batch


def _whole(path: Path) -> Iterator[tuple[str, int, Any]]:
    with open_foreign(path) as file:
        raw = file.read()
    refuse_others(path, raw)
    yield str(path), len(raw), decoded(str(path), raw)


def _text_in(where: str, document: dict[str, Any], name: str) -> str:
    if name not in document:
        has = ", ".join(map(repr, document)) or "none"
        raise ConfigError(f"{where}: has no field {name!r}; its fields: {has}")
    text = document[name]
    if not isinstance(text, str):
        raise ConfigError(f"{where}: {name!r} must be a string, found {kind(text)}")
    return text
