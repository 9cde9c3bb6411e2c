"""LAMB: Adam's step, of each parameter at a rate of its own.

Source: arXiv 1904.00962, algorithm 2; the order of sums and the bounds are those of DeepSpeed's.
"""

from __future__ import annotations

from typing import Any

from penstock import _torch  # noqa: F401  (Says what to install.)

# isort: split
import torch

from penstock._compatibility import published_as
from penstock._engines.update.by_parameter import ByParameter

__all__ = ["FusedLamb", "Lamb"]


class Lamb(ByParameter):
    """A parameter's rate is lr times its norm, over that of its step: of whole parameters only.

    min_coeff, max_coeff: bounds of that quotient, which is 1 where one of the norms is 0.
    weight_decay: times the weights, is added to Adam's step.
    bias_correction: must be True.  eps_inside_sqrt, amsgrad: must be False.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        eps_inside_sqrt: bool = False,
        weight_decay: float = 0.0,
        max_grad_norm: float = 0.0,
        max_coeff: float = 10.0,
        min_coeff: float = 0.01,
        amsgrad: bool = False,
    ) -> None:
        if not bias_correction or eps_inside_sqrt or amsgrad or max_grad_norm:
            raise ValueError(
                "bias_correction must be True, eps_inside_sqrt and amsgrad False, and "
                "max_grad_norm 0: gradient_clipping clips"
            )
        if lr < 0 or eps < 0 or weight_decay < 0 or not all(0 <= each < 1 for each in betas):
            raise ValueError("lr, eps and weight_decay must be at least 0, and betas in [0, 1)")
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, {**defaults, "max_coeff": max_coeff, "min_coeff": min_coeff})

    def _update(self, each: torch.Tensor, group: dict[str, Any]) -> None:
        state, (first, second) = self.state[each], group["betas"]
        if not state:
            state["step"] = 0
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(each), torch.zeros_like(each)
        state["step"] += 1
        assert each.grad is not None  # ByParameter passes others over.
        mean = state["exp_avg"].mul_(first).add_(each.grad, alpha=1 - first)
        square = state["exp_avg_sq"].mul_(second).addcmul_(each.grad, each.grad, value=1 - second)
        update = mean / (square.sqrt() + group["eps"]) + group["weight_decay"] * each
        norms = each.norm(), update.norm()
        rate = 1.0
        if norms[0] and norms[1]:
            rate = min(max(float(norms[0] / norms[1]), group["min_coeff"]), group["max_coeff"])
        correction = (1 - second ** state["step"]) ** 0.5 / (1 - first ** state["step"])
        each.sub_(update, alpha=group["lr"] * correction * rate)


FusedLamb = Lamb


published_as("penstock.ops.lamb", globals())
