"""What a loss has to be, which an engine of penstock.zero runs a backward of."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["check_loss"]


class _LossError(TypeError, AssertionError):
    """What is no loss; scripts for DeepSpeed expect the second kind."""


def check_loss(loss: Any) -> None:
    """Raises TypeError for what is no tensor of one element."""
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        what = tuple(loss.shape) if isinstance(loss, torch.Tensor) else type(loss).__name__
        raise _LossError(f"loss is {what}, must be a scalar tensor, which has one element")
