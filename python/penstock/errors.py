"""The errors that penstock raises; each is also the built-in error that it resembles.

`str(error)` is the whole text: one line, then a line per note.  It may quote what a stranger wrote,
so all of it is printable.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock._printable import printable

__all__ = [
    "AssertedError",
    "CheckpointError",
    "CommError",
    "ConfigError",
    "Error",
    "ParseError",
    "ScheduleError",
]


class Error(RuntimeError):
    """Base of all.

    message: the first line, which says what, where, and what was expected.
    notes: what helps to repair it.
    exit_code: what a program ends with because of it (docs/exit_codes.md).
    """

    _EXIT_CODE = 1  # Code of the class.

    def __init__(
        self, message: str, notes: tuple[str, ...] = (), exit_code: int | None = None
    ) -> None:
        message, notes = printable(message), tuple(map(printable, notes))
        super().__init__(message, notes, exit_code)
        self.message = message
        self.notes = notes
        self.exit_code = self._EXIT_CODE if exit_code is None else exit_code

    def __str__(self) -> str:
        return "".join([self.message, *(f"\n  note: {note}" for note in self.notes)])


class ConfigError(Error, ValueError):
    """A value that the user gave: an argument, a configuration, a file that cannot be read."""

    _EXIT_CODE = 2


class AssertedError(ConfigError, AssertionError):
    """A ConfigError where DeepSpeed has an assertion, which scripts for it may expect."""


class ParseError(Error, ValueError):
    """Text that does not follow its grammar; names line, column and what was expected."""

    _EXIT_CODE = 2


class ScheduleError(Error, ValueError):
    """A schedule that cannot be built or does not verify."""

    _EXIT_CODE = 2


class CommError(Error):
    """Another rank is gone, is silent, has failed, or runs something else."""

    _EXIT_CODE = 4


class CheckpointError(Error):
    """A checkpoint that cannot be written or read, is damaged, or is another model's."""

    _EXIT_CODE = 3


def first_of(texts: Sequence[str], most: int, separator: str = ", ") -> str:
    """The first of them, for a message, and how many more there are."""
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return separator.join(texts[:most]) + more
