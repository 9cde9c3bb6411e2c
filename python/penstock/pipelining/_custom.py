"""Functions of a user's own in place of actions.

    def overlapped(action, ctx):
        forward, backward = action.sub_actions
        stages = {stage.stage_index: stage for stage in ctx.schedule_ref._stages}
        stages[forward.stage_index].forward_one_chunk(forward.microbatch_index)
        stages[backward.stage_index].backward_one_chunk(backward.microbatch_index)

    schedule.register_custom_function(OVERLAP_F_B, overlapped)

A function decides when the parts of its action run, and what else does; each part that computes has
to run once.  Messages are no part of it: what an action needs has come, and what it makes is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

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
    from penstock.pipelining._schedule import _PipelineSchedule
    from penstock.pipelining.stage import _PipelineStageBase

__all__ = ["CustomFunction", "_PipelineContext", "check_replaceable", "in_place_of"]

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


CustomFunction = Callable[[_Action, _PipelineContext], None]


def check_replaceable(kind: _ComputationType) -> None:
    """A ValueError for what is sent or received, or is no operation."""
    if kind not in _REPLACEABLE:
        names = ", ".join(each.name for each in _REPLACEABLE)
        raise ValueError(f"computation_type is {kind!r}, must be one of {names}")


def in_place_of(
    function: CustomFunction,
    stages: Iterable[_PipelineStageBase],
    context: Callable[[], _PipelineContext],
) -> Callable[[list[Part]], None]:
    """`function` as penstock._runtime calls it."""
    by_index = {stage.stage_index: stage for stage in stages}

    def instead(parts: list[Part]) -> None:
        actions = []
        for stage, operation, microbatch, run in parts:
            kind = _ComputationType(operation)
            actions.append(_Action(stage, kind, microbatch))
            by_index[stage].parts[kind, microbatch] = run
        pair = len(actions) > 1
        whole = _Action(-1, OVERLAP_F_B, None, tuple(actions)) if pair else actions[0]
        try:
            function(whole, context())
        finally:
            for action in actions:
                part = (action.computation_type, action.microbatch_index)
                by_index[action.stage_index].parts.pop(part)

    return instead
