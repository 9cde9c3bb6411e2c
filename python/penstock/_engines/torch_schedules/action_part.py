"""The own computation of an action, while a function of a user's runs in its place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock._engines.stages.stage_work import RunStage, Step

__all__ = ["ActionPart"]


class ActionPart:
    """Runs it when that function says so.  divisors: which gradients may be scaled by."""

    def __init__(
        self,
        stage: RunStage,
        microbatch: int | None,
        runner: Callable[[], None],
        step: Step,
        n_microbatches: int,
        scale_grads: bool | None,
    ) -> None:
        self._stage = stage
        self._microbatch = microbatch
        self._run = runner
        self._step = step
        self.divisors = {1, n_microbatches if scale_grads else 1}

    def forward(self, args: Any, kwargs: Any) -> Any:
        """Runs an F, with these arguments where some are given; what the module returned."""
        step, microbatch = self._step, self._microbatch
        assert microbatch is not None and step.made is not None
        own = step.kwargs[microbatch]
        if self._stage.is_first and step.args is not None and args:
            step.args[microbatch] = tuple(args)
        step.kwargs[microbatch] = own if kwargs is None else kwargs
        try:
            self._run()
        finally:
            step.kwargs[microbatch] = own
        return step.made[self._stage.stage_index, microbatch]

    def backward(self, loss: Any) -> None:
        """Runs a B, I or W."""
        if loss is not None and loss is not self._step.losses.get(self._microbatch or 0):
            raise ValueError(
                f"stage {self._stage.stage_index}, microbatch {self._microbatch}: the loss is not "
                f"what _maybe_get_loss() gave: a backward begins at the loss that loss_fn returned"
            )
        self._run()

    def check_made(self, output: Any) -> None:
        """A ValueError where the next stage is to get something else than this one returned."""
        made = (self._step.made or {}).get((self._stage.stage_index, self._microbatch or 0))
        if output is not made:
            raise ValueError(
                f"stage {self._stage.stage_index + 1} is given something else than stage "
                f"{self._stage.stage_index} returned: change it in the module"
            )
