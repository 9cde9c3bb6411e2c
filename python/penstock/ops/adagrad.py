"""Adagrad by DeepSpeed's name; the update is torch's."""

from __future__ import annotations

from typing import Any

from penstock import _torch  # noqa: F401  (Says what to install.)

# isort: split
import torch

__all__ = ["DeepSpeedCPUAdagrad"]


class DeepSpeedCPUAdagrad(torch.optim.Adagrad):
    """torch's, with DeepSpeed's defaults.  amsgrad: must be False.

    fp32_optimizer_states: must be True.
    """

    def __init__(
        self,
        model_params: Any,
        lr: float = 1e-2,
        eps: float = 1e-10,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        fp32_optimizer_states: bool = True,
    ) -> None:
        if amsgrad or not fp32_optimizer_states:
            raise ValueError("amsgrad must be False, and fp32_optimizer_states True")
        super().__init__(model_params, lr, eps=eps, weight_decay=weight_decay)
