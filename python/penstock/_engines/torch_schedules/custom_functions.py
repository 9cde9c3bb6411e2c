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

from penstock._compatibility import published_as
from penstock._engines.stages.schedule_run import Part, ScheduleRun
from penstock._engines.torch_schedules.action_part import ActionPart
from penstock._engines.torch_schedules.actions import (
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
from penstock._engines.torch_schedules.base_schedule import _PipelineSchedule
from penstock._engines.torch_schedules.stage import _PipelineStageBase

if TYPE_CHECKING:
    import torch.distributed as dist

__all__ = [
    "Arrived",
    "_CustomFunctionProtocol",
    "_PipelineContext",
    "check_replaceable",
    "in_place_of",
]

Arrived = dict[tuple[int, int], "list[dist.Work]"]
"""By stage and microbatch, what another rank has sent for an action that runs."""

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
    function: _CustomFunctionProtocol,
    schedule: _PipelineSchedule,
    run: ScheduleRun,
    values: Arrived,
    gradients: Arrived,
) -> Callable[[list[Part]], None]:
    """`function` as penstock._runtime calls it.

    values, gradients: get an entry for what has come, as long as an action runs that it is for.
    """
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
            stage.parts[kind, microbatch] = ActionPart(
                stage, microbatch, runner, step, schedule._n_microbatches, schedule.scale_grads
            )
            _note_arrival(values, gradients, stages, actions[-1])
        pair = len(actions) > 1
        whole = _Action(-1, OVERLAP_F_B, None, tuple(actions)) if pair else actions[0]
        try:
            function(whole, context)
        finally:
            for action in actions:
                part = (action.computation_type, action.microbatch_index)
                stages[action.stage_index].parts.pop(part)
                place = (action.stage_index, action.microbatch_index or 0)
                for arrived in (values, gradients, step.made or {}):
                    arrived.pop(place, None)

    return instead


def _note_arrival(
    values: Arrived,
    gradients: Arrived,
    stages: Mapping[int, _PipelineStageBase],
    action: _Action,
) -> None:
    """What another rank has sent for the action is here."""
    stage, microbatch = stages[action.stage_index], action.microbatch_index
    if microbatch is None:
        return
    place = (stage.stage_index, microbatch)
    is_forward = action.computation_type is FORWARD
    if is_forward and not stage.is_first and stage.stage_index - 1 not in stages:
        values[place] = []
    begins = action.computation_type in (FULL_BACKWARD, BACKWARD_INPUT)
    if begins and not stage.is_last and stage.stage_index + 1 not in stages:
        gradients[place] = []


published_as("penstock.pipelining.schedules", globals())
