"""Checkpoints: saved by all ranks together, read by any layout.

    penstock.checkpoint.save("runs/a/step-100", stages, optimizer, step=100)
    step = penstock.checkpoint.load("runs/a/step-100", stages, optimizer).step

save, load: of stages or modules, with optimizers of torch.  Engines of penstock.initialize() have
save_checkpoint() and load_checkpoint().  importing: of DeepSpeed's and torch's own checkpoints.
The format: docs/checkpoint_format.md.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock._engines.saving.stage_checkpoints import Loaded, load, save

__all__ = ["Loaded", "load", "save"]


def __getattr__(name: str) -> Any:
    """What needs torch is imported when it is used."""
    if name in __all__:
        return getattr(importlib.import_module("penstock._engines.saving.stage_checkpoints"), name)
    raise AttributeError(f"module 'penstock.checkpoint' has no attribute '{name}'")
