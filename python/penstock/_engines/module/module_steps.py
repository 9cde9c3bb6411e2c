"""The microbatches of a step that a script takes one by one, by forward, backward and step().

A base of the engine, which makes them; its checkpoints and what reads optimizers look at it.  Knows
no optimizer, and how nothing runs.
"""

from __future__ import annotations

import torch

from penstock._calls import for_all_ranks
from penstock._engines.parameters.replicated_model import ReplicatedModel
from penstock._engines.steps.engine_steps import EngineSteps
from penstock.configuration import Batch
from penstock.errors import ConfigError, Error

__all__ = ["ModuleSteps"]


class ModuleSteps(EngineSteps):
    """micro_steps: calls of step() so far, as microbatches."""

    micro_steps: int
    _model: ReplicatedModel

    def _begin_microbatches(self) -> None:
        self.micro_steps = 0
        self._is_managed = bool(self.config.settings["managed_gradient_accumulation"])
        self._is_boundary: bool | None = None  # Set by the script.
        self._is_local = False  # True inside no_sync().
        self._taken = 0  # Microbatches of this step.
        self._taken_calls = 0  # Calls of step(), of this step.
        # Losses of microbatches, where a board wants to know.
        self._losses: list[torch.Tensor] = []

    def is_gradient_accumulation_boundary(self) -> bool:
        """Whether the next backward() and step() are the last of the optimizer's step.

        False where managed_gradient_accumulation is: every step() is.
        """
        if self._is_boundary is not None:
            return self._is_boundary
        if not self._is_managed:
            return False
        return (self.micro_steps + 1) % self.gradient_accumulation_steps() == 0

    def set_gradient_accumulation_boundary(self, is_boundary: bool | None) -> None:
        """Whether the next backward() and step() end the optimizer's step, from now on.

        None: the engine counts again.
        Raises ConfigError where managed_gradient_accumulation is false: every step() does.
        """
        if not self._is_managed:
            raise ConfigError(
                "set_gradient_accumulation_boundary() with managed_gradient_accumulation false: "
                "every step() ends the optimizer's step"
            )
        self._is_boundary = is_boundary

    def managed_gradient_accumulation(self) -> bool:
        """Whether the engine counts microbatches, as the configuration says."""
        return self._is_managed

    @for_all_ranks("an engine")
    def allreduce_gradients(self, bucket_size: int | None = None) -> None:
        """Collective: sums gradients over the replicas, if the step's are complete."""
        del bucket_size
        if self.is_gradient_accumulation_boundary():
            self._model.sum_gradients()

    def _mean_loss(self) -> float | None:
        """The step's mean on this rank; None where backward() was not the engine's."""
        losses, self._losses = self._losses, []
        return torch.stack(losses).mean().item() if losses else None

    def _resize(self, batch: Batch) -> None:
        if self.micro_steps % self.gradient_accumulation_steps() or self._model.has_gradients:
            raise Error("the size of a batch changes inside a step: call it after step()")
        super()._resize(batch)
        self.micro_steps = self.global_steps * self.gradient_accumulation_steps()
        self._model.resize(self.gradient_accumulation_steps())

    def _step_facts(self) -> list[tuple[str, str]]:
        """What replicas take for granted of the step that ends, besides the optimizer's options."""
        return [*self._steps_so_far(), ("microbatches taken", str(self._taken_calls))]
