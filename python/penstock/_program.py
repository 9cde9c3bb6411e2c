"""The place of the native program in the package, and what it needs to find torch.

`python -m penstock` becomes it, and `penstock.schedule.plan` asks it.  Imports no torch.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from pathlib import Path

from penstock import _planning, _torch_version

__all__ = ["PROGRAM", "environment"]

_NEED_TORCH = ("train", "evaluate", "generate", "memory", "profile", "emulate", "selftest")
_HELP = {"-h", "--help"}
# The folder of the extension module: Python's files may lie elsewhere, in an editable installation.
_FOLDER = Path(str(_planning.__file__)).parent
PROGRAM = _FOLDER / "bin" / "penstock"


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


def environment(words: list[str]) -> dict[str, str]:
    """This process's, with this Python for tokenizers, and torch's libraries where need be."""
    variables = {"PENSTOCK_PYTHON": sys.executable, **os.environ}
    if _needs_torch(words) and _torch_version.BUILT_FOR:
        libraries = _torch_folder() / "lib"
        beside = _FOLDER.parent / "torch" / "lib"
        if not (beside.exists() and beside.samefile(libraries)):
            before = variables.get("LD_LIBRARY_PATH")
            variables["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, (str(libraries), before)))
    return variables


def _needs_torch(words: list[str]) -> bool:
    if not words or _HELP.intersection(words):
        return False
    if words[0] == "plan":  # It measures layers where no file has them.
        return not any(word.split("=")[0] == "--layers" for word in words)
    return words[0] in _NEED_TORCH
