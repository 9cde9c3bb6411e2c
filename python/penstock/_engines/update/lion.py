"""Lion, which steps by the sign of its momentum.  Source: arXiv 2302.06675, algorithm 2."""

from __future__ import annotations

from typing import Any

from penstock import _torch  # noqa: F401  (Says what to install.)

# isort: split
import torch

from penstock._compatibility import published_as
from penstock._engines.update.by_parameter import ByParameter

__all__ = ["DeepSpeedCPULion", "FusedLion", "Lion"]


class Lion(ByParameter):
    """betas: of what it steps by, and of the momentum that it keeps.

    weight_decay: is taken from the weights, times the rate, before the step.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
    ) -> None:
        if lr < 0 or weight_decay < 0 or not all(0 <= each < 1 for each in betas):
            raise ValueError("lr and weight_decay must be at least 0, and betas in [0, 1)")
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    def _update(self, each: torch.Tensor, group: dict[str, Any]) -> None:
        lr, (now, kept), state = group["lr"], group["betas"], self.state[each]
        if not state:
            state["step"] = 0
            state["exp_avg"] = torch.zeros_like(each)
        state["step"] += 1
        assert each.grad is not None  # ByParameter passes others over.
        momentum, gradient = state["exp_avg"], each.grad
        each.mul_(1 - lr * group["weight_decay"])
        each.sub_(torch.lerp(gradient, momentum, now).sign_(), alpha=lr)
        momentum.mul_(kept).add_(gradient, alpha=1 - kept)


FusedLion = DeepSpeedCPULion = Lion


published_as("penstock.ops.lion", globals())
