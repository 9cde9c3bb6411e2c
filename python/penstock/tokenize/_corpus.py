"""A corpus that has its name when it is whole, and not before.

Files are written without a name where the system can do that (O_TMPFILE), so that a process that
is killed leaves nothing but the files of its locks, which the next one takes over.  They take their
places together, also those of an earlier corpus; the note is away meanwhile, and tokens without it
are no corpus.
"""

from __future__ import annotations

import contextlib
import json
import os
from array import array
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from penstock import _planning
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from penstock.tokenize._encoder import Encoder

_VERSION = 1  # kCorpusNoteVersion in penstock/files/data/corpus_note.h.


class _NewFile:
    """A file for a path, which has a name beside it when it is told to, and is gone otherwise."""

    def __init__(self, path: Path) -> None:
        self._path = path = Path(os.path.realpath(path))  # A link stays one.
        self._beside = path.with_name(f".{path.name}.{os.getpid()}.unfinished")
        self._has_name = False
        try:
            descriptor = os.open(path.parent, os.O_TMPFILE | os.O_WRONLY, 0o666)
        except OSError:  # Systems say in many ways that they have no such files.
            descriptor = os.open(self._beside, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
            self._has_name = True
        self._file = os.fdopen(descriptor, "wb", buffering=1 << 20)

    def write(self, data: bytes) -> None:
        self._file.write(data)

    def finish(self) -> tuple[str, str]:
        """Flushes it to the disk; where it is then, and where it goes."""
        self._file.flush()
        os.fsync(self._file.fileno())
        if not self._has_name:
            # A link is followed only where a folder is given, too.
            with _folder(self._path.parent) as folder:
                source = f"/proc/self/fd/{self._file.fileno()}"
                os.link(source, self._beside.name, dst_dir_fd=folder, follow_symlinks=True)
            self._has_name = True
        return str(self._beside), str(self._path)

    def close(self) -> None:
        """Closes it, also after finish(); what has its place stays there."""
        self._file.close()
        if self._has_name:
            self._beside.unlink(missing_ok=True)


class CorpusWriter:
    """Takes documents of tokens, one after the other.  A context: left early, nothing is there.

    Raises ConfigError where a corpus of that name is there and is not to be replaced, and
    CheckpointError where another process writes it, or has its folder alone.
    """

    def __init__(
        self,
        path: Path,
        encoder: Encoder,
        *,
        is_masked: bool,
        replaces: bool,
        sample_tokens: int | None = None,
    ) -> None:
        self._path = path
        self._sample_tokens = sample_tokens
        self._note_path = path.with_name(path.name + ".json")
        self._mask_path = path.with_name(path.name + ".mask")
        self._encoder = encoder
        self._replaces = replaces
        self._check_folder()
        self._locks = [
            _planning.OutputLock.beside_others(str(path.parent), "a corpus"),
            _planning.OutputLock.of_path(str(path), "a corpus"),
        ]
        self._check_path()
        self.tokens = 0
        self.counted = 0  # Tokens that count in the loss.
        self._type = "H" if encoder.token_bytes == 2 else "I"
        self._bits: list[bool] = []  # Bits of the last tokens, fewer than 8.
        self._file = _NewFile(path)
        self._mask = _NewFile(self._mask_path) if is_masked else None

    def _check_folder(self) -> None:
        if self._path.suffix != ".bin":
            raise ConfigError(f"output {str(self._path)!r}: must end in .bin")
        if not self._path.parent.is_dir():
            raise ConfigError(f"output {str(self._path)!r}: its folder does not exist")

    def _check_path(self) -> None:
        for path in (self._path, self._note_path, self._mask_path):
            if path.exists() and not self._replaces:
                raise ConfigError(f"output {str(path)!r} is there already; --force replaces it")

    def __enter__(self) -> CorpusWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()
        if self._mask is not None:
            self._mask.close()
        for lock in self._locks:
            lock.let_go()

    def write(self, tokens: list[int], counts: list[bool] | None = None) -> None:
        """`counts`: which of them the loss is a mean over; all, where there is none."""
        self._file.write(array(self._type, tokens).tobytes())
        self.tokens += len(tokens)
        if self._mask is None:
            self.counted += len(tokens)
            return
        counting = [True] * len(tokens) if counts is None else counts
        self.counted += sum(counting)
        bits = self._bits + counting
        whole = len(bits) - len(bits) % 8
        self._mask.write(_packed(bits[:whole]))
        self._bits = bits[whole:]

    def put_in_place(self) -> None:
        """Puts it in the place of an earlier corpus, which stays where that cannot be."""
        note = _NewFile(self._note_path)
        try:
            note.write(self._note().encode())
            parts = [self._file]
            if self._mask is not None:
                self._mask.write(_packed(self._bits))
                parts.append(self._mask)
            _planning.replace_together([part.finish() for part in parts], note.finish())
            if self._mask is None:
                self._mask_path.unlink(missing_ok=True)  # The note knows no mask.
        finally:
            note.close()

    def _note(self) -> str:
        encoder = self._encoder
        values = {
            "penstock_corpus": _VERSION,
            "token_bytes": encoder.token_bytes,
            "tokens": self.tokens,
            "vocabulary": encoder.vocabulary,
            "end_of_text": encoder.end_of_text,
            "tokenizer": encoder.name,
            "tokenizer_hash": encoder.hash,
            "masked": self._mask is not None,
        }
        if self._sample_tokens is not None:
            values["sample_tokens"] = self._sample_tokens
        if ends := encoder.ends_of_answers():
            values["answer_ends"] = ends
        return json.dumps(values, indent=2) + "\n"


def _packed(bits: list[bool]) -> bytes:
    """Eight to a byte, the first in the lowest bit."""
    return bytes(
        sum(bit << place for place, bit in enumerate(bits[first : first + 8]))
        for first in range(0, len(bits), 8)
    )


@contextlib.contextmanager
def _folder(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
