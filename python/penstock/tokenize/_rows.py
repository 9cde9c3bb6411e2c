"""Rows of a file of JSON: a line each, or the objects of one array, over any lines.

Files of lines are read in pieces; one with an array is in memory whole.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from penstock._foreign_files import open_foreign
from penstock.errors import ConfigError
from penstock.tokenize._chat_keys import kind

_BOM = b"\xef\xbb\xbf"

_OTHERS = (
    (b"\x1f\x8b", "is compressed (gzip)", "gunzip makes JSON lines of it"),
    (b"\x28\xb5\x2f\xfd", "is compressed (zstd)", "unzstd makes JSON lines of it"),
    (b"PK\x03\x04", "is compressed (zip)", "unzip it first"),
    (
        b"PAR1",
        "is a table of Parquet",
        "pandas makes JSON lines of it: read_parquet(P).to_json(J, orient='records', lines=True)",
    ),
    (b"\xff\xfe", "is UTF-16, not UTF-8", "iconv -f UTF-16 -t UTF-8 turns it"),
    (b"\xfe\xff", "is UTF-16, not UTF-8", "iconv -f UTF-16 -t UTF-8 turns it"),
    (
        b"version https://git-lfs",
        "is a pointer of Git LFS, in place of the file",
        "git lfs pull fetches that",
    ),
)
"""How files of other kinds begin, what they are, and what to do."""

Row = tuple[str, int, dict[str, Any]]
"""Its place, "file:line"; its bytes; the object."""


def refuse_others(path: Path, beginning: bytes) -> None:
    """Raises ConfigError for a file of another kind, whose first bytes these are."""
    for magic, what, note in _OTHERS:
        if beginning.startswith(magic):
            raise ConfigError(f"{path}: {what}", (note,))


def decoded(where: str, raw: bytes) -> str:
    """Raises ConfigError for what is no UTF-8."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{where}: byte {error.start} is not UTF-8") from None


def rows_of(path: Path) -> Iterator[Row]:
    """Raises ConfigError, with file and line, for what is no UTF-8 or no JSON of objects."""
    with open_foreign(path) as file:
        beginning = file.read(64)
        refuse_others(path, beginning)
        file.seek(len(_BOM) if beginning.startswith(_BOM) else 0)
        first = _first_byte(file)
        if first == b"[":
            yield from _of_array(path, decoded(str(path), file.read()))
        else:
            yield from _of_lines(path, file)


def _first_byte(file: BinaryIO) -> bytes:
    """The first one that is no space; the file is where it was."""
    begin = file.tell()
    byte = file.read(1)
    while byte and byte.isspace():
        byte = file.read(1)
    file.seek(begin)
    return byte


def _of_lines(path: Path, file: BinaryIO) -> Iterator[Row]:
    for number, raw in enumerate(file, start=1):
        if not raw.strip():
            continue
        where = f"{path}:{number}"
        try:
            text = decoded(where, raw).strip()
            row = json.loads(text)
        except json.JSONDecodeError as error:
            raise ConfigError(
                f"{where}:{error.colno}: is no JSON: {error.msg}", _notes(raw, number)
            ) from None
        except (ValueError, RecursionError) as error:
            raise _refusal(where, error) from None
        yield where, len(raw), _object(where, row, text)


def _refusal(where: str, error: Exception) -> ConfigError:
    """The error for JSON that Python does not read."""
    if isinstance(error, RecursionError):
        return ConfigError(f"{where}: is nested too deep")
    return ConfigError(f"{where}: has a number with too many digits")


def _notes(raw: bytes, number: int) -> tuple[str, ...]:
    if number == 1 and raw.strip() == b"{":
        return ("an object over several lines is no JSON line: jq -c . FILE writes each on one",)
    return ("JSON lines have an object on each line; an array of objects is taken, too",)


def _object(where: str, row: Any, written: str) -> dict[str, Any]:
    if "\\ud" in written.lower():  # Only so can JSON spell what no text has.
        try:
            json.dumps(row, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise ConfigError(f"{where}: has a half of a character, as \\ud800") from None
    if not isinstance(row, dict):
        raise ConfigError(f"{where}: expected an object, found {kind(row)}")
    return row


def _of_array(path: Path, text: str) -> Iterator[Row]:
    decoder = json.JSONDecoder()
    place = _behind_spaces(text, text.index("[") + 1)
    line, counted = 1 + text.count("\n", 0, place), place
    while not text.startswith("]", place):
        where = f"{path}:{line}"
        try:
            row, end = decoder.raw_decode(text, place)
        except json.JSONDecodeError as error:
            raise ConfigError(
                f"{path}:{error.lineno}:{error.colno}: is no JSON: {error.msg}"
            ) from None
        except (ValueError, RecursionError) as error:
            raise _refusal(where, error) from None
        written = text[place:end]
        yield where, len(written.encode()), _object(where, row, written)
        place = _behind_spaces(text, end)
        if text.startswith(",", place):
            place = _behind_spaces(text, place + 1)
        elif not text.startswith("]", place):
            here = json.JSONDecodeError("", text, place)
            raise ConfigError(
                f"{path}:{here.lineno}:{here.colno}: is no JSON: expected , or ] behind an object"
            )
        line, counted = line + text.count("\n", counted, place), place
    rest = _behind_spaces(text, place + 1)
    if rest < len(text):
        raise ConfigError(f"{path}:{line}: has more behind its array")


def _behind_spaces(text: str, place: int) -> int:
    while place < len(text) and text[place] in " \t\r\n":
        place += 1
    return place
