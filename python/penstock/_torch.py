"""The extension module that runs, behind checks that torch is the one that it was built for.

Importing this module checks it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from penstock import _torch_version
from penstock._torch_version import BUILT_FOR

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["check", "load"]


def check(built_for: str = BUILT_FOR) -> None:
    """An ImportError that says what to do, where torch is absent or another than it was built for.

    Built without torch, penstock cannot run anything, and looks at no version.
    """
    try:
        torch = importlib.import_module("torch")
    except ImportError as error:
        raise ImportError(_torch_version.absent(error, built_for)) from error
    if refusal := _torch_version.another(str(torch.__version__), built_for):
        raise ImportError(refusal)


def load(built_for: str = BUILT_FOR) -> ModuleType:
    """penstock._runtime; an ImportError where there is none, or it cannot be."""
    if not built_for:
        raise ImportError(_torch_version.PLANS_ONLY)
    check(built_for)
    return importlib.import_module("penstock._runtime")


check()
