"""The standard streams of a command, of which some may be closed, or written to in vain.

penstock/core/standard_streams.h does the same for the native programs.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from penstock._printable import printable


def open_missing() -> None:
    """No file that is opened later gets the number of a stream that is closed."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDONLY), True)  # The lowest that is free.
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # print() would take the one for the other.
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115


def say(text: str, shown: str = "") -> int:
    """Prints what a command has done, behind what it shows, which may have colours.

    Returns the exit code: 1 where it cannot be written.
    """
    try:
        print(shown + printable(text), flush=True)
    except OSError as error:
        # What is buffered would be tried once more, and complained of, when the program ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print(f"penstock: cannot write to the standard output: {error.strerror}", file=sys.stderr)
        return 1
    return 0
