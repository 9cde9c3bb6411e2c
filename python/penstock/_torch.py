"""The extension module that runs, behind checks that torch is the one that it was built for.

Importing this module checks it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from penstock import _planning

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["check", "load"]

_REBUILD = "pip install --no-build-isolation --force-reinstall --no-deps ."


def check(built_for: str = _planning.TORCH_VERSION) -> None:
    """An ImportError that says what to do, where torch is absent or another than it was built for.

    Built without torch, penstock cannot run anything, and looks at no version.
    """
    try:
        torch = importlib.import_module("torch")
    except ImportError as error:
        needed = f" {built_for}" if built_for else ""
        raise ImportError(
            f"penstock.pipelining needs torch{needed}, and this Python has none ({error})"
        ) from error
    found = str(torch.__version__).partition("+")[0]
    if built_for and found != built_for:
        raise ImportError(
            f"penstock was built for torch {built_for}, and this is torch {found}: install torch "
            f"{built_for}, or build penstock again (in its source folder, {_REBUILD})"
        )


def load(built_for: str = _planning.TORCH_VERSION) -> ModuleType:
    """penstock._runtime; an ImportError where there is none, or it cannot be."""
    if not built_for:
        raise ImportError("this penstock was built without torch: it plans, and cannot run")
    check(built_for)
    return importlib.import_module("penstock._runtime")


check()
