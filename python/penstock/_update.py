"""From a step's gradients to new weights: clipping, masters of 32 bits, optimizer, loss scale.

What the engines of penstock.zero and penstock.pipe have in common.  Knows no models and no losses,
and no other ranks: who calls it knows the gradient's norm.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Protocol

import torch

from penstock import _torch
from penstock._optimizers import Course, clip_factor, make_scheduler
from penstock.errors import ConfigError, Error

if TYPE_CHECKING:
    from penstock._runtime import GradientScale, MasterWeights
    from penstock.configuration import Configuration

__all__ = ["Replicated", "Update", "check_new"]

_log = logging.getLogger("penstock")


class Replicated(Protocol):
    """Parameters, of which this rank updates its parts."""

    @property
    def parameters(self) -> Sequence[torch.nn.Parameter]:
        """Those that are trainable, each once."""

    @property
    def parts(self) -> Sequence[Sequence[torch.Tensor]]:
        """By parameter, what this rank updates: itself, its slices, or nothing."""

    def after_update(self) -> None:
        """Collective: parts have new values, and their gradients are of no use any more."""

    def drop_gradients(self) -> None:
        """Of parameters and parts."""


def check_new(optimizer: torch.optim.Optimizer, *, is_whole: bool) -> None:
    """Raises ConfigError for states of whole parameters, where it is to update something else."""
    if optimizer.state and not is_whole:
        raise ConfigError(
            "the optimizer has states of whole parameters: with ZeRO, fp16 or bf16 it must be one "
            "without, that has taken no steps"
        )


class Update:
    """What updates this rank's parts of parameters.

    optimizer: was made of the parameters; from now on it updates the masters of their parts.
    updated: the numbers of the parameters that it was made for.
    masters: by part of these, as parameters go.
    is_short: parameters are of 16 bits: a step that overflows is skipped.
    """

    def __init__(
        self,
        config: Configuration,
        replicated: Replicated,
        optimizer: torch.optim.Optimizer,
        lr_scheduler: Course | Callable[[torch.optim.Optimizer], Course] | None,
        scale: GradientScale,
        *,
        is_short: bool,
    ) -> None:
        self.optimizer = optimizer
        self.clipping = config.number("gradient_clipping", 0.0)
        self.scale = scale
        self.was_applied = False
        self.skipped_steps = 0
        self._replicated = replicated
        self._is_short = is_short
        made_for = {id(each) for group in optimizer.param_groups for each in group["params"]}
        self.updated = [i for i, each in enumerate(replicated.parameters) if id(each) in made_for]
        make: type[MasterWeights] = _torch.load().MasterWeights
        self.masters = make([part for i in self.updated for part in replicated.parts[i]])
        self._give_masters()
        self.lr_scheduler = make_scheduler(config, optimizer, lr_scheduler)

    def apply(self, norm: float, step: int, where: str = "") -> None:
        """Step number `step` of the optimizer; then there are no gradients.

        norm: the whole gradient's.  One that is not finite changes nothing: in 16 bits the step is
        skipped, and the loss scale falls; else it is a penstock.Error, which says `where`.
        """
        self.was_applied = math.isfinite(norm)
        if self.was_applied:
            self._take(norm)
        elif self._is_short:
            self._skip(step)
        else:
            self._replicated.drop_gradients()
            raise Error(
                f"step {step}: the gradient norm is {norm}{where}",
                ("the weights are as before this step",),
            )
        self.scale.update(overflowed=not self.was_applied)

    def _give_masters(self) -> None:
        masters = iter(self.masters.tensors)
        parameters, parts = self._replicated.parameters, self._replicated.parts
        parts_of = {id(parameters[i]): list(islice(masters, len(parts[i]))) for i in self.updated}
        for group in self.optimizer.param_groups:
            group["params"] = [
                part for each in group["params"] for part in parts_of.get(id(each), [])
            ]

    def _take(self, norm: float) -> None:
        self.masters.take_changes()
        self.masters.take_gradients(self.scale.value, clip_factor(self.clipping, norm))
        self.optimizer.step()
        self.masters.put_back()
        self._replicated.after_update()
        if self.lr_scheduler is not None:
            self.lr_scheduler.step()

    def _skip(self, step: int) -> None:
        self._replicated.drop_gradients()
        self.skipped_steps += 1
        _log.warning(
            "step %d is skipped: the gradient overflows at loss scale %g", step, self.scale.value
        )
