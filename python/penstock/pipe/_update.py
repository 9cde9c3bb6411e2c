"""From a step's gradients to new weights: sums over replicas, norm, clipping, optimizer.

The engine makes one when the ranks are connected.  Knows no stages, and no losses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from penstock._optimizers import Course, Given, clip_factor, make_optimizer, make_scheduler
from penstock.errors import ConfigError
from penstock.pipe._replicas import Replicas, Shares
from penstock.pipelining._run import telling_others

if TYPE_CHECKING:
    from penstock._runtime import Communicator
    from penstock.configuration import Configuration
    from penstock.pipe.module import PipelineModule

__all__ = ["Update"]


class Update:
    """What updates this rank's parameters.

    With ZeRO 1, each of the replicas updates some of them, and has their optimizer state alone.
    replicas: the ranks that have the same stages, in order.
    given_parameters: what the optimizer is made of, or None for all.

    Raises ConfigError for optimizers and schedulers that cannot be made.
    """

    def __init__(
        self,
        config: Configuration,
        model: PipelineModule,
        communicator: Communicator,
        replicas: Sequence[int],
        *,
        optimizer: Given | None,
        given_parameters: Iterable[Any] | None,
        lr_scheduler: Course | Callable[[torch.optim.Optimizer], Course] | None,
    ) -> None:
        self.clipping = config.number("gradient_clipping", 0.0)
        self.parameters = [each for each in model.parameters() if each.requires_grad]
        self._counted = model.counted_parameters()
        self._is_first_replica = replicas[0] == communicator.rank
        with telling_others(communicator):
            given = list(given_parameters or self.parameters)
            self.optimizer = make_optimizer(config, given, optimizer)
            self._check()
            self.lr_scheduler = make_scheduler(config, self.optimizer, lr_scheduler)
        self._replicas = Replicas(communicator, replicas)
        with torch.no_grad():
            self._replicas.share_values([*model.parameters(), *model.buffers()])
        self._shares: Shares | None = None
        if config.integer("stage", 0, section="zero_optimization") == 1:
            self._shares = self._replicas.divide(self.parameters)
            self._leave(self._shares.mine())

    @property
    def is_shared(self) -> bool:
        """Whether replicas have state of different parameters."""
        return self._shares is not None

    def sum_gradients(self) -> None:
        """Over the replicas; then all have the same."""
        self._replicas.sum_gradients(self.parameters)

    def squared_norm(self) -> float:
        """What this rank adds to that of the whole model, in which tied parameters count once."""
        total = 0.0
        for parameter in self._counted if self._is_first_replica else []:
            if parameter.grad is not None:
                norm = torch.linalg.vector_norm(parameter.grad, dtype=torch.float64)
                total += norm.item() ** 2
        return total

    def apply(self, norm: float) -> None:
        """One step of the optimizer; then there are no gradients.  norm: the whole gradient's."""
        factor = clip_factor(self.clipping, norm)
        gradients = [each.grad for each in self.parameters if each.grad is not None]
        if factor < 1.0 and gradients:
            torch._foreach_mul_(gradients, factor)
        self.optimizer.step()
        for parameter in self.parameters:
            parameter.grad = None
        if self._shares is not None:
            with torch.no_grad():
                self._replicas.share_updates(self._shares)
        if self.lr_scheduler is not None:
            self.lr_scheduler.step()

    def _check(self) -> None:
        """An optimizer that was made for other layers would update nothing."""
        here = {id(each) for each in self.parameters}
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                if id(parameter) in here or not parameter.requires_grad:
                    continue
                raise ConfigError(
                    "the optimizer has a parameter that is not in this rank's stages: say the "
                    "schedule to PipelineModule(schedule=...), which makes their layers"
                )

    def _leave(self, mine: set[int]) -> None:
        """Takes what others update from the optimizer."""
        for group in self.optimizer.param_groups:
            group["params"] = [each for each in group["params"] if id(each) in mine]
        for parameter in [*self.optimizer.state]:
            if id(parameter) not in mine:
                del self.optimizer.state[parameter]
