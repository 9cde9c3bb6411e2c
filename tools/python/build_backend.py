"""What `pip install .` calls: scikit-build-core, behind a check that torch is there.

pip builds in an environment of its own by default, where there is no torch; a build against another
torch than the one that is installed would break when it is imported.  So that fails at once, and
the message has the command to use.
"""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

NEEDED = {"torch": "torch", "scikit_build_core": "scikit-build-core"}


def check() -> None:
    """Ends the build, if it cannot succeed."""
    missing = [name for module, name in NEEDED.items() if importlib.util.find_spec(module) is None]
    if missing:
        sys.exit(
            f"penstock is built against the torch that is installed; here is no {missing[0]}.\n"
            "pip builds in an environment of its own unless told otherwise.  Run:\n"
            "    pip install --no-build-isolation .\n"
            f"in an environment that has {' and '.join(NEEDED.values())}."
        )


def _backend() -> Any:
    check()
    from scikit_build_core import build

    return build


def get_requires_for_build_wheel(settings: dict[str, Any] | None = None) -> list[str]:
    check()
    return []


def get_requires_for_build_editable(settings: dict[str, Any] | None = None) -> list[str]:
    check()
    return []


def get_requires_for_build_sdist(settings: dict[str, Any] | None = None) -> list[str]:
    check()
    return []


def prepare_metadata_for_build_wheel(folder: str, settings: dict[str, Any] | None = None) -> str:
    return str(_backend().prepare_metadata_for_build_wheel(folder, settings))


def prepare_metadata_for_build_editable(folder: str, settings: dict[str, Any] | None = None) -> str:
    return str(_backend().prepare_metadata_for_build_editable(folder, settings))


def build_wheel(
    folder: str, settings: dict[str, Any] | None = None, metadata: str | None = None
) -> str:
    return str(_backend().build_wheel(folder, settings, metadata))


def build_editable(
    folder: str, settings: dict[str, Any] | None = None, metadata: str | None = None
) -> str:
    return str(_backend().build_editable(folder, settings, metadata))


def build_sdist(folder: str, settings: dict[str, Any] | None = None) -> str:
    return str(_backend().build_sdist(folder, settings))
