"""The libraries that boards need, and how a place on a board is opened.

`python -m penstock.board` writes a run's metrics there, and penstock.monitor an engine's.  The
libraries are the users' own, and are imported when they are asked for.
"""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

from penstock.errors import ConfigError

__all__ = ["event_files", "weights_and_biases"]


def _library(name: str, package: str) -> Any:
    """Raises ConfigError where it is not installed, or does not load."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(
            f"this board needs the package {package}: pip install {package} ({error})"
        ) from error


def event_files(folder: Path, purge_step: int | None = None) -> Any:
    """A SummaryWriter of TensorBoard's event files in `folder`.

    purge_step: from that step on, what an earlier one wrote there counts for nothing any more.
    Raises ConfigError without the package, and OSError for the folder.
    """
    library = _library("torch.utils.tensorboard", "tensorboard")
    return library.SummaryWriter(str(folder), purge_step=purge_step)


def weights_and_biases(**options: Any) -> Any:
    """A run of Weights & Biases, begun by wandb.init(**options).

    Raises ConfigError without the package, and where no run begins.
    """
    library = _library("wandb", "wandb")
    try:
        return library.init(**options)
    except Exception as error:  # Many classes, one for each thing that it asks for.
        mode = options.get("mode") or os.environ.get("WANDB_MODE", "online")
        raise ConfigError(
            f"wandb begins no run in the mode {mode}: {error}; WANDB_MODE=offline needs no network"
        ) from error
