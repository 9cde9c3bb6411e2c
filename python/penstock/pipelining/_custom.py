"""Functions of a user's own in place of actions.

    def overlapped(action, ctx):
        forward, backward = action.sub_actions
        stages = {stage.stage_index: stage for stage in ctx.schedule_ref._stages}
        stages[forward.stage_index].forward_one_chunk(forward.microbatch_index)
        stages[backward.stage_index].backward_one_chunk(backward.microbatch_index)

    schedule.register_custom_function(OVERLAP_F_B, overlapped)

A function decides when the parts of its action run, and what else does; each part that computes has
to run once.  Messages are no part of it: what an action needs has come, and what it makes is sent.
So it may wait for fwd_recv_ops, hand outputs to the next stage and scale gradients as with torch:
there is nothing to wait for, and a value that is not the one that was made is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from penstock.pipelining.actions import (
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    FORWARD,
    FULL_BACKWARD,
    OVERLAP_F_B,
    REDUCE_GRAD,
    RESHARD,
    UNSHARD,
    _Action,
    _ComputationType,
)

if TYPE_CHECKING:
    from penstock.pipelining._run import Run
    from penstock.pipelining._schedule import _PipelineSchedule
    from penstock.pipelining._work import Step
    from penstock.pipelining.schedules import _PipelineScheduleRuntime
    from penstock.pipelining.stage import _PipelineStageBase

__all__ = [
    "_CustomFunctionProtocol",
    "_Part",
    "_PipelineContext",
    "check_replaceable",
    "in_place_of",
]

Part = tuple[int, str, int | None, Callable[[], None]]
"""Stage, operation, microbatch, and what runs it."""

_REPLACEABLE = (
    FORWARD,
    FULL_BACKWARD,
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    OVERLAP_F_B,
    UNSHARD,
    RESHARD,
    REDUCE_GRAD,
)


class _PipelineContext(NamedTuple):
    """What a function gets beside its action; by microbatch, what this rank's stages get."""

    schedule_ref: _PipelineSchedule
    arg_mbs: list[tuple[Any, ...]] | None = None
    kwarg_mbs: list[dict[str, Any]] | None = None
    target_mbs: list[Any] | None = None
    losses: list[Any] | None = None


class _CustomFunctionProtocol(Protocol):
    """What is called in place of an action."""

    def __call__(self, action: _Action, ctx: _PipelineContext) -> None: ...


def check_replaceable(kind: _ComputationType) -> None:
    """A ValueError for what is sent or received, or is no operation."""
    if kind not in _REPLACEABLE:
        names = ", ".join(each.name for each in _REPLACEABLE)
        raise ValueError(f"computation_type is {kind!r}, must be one of {names}")


def in_place_of(
    function: _CustomFunctionProtocol, schedule: _PipelineScheduleRuntime, run: Run
) -> Callable[[list[Part]], None]:
    """`function` as penstock._runtime calls it."""
    stages = {stage.stage_index: stage for stage in schedule._stages}
    for number, stage in stages.items():
        stage.before = stages.get(number - 1)

    def instead(parts: list[Part]) -> None:
        step = run.step
        context = _PipelineContext(
            schedule, step.args or [()] * len(step.kwargs), step.kwargs, step.targets
        )
        actions = []
        for number, operation, microbatch, runner in parts:
            kind = _ComputationType(operation)
            actions.append(_Action(number, kind, microbatch))
            stage = stages[number]
            stage.parts[kind, microbatch] = _Part(
                stage, microbatch, runner, step, schedule._n_microbatches, schedule.scale_grads
            )
            _note_arrival(schedule, stages, actions[-1])
        pair = len(actions) > 1
        whole = _Action(-1, OVERLAP_F_B, None, tuple(actions)) if pair else actions[0]
        try:
            function(whole, context)
        finally:
            for action in actions:
                part = (action.computation_type, action.microbatch_index)
                stages[action.stage_index].parts.pop(part)
                place = (action.stage_index, action.microbatch_index or 0)
                for arrived in (schedule.fwd_recv_ops, schedule.bwd_recv_ops, step.made or {}):
                    arrived.pop(place, None)

    return instead


class _Part:
    """An action's own computation, while a function runs in its place."""

    def __init__(
        self,
        stage: _PipelineStageBase,
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


def _note_arrival(
    schedule: _PipelineScheduleRuntime, stages: Mapping[int, _PipelineStageBase], action: _Action
) -> None:
    """What another rank has sent for the action is here."""
    stage, microbatch = stages[action.stage_index], action.microbatch_index
    if microbatch is None:
        return
    place = (stage.stage_index, microbatch)
    is_forward = action.computation_type is FORWARD
    if is_forward and not stage.is_first and stage.stage_index - 1 not in stages:
        schedule.fwd_recv_ops[place] = []
    begins = action.computation_type in (FULL_BACKWARD, BACKWARD_INPUT)
    if begins and not stage.is_last and stage.stage_index + 1 not in stages:
        schedule.bwd_recv_ops[place] = []
