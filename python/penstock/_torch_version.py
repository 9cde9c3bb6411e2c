"""The torch this penstock was built for, and what is said where there is none, or another.

`_torch` checks the torch that it imports, `__main__` one that it only looks at.  Imports no torch.
"""

from __future__ import annotations

import importlib.util

from penstock import _planning

__all__ = ["BUILT_FOR", "PLANS_ONLY", "absent", "another"]

PLANS_ONLY = (
    "this penstock plans, and cannot run: uninstall penstock-plan, then install penstock and torch"
)
_NEEDS = "this part of penstock needs torch"
_REBUILD = "pip install --force-reinstall --no-deps ."


def _built_for() -> str:
    # penstock-plan has the planning half of a build that has both.
    has_runtime = importlib.util.find_spec("penstock._runtime") is not None
    return _planning.TORCH_VERSION if has_runtime else ""


BUILT_FOR = _built_for()
"""Its version; "" where there is nothing that runs, which works beside any torch."""


def absent(reason: object, built_for: str = BUILT_FOR) -> str:
    """What is said where there is no torch."""
    if not built_for:
        return f"{_NEEDS}, and this Python has none ({reason}); {PLANS_ONLY}"
    return (
        f"{_NEEDS} {built_for}, and this Python has none ({reason}): pip install torch=={built_for}"
    )


def another(found: str, built_for: str = BUILT_FOR) -> str:
    """What is said where torch is `found`; "" where that is right."""
    if built_for in ("", found.partition("+")[0]):
        return ""
    return (
        f"penstock was built for torch {built_for}, and this is torch {found}: install torch "
        f"{built_for}, or build penstock again (in its source folder, {_REBUILD})"
    )
