"""What scripts for DeepSpeed take from its utilities: seeds, and memory in the log."""

from __future__ import annotations

import random

from penstock import _torch  # noqa: F401  (Says what to install.)

# isort: split
import torch

from penstock._compatibility import refuse_in
from penstock.accelerator import get_accelerator
from penstock.utils import log_dist

__all__ = ["empty_cache", "see_memory_usage", "set_random_seed"]

refuse_in(globals())


def set_random_seed(seed: int) -> None:
    """Seeds Python's random numbers, numpy's, if it is there, and torch's."""
    random.seed(seed)
    try:
        import numpy
    except ImportError:
        pass
    else:
        numpy.random.seed(seed)
    torch.manual_seed(seed)


def see_memory_usage(message: str, force: bool = False) -> None:
    """Writes to the log how much memory rank 0's process and machine have, with `force`."""
    if not force:
        return
    device = get_accelerator()
    now, most = device.memory_allocated() / 2**30, device.max_memory_allocated() / 2**30
    free, whole = device.available_memory() / 2**30, device.total_memory() / 2**30
    log_dist(
        f"{message}: the process has {now:.2f} GiB, at most so far {most:.2f}; "
        f"of the machine's {whole:.2f} GiB {free:.2f} are free",
        ranks=[0],
    )


def empty_cache() -> None:
    """Freed memory goes back by itself."""
