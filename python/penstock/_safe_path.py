"""Takes the working folder off sys.path where a command of this package is run by `python -m`.

Python puts it first there, so that files of a downloaded model would be imported in place of
packages: who stands in a model's folder runs `python -m penstock.tokenize --tokenizer .`, and its
json.py is data.  penstock.swap is left alone: a script's own folder is its user's.  What Python
itself imports before this package is beyond it; `python -P` leaves out the folder from the start.
"""

import os
import sys

_COMMANDS = ("penstock", "penstock.board", "penstock.tokenize", "penstock.tokenize.text")


def _module_to_run() -> str:
    """The word behind -m; "" once it runs, and of a program that only imports this package."""
    words = sys.orig_argv
    is_being_found = sys.argv[:1] == ["-m"] and "-m" in words[:-1]
    return words[words.index("-m") + 1] if is_being_found else ""


def _leave_working_folder() -> None:
    """Leaves it where one of the commands is about to run."""
    name = _module_to_run().removesuffix(".__main__")
    is_first = sys.path[:1] in ([""], [os.getcwd()])  # noqa: PTH109  pathlib may lie there.
    if name in _COMMANDS and is_first and not getattr(sys.flags, "safe_path", False):
        del sys.path[0]


_leave_working_folder()
