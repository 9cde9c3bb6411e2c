"""Has Accelerate count the ranks of a run on CPUs, as it counts those of a run on devices.

Accelerate 1.15 takes its backend from the devices that it finds.  Under DeepSpeed on CPUs it finds
none, and takes each rank for a run of one process: all ranks train on the same samples, and an
evaluation that gathers fails.  penstock.swap has this called once accelerate.state is there.
Knows nothing of penstock.
"""

from __future__ import annotations

import functools
import os
from types import ModuleType
from typing import Any

__all__ = ["count_ranks"]


def count_ranks(state: ModuleType) -> None:
    """Gives a PartialState under DeepSpeed a backend from now on: Gloo, where it finds no other.

    state: accelerate.state.  One that has no such method is left as it is.
    """
    kind = getattr(state, "PartialState", None)
    prepare = getattr(kind, "_prepare_backend", None)
    if prepare is None:
        return

    @functools.wraps(prepare)
    def prepare_with_gloo(self: Any, *args: Any, **kwargs: Any) -> Any:
        backend, *rest = prepare(self, *args, **kwargs)
        if backend is None and _is_rank_of_deepspeed():
            backend = "gloo"
        return (backend, *rest)

    kind._prepare_backend = prepare_with_gloo  # type: ignore[union-attr]


def _is_rank_of_deepspeed() -> bool:
    """Whether there are other ranks, and Accelerate was asked for DeepSpeed, by its own rule."""
    wants = os.environ.get("ACCELERATE_USE_DEEPSPEED", "false").lower() == "true"
    return wants and int(os.environ.get("WORLD_SIZE", "1")) > 1
