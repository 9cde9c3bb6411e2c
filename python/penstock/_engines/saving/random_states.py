"""The states of the random numbers that a script may draw: of torch, Python and numpy.

Knows no engine.
"""

from __future__ import annotations

import random
import sys
from typing import Any

import torch

__all__ = ["put", "take"]


def take() -> dict[str, Any]:
    """All of this process; of numpy and CUDA if they are in use."""
    numpy = sys.modules.get("numpy")
    cuda: Any = torch.cuda
    return {
        "torch": torch.get_rng_state(),
        "cuda": cuda.get_rng_state_all() if cuda.is_initialized() else [],
        "python": random.getstate(),
        "numpy": None if numpy is None else numpy.random.get_state(),
    }


def put(states: dict[str, Any]) -> None:
    """Has the next numbers be those that came after take()."""
    torch.set_rng_state(states["torch"])
    for device, state in enumerate(states["cuda"][: torch.cuda.device_count()]):
        torch.cuda.set_rng_state(state, device)
    random.setstate(states["python"])
    if states["numpy"] is not None:
        import numpy

        numpy.random.set_state(states["numpy"])
