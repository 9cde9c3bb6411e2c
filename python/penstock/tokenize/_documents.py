"""Texts and chats from files, in batches that are worth encoding together.

A text file is one document.  In a file of JSON lines each line is one, in a field of an object.
Files are read in pieces of lines; only a text file is in memory whole.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock._foreign_files import open_foreign
from penstock.errors import ConfigError
from penstock.tokenize._chat_keys import check_row

_BATCH_BYTES = 4 << 20  # Bytes of text that is encoded at one time.


@dataclass
class Batch:
    """Each document with where it is from, "file:line"; `bytes_read` of all files so far."""

    texts: list[tuple[str, str]] = field(default_factory=list)
    chats: list[tuple[str, list[dict[str, Any]]]] = field(default_factory=list)
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
        lines = _json_lines(path) if text_field or chat_field else _whole(path)
        for where, raw, document in lines:
            if chat_field:
                check_row(where, document, chat_field, passed_over)
                batch.chats.append((where, _chat_in(where, document, chat_field)))
            elif text_field:
                batch.texts.append((where, _text_in(where, document, text_field)))
            else:
                batch.texts.append((where, document))
            batch.bytes_read += raw
            size += raw
            if size >= _BATCH_BYTES:
                yield batch
                batch = Batch(bytes_read=batch.bytes_read)
                size = 0
    yield batch


def _decoded(where: str, raw: bytes) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{where}: byte {error.start} is not UTF-8") from None


def _whole(path: Path) -> Iterator[tuple[str, int, Any]]:
    with open_foreign(path) as file:
        raw = file.read()
    yield str(path), len(raw), _decoded(str(path), raw)


def _json_lines(path: Path) -> Iterator[tuple[str, int, Any]]:
    with open_foreign(path) as file:
        for number, raw in enumerate(file, start=1):
            if not raw.strip():
                continue
            where = f"{path}:{number}"
            try:
                document = json.loads(_decoded(where, raw).strip())
            except json.JSONDecodeError as error:
                raise ConfigError(f"{where}:{error.colno}: is no JSON: {error.msg}") from None
            except RecursionError:
                raise ConfigError(f"{where}: is nested too deep") from None
            if not isinstance(document, dict):
                raise ConfigError(f"{where}: expected an object, found {_kind(document)}")
            yield where, len(raw), document


def _value(where: str, document: dict[str, Any], name: str) -> Any:
    if name not in document:
        has = ", ".join(map(repr, document)) or "none"
        raise ConfigError(f"{where}: has no field {name!r}; its fields: {has}")
    return document[name]


def _text_in(where: str, document: dict[str, Any], name: str) -> str:
    text = _value(where, document, name)
    if not isinstance(text, str):
        raise ConfigError(f"{where}: {name!r} must be a string, found {_kind(text)}")
    return text


def _chat_in(where: str, document: dict[str, Any], name: str) -> list[dict[str, Any]]:
    messages = _value(where, document, name)
    right = (
        isinstance(messages, list)
        and messages
        and all(
            isinstance(each, dict) and isinstance(each.get("role"), str) and "content" in each
            for each in messages
        )
    )
    if not right:
        raise ConfigError(
            f'{where}: {name!r} must be a list of messages {{"role": ..., "content": ...}}'
        )
    assert isinstance(messages, list)
    return messages


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "true or false"}
    return names.get(type(value), "null" if value is None else "a number")
