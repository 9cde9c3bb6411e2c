"""The program `penstock`, as pip puts it on the PATH; `python -m penstock` is the same.

Becomes the native program that lies in the package, which keeps the process id, signals and exit
codes its own.  Before that it finds out where torch is, as Python alone knows, for the commands
that need it.  Imports no torch.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import signal
import sys
from pathlib import Path

from penstock import _planning, _torch_version

_NEED_TORCH = ("train", "evaluate", "generate", "memory")
_HELP = {"-h", "--help"}
# Beside the extension module: Python's files may lie elsewhere, in an editable installation.
_FOLDER = Path(str(_planning.__file__)).parent


def _torch_folder() -> Path:
    """The torch that this Python would import.  Raises ImportError where that cannot be used."""
    spec = importlib.util.find_spec("torch")
    folders = list(spec.submodule_search_locations or []) if spec else []
    version = Path(folders[0], "version.py") if folders else None
    if version is None or not version.is_file():
        raise ImportError(_torch_version.absent(f"looked in {_FOLDER.parent} and sys.path"))
    found = re.search(r"__version__ = '([^']+)'", version.read_text(encoding="utf-8"))
    if refusal := _torch_version.another(found[1] if found else "of no known version"):
        raise ImportError(refusal)
    return version.parent


def _environment(words: list[str]) -> dict[str, str]:
    """This process's, with this Python for tokenizers, and torch's libraries where need be."""
    environment = {"PENSTOCK_PYTHON": sys.executable, **os.environ}
    runs = bool(words) and words[0] in _NEED_TORCH and not _HELP.intersection(words)
    if runs and _torch_version.BUILT_FOR:
        libraries = _torch_folder() / "lib"
        beside = _FOLDER.parent / "torch" / "lib"
        if not (beside.exists() and beside.samefile(libraries)):
            before = environment.get("LD_LIBRARY_PATH")
            environment["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, (str(libraries), before)))
    return environment


def main() -> None:
    """Becomes the program; returns never.  Ends with 2 where there is nothing to become."""
    words = sys.argv[1:]
    if words[:2] == ["checkpoint", "import"]:  # Which reads files of torch's.
        importing = importlib.import_module("penstock.checkpoint.importing")
        sys.exit(importing.main(words[2:]))
    program = _FOLDER / "bin" / "penstock"
    try:
        environment = _environment(words)
        for name in ("SIGPIPE", "SIGXFSZ"):  # Which Python ignores, and so would the program.
            signal.signal(getattr(signal, name), signal.SIG_DFL)
        os.execve(program, [str(program), *words], environment)
    except (ImportError, OSError) as error:
        print(f"penstock: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
