"""A step that updates parameters one by one, each from its own gradient and state."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["ByParameter"]


class ByParameter(torch.optim.Optimizer):
    """A class of it says, in _update(), what becomes of one parameter."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """One step; returns what `closure` does.  A parameter without a gradient stays."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for each in group["params"]:
                if each.grad is not None:
                    self._update(each, group)
        return loss

    def _update(self, each: torch.Tensor, group: dict[str, Any]) -> None:
        raise NotImplementedError
