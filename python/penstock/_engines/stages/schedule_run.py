"""A schedule's program with its stages, connected with the other ranks.

Made at a schedule's first step; the steps themselves are C++ (penstock._runtime).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from penstock import _torch
from penstock._engines.ranks.process_groups import telling_others
from penstock._engines.stages.stage_work import RunStage, StageWork, Step
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from penstock._planning import Schedule
    from penstock._runtime import Communicator, Pipeline, RankParameters

__all__ = ["Part", "ScheduleRun"]


Part = tuple[int, str, int | None, Callable[[], None]]
"""Stage, operation, microbatch, and what runs it."""


class ScheduleRun:
    """What the steps of a schedule run on.

    communicator: of program.ranks x replicas, these fastest.
    replicated: the parameters of the stages, which it sums the gradients of; else nobody does.
    facts: names and values that all ranks must have in common, beside the program.

    Raises CommError on all ranks where they do not have the same program.
    """

    def __init__(
        self,
        program: Schedule,
        stages: Sequence[RunStage],
        loss_fn: Callable[..., torch.Tensor] | None,
        communicator: Communicator,
        *,
        replicas: int = 1,
        replicated: RankParameters | None = None,
        facts: Sequence[tuple[str, str]] = (),
    ) -> None:
        splits = any("I" in cell for row in program.programs for cell in row)
        trains = loss_fn is not None
        stages = sorted(stages, key=lambda stage: stage.stage_index)
        self._first = stages[0].submod if stages[0].is_first else None
        self._device_type = stages[0].device.type
        self._forms: dict[Any, torch.Tensor] = {}
        self._epoch = 0  # How often they have been forgotten.
        self.step = Step(None, [])  # What a step runs on, while it runs.
        self._communicator = communicator
        with self.telling_others():
            self._works = [StageWork(stage, loss_fn, splits and trains) for stage in stages]
            facts = [("loss function", "given" if trains else "none"), *facts]
            make: type[Pipeline] = _torch.load().Pipeline
            self._pipeline = make(program, self._works, facts, communicator, replicas, replicated)

    def telling_others(self) -> AbstractContextManager[None]:
        """What is raised inside ends the waits of all ranks of the group, with its words."""
        return telling_others(self._communicator)

    def check_modules(self, stages: Sequence[RunStage]) -> None:
        """Raises ConfigError, of which all ranks hear, for a module that this does not run."""
        modules = {work.stage_index: work.module for work in self._works}
        for stage in stages:
            if stage.submod is not modules.get(stage.stage_index):
                with self.telling_others():
                    raise ConfigError(
                        f"stage {stage.stage_index} has another module than in the first step: "
                        f"replace it before the first step, or make another schedule"
                    )

    def use_loss(self, loss_fn: Callable[..., torch.Tensor] | None) -> None:
        """Makes losses what it returns, from now on."""
        for work in self._works:
            work.loss_fn = loss_fn

    def train(
        self, step: Step, factors: list[float] | None, divisor: float = 1.0
    ) -> list[torch.Tensor]:
        """Forward and backward; the losses, on the rank of the last stage.

        factors: where each microbatch's backward begins there; None: at 1.
        divisor: of the sums that `replicated` has afterwards.
        """
        with self._at(step) as loss:
            return self._pipeline.run(self._inputs(step), loss, factors, divisor)

    def evaluate(self, step: Step) -> list[torch.Tensor]:
        """Forward only, without graphs; the losses, if the step has targets."""
        with self._at(step) as loss:
            losses = self._pipeline.evaluate(self._inputs(step), loss, len(step.kwargs))
        # As a training step does: fully_shard itself leaves its root whole after a forward.
        for work in self._works:
            if work.hooks is not None:
                work.hooks.reshard()
        return losses

    def replace(self, operation: str, instead: Callable[[list[Part]], None]) -> None:
        """Calls `instead` from now on at the actions of an operation."""
        call: Any = instead  # Gets a list, whatever else the stub would allow.
        self._pipeline.replace(operation, call)

    @property
    def peak_activations(self) -> int:
        """Most (stage, microbatch) activations that were alive at once on this rank."""
        return self._pipeline.peak_activations

    @contextmanager
    def _at(self, step: Step) -> Iterator[Callable[[], torch.Tensor] | None]:
        """Gives the stages their data for the time of a step; the loss, if there is one."""
        self.step = step
        for work in self._works:
            work.step = step
        try:
            yield self._works[-1].loss if step.targets is not None else None
        finally:
            self.step = Step(None, [])
            for work in self._works:
                work.step = self.step

    def _inputs(self, step: Step) -> list[list[torch.Tensor]]:
        """A tensor for each microbatch whose size says which of them are alike.

        The runtime announces what stages hand on once for each form of the model's inputs; what
        else decides on it counts as input, too.
        """
        if self._first is None or step.args is None:
            return []
        trains = any(each.requires_grad for each in self._first.parameters())
        device = self._device_type
        kind = (torch.is_autocast_enabled(device), torch.get_autocast_dtype(device), trains)
        return [
            [self._marker((kind, *map(_form, _leaves(args, kwargs))))]
            for args, kwargs in zip(step.args, step.kwargs, strict=True)
        ]

    def _marker(self, form: Any) -> torch.Tensor:
        known = self._forms.get(form)
        if known is None:
            if len(self._forms) == _FORMS_MAX:
                self._forms.clear()
                self._epoch += 1
            known = torch.empty(self._epoch, len(self._forms), 0)
            self._forms[form] = known
        return known


_FORMS_MAX = 1024  # All are forgotten then: memory does not grow with ever new lengths.


def _leaves(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterable[Any]:
    simple = not kwargs and all(type(each) is torch.Tensor for each in args)
    return args if simple else pytree.tree_leaves((args, kwargs))


def _form(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return (value.shape, value.dtype, value.requires_grad)
    return type(value)
