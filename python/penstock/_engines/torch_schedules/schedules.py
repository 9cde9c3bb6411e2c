"""Schedules by the names of torch.distributed.pipelining, run by penstock.

    schedule = ScheduleZBVZeroBubble([first, last], n_microbatches=8, loss_fn=loss)
    schedule.step(x)                         # the rank of the first stage
    schedule.step(target=y, losses=losses)   # the rank of the last one, which is here the same

A schedule is a program, in `pipeline_order`, that is proved before it runs: a constructor refuses
one that would hang, and a class of one's own that fills `pipeline_order` has it proved at the first
step.  See docs/pipelining.md for what is different from torch.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from penstock import _planning
from penstock._calls import for_all_ranks
from penstock._compatibility import published_as
from penstock._engines.torch_schedules import actions
from penstock._engines.torch_schedules.actions import (
    BACKWARD,
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    FORWARD,
    FULL_BACKWARD,
    OVERLAP_F_B,
    RECV_B,
    RECV_F,
    REDUCE_GRAD,
    RESHARD,
    SEND_B,
    SEND_F,
    UNSHARD,
    WEIGHT,
    B,
    F,
    I,
    W,
    _Action,
    _add_reduce_grad,
    _add_send_recv,
    _add_unshard_reshard,
    _ComputationType,
    _defer_recv_ops,
    _format_pipeline_order,
    _merge_bw,
    _simulate_comms_compute,
    _validate_schedule,
)
from penstock._engines.torch_schedules.base_schedule import Order, _PipelineSchedule, proved
from penstock._engines.torch_schedules.custom_functions import (
    Arrived,
    _CustomFunctionProtocol,
    _PipelineContext,
    check_replaceable,
    in_place_of,
)
from penstock._engines.torch_schedules.step_inputs import Batch

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist

    from penstock._engines.stages.loss_weights import LossWeight
    from penstock._engines.stages.schedule_run import ScheduleRun
    from penstock._engines.stages.stage_work import Step
    from penstock._engines.torch_schedules.microbatch import TensorChunkSpec
    from penstock._engines.torch_schedules.stage import _PipelineStageBase

__all__ = [
    "BACKWARD",
    "BACKWARD_INPUT",
    "BACKWARD_WEIGHT",
    "FORWARD",
    "FULL_BACKWARD",
    "OVERLAP_F_B",
    "RECV_B",
    "RECV_F",
    "REDUCE_GRAD",
    "RESHARD",
    "SEND_B",
    "SEND_F",
    "UNSHARD",
    "WEIGHT",
    "B",
    "F",
    "I",
    "PipelineScheduleMulti",
    "PipelineScheduleSingle",
    "Schedule1F1B",
    "ScheduleDualPipeV",
    "ScheduleGPipe",
    "ScheduleInterleaved1F1B",
    "ScheduleInterleavedZeroBubble",
    "ScheduleLoopedBFS",
    "ScheduleZBVZeroBubble",
    "W",
    "_Action",
    "_ComputationType",
    "_CustomFunctionProtocol",
    "_PipelineContext",
    "_PipelineSchedule",
    "_PipelineScheduleRuntime",
    "_ScheduleForwardOnly",
    "_add_reduce_grad",
    "_add_send_recv",
    "_add_unshard_reshard",
    "_defer_recv_ops",
    "_format_pipeline_order",
    "_merge_bw",
    "_simulate_comms_compute",
    "_validate_schedule",
    "_wait_batch_p2p",
    "get_schedule_class",
]


class PipelineScheduleSingle(_PipelineSchedule):
    """One stage on each rank, stage and rank of the same number."""

    def __init__(
        self,
        stage: _PipelineStageBase,
        n_microbatches: int,
        loss_fn: Callable[..., torch.Tensor] | None = None,
        args_chunk_spec: tuple[TensorChunkSpec, ...] | None = None,
        kwargs_chunk_spec: dict[str, TensorChunkSpec] | None = None,
        output_merge_spec: Any = None,
        scale_grads: bool | None = None,
        *,
        loss_weight: LossWeight | None = None,
    ) -> None:
        if isinstance(stage, list | tuple):
            raise TypeError(f"{type(self).__name__} takes one stage, not a list of {len(stage)}")
        super().__init__(
            [stage],
            n_microbatches,
            loss_fn,
            args_chunk_spec,
            kwargs_chunk_spec,
            output_merge_spec,
            scale_grads,
            loss_weight,
        )

    @property
    def _stage(self) -> _PipelineStageBase:
        """The stage.  May be set, before the first step."""
        return self._stages[0]

    @_stage.setter
    def _stage(self, stage: _PipelineStageBase) -> None:
        self._stages = [stage]


class ScheduleGPipe(PipelineScheduleSingle):
    """All forwards, then all backwards."""

    _generator = "ScheduleGPipe"


class Schedule1F1B(PipelineScheduleSingle):
    """One forward and one backward in turn, after a warm-up; n_microbatches >= stages."""

    _generator = "Schedule1F1B"


class _ScheduleForwardOnly(PipelineScheduleSingle):
    """Forwards alone; step() takes neither target nor losses."""

    _generator = "forward_only"

    @for_all_ranks("a schedule", name="schedule.step()")
    def step(
        self,
        *args: Any,
        target: Any = None,
        losses: list[torch.Tensor] | None = None,
        return_outputs: bool = True,
        loss_kwargs: dict[str, Any] | None = None,
        arg_mbs: list[tuple[Any, ...]] | None = None,
        kwarg_mbs: list[dict[str, Any]] | None = None,
        target_mbs: list[Any] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Runs the model; a RuntimeError for a target or losses."""
        if any(each is not None for each in (target, losses, target_mbs)):
            raise RuntimeError(
                "_ScheduleForwardOnly takes neither target nor losses: it has no backward"
            )
        batch = Batch(args, kwargs, None, arg_mbs, kwarg_mbs)
        return self._run(False, batch, None, return_outputs, loss_kwargs)


class PipelineScheduleMulti(_PipelineSchedule):
    """Any number of stages on each rank, where `pipeline_order` has them.

    For schedules of one's own: a subclass sets pipeline_order, which is proved at the first step.
    stage_index_to_group_rank, use_full_backward: taken; the order says both.
    """

    def __init__(
        self,
        stages: Sequence[_PipelineStageBase],
        n_microbatches: int,
        loss_fn: Callable[..., torch.Tensor] | None = None,
        args_chunk_spec: tuple[TensorChunkSpec, ...] | None = None,
        kwargs_chunk_spec: dict[str, TensorChunkSpec] | None = None,
        output_merge_spec: Any = None,
        scale_grads: bool | None = None,
        *,
        stage_index_to_group_rank: dict[int, int] | None = None,
        use_full_backward: bool | None = None,
        backward_requires_autograd: bool = True,
        loss_weight: LossWeight | None = None,
    ) -> None:
        if not isinstance(stages, list | tuple):
            raise TypeError(
                f"{type(self).__name__} takes a list of stages, not a {type(stages).__name__}"
            )
        super().__init__(
            stages,
            n_microbatches,
            loss_fn,
            args_chunk_spec,
            kwargs_chunk_spec,
            output_merge_spec,
            scale_grads,
            loss_weight,
        )
        del backward_requires_autograd
        self.use_full_backward = use_full_backward
        self.n_local_stages = len(self._stages)
        self.stage_index_to_group_rank = (
            stage_index_to_group_rank or self._stages[0].stage_index_to_group_rank
        )

    def _load_csv(self, filename: str | os.PathLike[str], format: str = "compute_only") -> None:
        """Takes the order from a file; see penstock.pipelining.actions.load_order."""
        self.pipeline_order = actions.load_order(filename, format)
        proved(self._program())

    def _dump_csv(self, filename: str | os.PathLike[str]) -> None:
        """Writes pipeline_order, a row per rank, an empty cell for an idle step."""
        _write_csv(self.pipeline_order, filename)


class _PipelineScheduleRuntime(PipelineScheduleMulti):
    """Runs a program of its own: with the messages that it has, or those that are added.

    For functions of one's own (register_custom_function), by stage and microbatch:
    fwd_recv_ops, bwd_recv_ops: transfers that the actions which run now could wait for; what they
        need has come, so each is an empty list.
    backward_counter: by stage, for such functions to count; empty when a step begins.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._custom: dict[_ComputationType, _CustomFunctionProtocol] = {}
        self.fwd_recv_ops: Arrived = {}
        self.bwd_recv_ops: Arrived = {}
        self.backward_counter: Counter[int] = Counter()
        super().__init__(*args, **kwargs)

    @property
    def pipeline_order_with_comms(self) -> Order:
        """What runs.  May be set, to a program with its messages, which is proved."""
        if self._with_messages is None:
            self._take_order("compute_only")
        assert self._with_messages is not None
        return self._with_messages

    @pipeline_order_with_comms.setter
    def pipeline_order_with_comms(self, order: Mapping[int, Sequence[_Action | None]]) -> None:
        self._prepare_schedule_with_comms(order, "compute_comms")

    def _prepare_schedule_with_comms(
        self, actions: Mapping[int, Sequence[_Action | None]], format: str = "compute_only"
    ) -> None:
        """Takes an order: "compute_only", which gets its messages, or "compute_comms"."""
        self.pipeline_order = {rank: list(row) for rank, row in actions.items()}
        self._take_order(format)

    _load_actions = _prepare_schedule_with_comms

    def _load_csv(self, filename: str | os.PathLike[str], format: str = "compute_only") -> None:
        """Takes the order, or the program with its messages, from a file."""
        self.pipeline_order = actions.load_order(filename, format)
        self._take_order(format)

    def register_custom_function(
        self, computation_type: _ComputationType, custom_function: _CustomFunctionProtocol
    ) -> None:
        """Calls custom_function(action, context) from now on in place of such actions.

        It runs the parts of its action, each once: forward_one_chunk(), backward_one_chunk() and
        backward_weight_one_chunk() of the stages in context.schedule_ref._stages.
        """
        check_replaceable(computation_type)
        self._custom[computation_type] = custom_function
        if self._running is not None:
            self._register(self._running, computation_type)

    def _connected(self) -> ScheduleRun:
        is_new = self._running is None
        run = super()._connected()
        for kind in self._custom if is_new else ():
            self._register(run, kind)
        return run

    def _register(self, run: ScheduleRun, kind: _ComputationType) -> None:
        function = self._custom[kind]
        instead = in_place_of(function, self, run, self.fwd_recv_ops, self.bwd_recv_ops)
        run.replace(kind.value, instead)

    def _before_step(self, step: Step) -> None:
        self.backward_counter.clear()
        step.made = {} if self._custom else None

    def _maybe_compute_loss(
        self, stage: _PipelineStageBase, output: Any, target_mbs: Any, mb_index: int
    ) -> None:
        """Does nothing, for functions of one's own: the last stage's F has computed the loss."""

    def _assert_unsharded(self, stage: _PipelineStageBase) -> None:
        """Does nothing, for functions of one's own: parameters are whole while actions run."""

    def _maybe_get_loss(self, stage: _PipelineStageBase, mb_index: int) -> torch.Tensor | None:
        """The loss of a microbatch, detached, for functions of one's own; None of other stages."""
        has_loss = stage.is_last and self._running is not None
        return self._running.step.losses.get(mb_index) if has_loss and self._running else None

    def _take_order(self, format: str) -> None:
        program = self._program()
        if format == "compute_only":
            program = program.with_messages()
        else:
            proved(program)
        self._with_messages = actions.to_order(program)

    def _dump_csv(self, filename: str | os.PathLike[str], format: str = "compute_comms") -> None:
        """Writes the order, or the program with its messages."""
        if format == "compute_only":
            return _write_csv(self.pipeline_order, filename)
        return _write_csv(self.pipeline_order_with_comms, filename)


class ScheduleInterleaved1F1B(_PipelineScheduleRuntime):
    """1F1B over several stages on each rank; stage s is on rank s % ranks.

    n_microbatches must be a multiple of the number of rounds, max(1, n_microbatches // ranks).
    """

    _generator = "ScheduleInterleaved1F1B"


class ScheduleLoopedBFS(_PipelineScheduleRuntime):
    """All microbatches on a stage before the next one, and back in the reverse order."""

    _generator = "ScheduleLoopedBFS"


class ScheduleInterleavedZeroBubble(_PipelineScheduleRuntime):
    """Interleaved 1F1B with split backwards; sizes as there."""

    _generator = "ScheduleInterleavedZeroBubble"


class ScheduleZBVZeroBubble(_PipelineScheduleRuntime):
    """Two stages on each rank, r and 2 ranks - 1 - r, with split backwards."""

    _generator = "ScheduleZBVZeroBubble"


class ScheduleDualPipeV(_PipelineScheduleRuntime):
    """Stages as ScheduleZBVZeroBubble, forwards overlapped with backwards; at least as many
    microbatches as stages."""

    _generator = "ScheduleDualPipeV"


_CLASSES = (
    Schedule1F1B,
    ScheduleDualPipeV,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleLoopedBFS,
    ScheduleZBVZeroBubble,
    PipelineScheduleSingle,
    PipelineScheduleMulti,
)


def get_schedule_class(schedule_name: str) -> type[_PipelineSchedule]:
    """The class of that name, in any case, with or without "Schedule" at its beginning.

    Raises ValueError, with all names, for any other.
    """
    by_name = {each.__name__.removeprefix("Schedule").lower(): each for each in _CLASSES}
    found = by_name.get(schedule_name.lower().removeprefix("schedule"))
    if found is None:
        names = ", ".join(sorted(each.__name__.removeprefix("Schedule") for each in _CLASSES))
        raise ValueError(f"schedule_name is {schedule_name!r}, must be one of {names}")
    return found


def _wait_batch_p2p(work: Iterable[dist.Work]) -> None:
    """Waits for each: for functions of one's own that send something beside the schedule."""
    for each in work:
        each.wait()


def _write_csv(order: Mapping[int, Sequence[_Action | None]], path: str | os.PathLike[str]) -> None:
    rows = (
        ",".join("" if action is None else str(action) for action in order[rank])
        for rank in sorted(order)
    )
    _planning.write_atomically(os.fspath(path), "".join(f"{row}\n" for row in rows))


published_as("penstock.pipelining.schedules", globals())
