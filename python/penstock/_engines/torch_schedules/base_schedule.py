"""What all schedules share: a program, and how a batch becomes what it runs on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from penstock import _arguments, _planning
from penstock._calls import for_all_ranks
from penstock._compatibility import member, published_as
from penstock._engines.ranks.process_groups import connect
from penstock._engines.stages.loss_weights import (
    LossWeight,
    factors_of,
    is_mean,
    warn_of_other_means,
    warn_of_sum,
)
from penstock._engines.stages.schedule_run import ScheduleRun
from penstock._engines.stages.stage_work import Step
from penstock._engines.torch_schedules import actions
from penstock._engines.torch_schedules.actions import _Action, _validate_schedule
from penstock._engines.torch_schedules.divided_gradients import divided
from penstock._engines.torch_schedules.microbatch import TensorChunkSpec, merge_chunks
from penstock._engines.torch_schedules.step_inputs import Batch
from penstock.errors import ScheduleError
from penstock.schedule import Verdict, verify

if TYPE_CHECKING:
    from penstock._engines.torch_schedules.stage import _PipelineStageBase
    from penstock._planning import Schedule
    from penstock._runtime import Communicator

__all__ = ["Order", "_PipelineSchedule", "proved"]

Order = dict[int, list[_Action | None]]


class _PipelineSchedule:
    """A program, and how a batch becomes what it runs on.

    n_microbatches: per step.
    loss_fn: of the last stage's output and its share of the target; a scalar.  Without, a step is
        forward only.
    args_chunk_spec, kwargs_chunk_spec: how positional and keyword arguments are split, and
    output_merge_spec how the outputs are merged (penstock.pipelining.microbatch).
    scale_grads: None: gradients are those of the whole batch: of the sum where loss_fn.reduction is
        "sum", else of the mean over its samples, or, of torch's cross entropies, over the targets
        that are not ignored, by the weights of their classes.  True: each microbatch counts
        1 / n_microbatches.  False: they are added as they are.  Losses are never scaled.
    loss_weight: for scale_grads=None: how much of what loss_fn is a mean over a microbatch has: a
        function of its share of the target.  None: as above.
    """

    def __init__(
        self,
        stages: Sequence[_PipelineStageBase],
        n_microbatches: int,
        loss_fn: Callable[..., torch.Tensor] | None,
        args_chunk_spec: tuple[TensorChunkSpec, ...] | None,
        kwargs_chunk_spec: dict[str, TensorChunkSpec] | None,
        output_merge_spec: Any,
        scale_grads: bool | None,
        loss_weight: LossWeight | None = None,
    ) -> None:
        self._n_microbatches = _arguments.integer("n_microbatches", n_microbatches)
        if self._n_microbatches < 1:
            raise ValueError(f"n_microbatches is {n_microbatches}, must be at least 1")
        if not stages:
            raise ValueError("a schedule needs at least one stage on each rank")
        self._stages = list(stages)
        self._num_stages = self._stages[0].num_stages
        self.pp_group_size: int = self._stages[0].group_size
        self.rank: int = self._stages[0].group_rank
        self._loss_fn = loss_fn
        self._has_backward = loss_fn is not None
        self._args_chunk_spec = args_chunk_spec
        self._kwargs_chunk_spec = kwargs_chunk_spec
        self._output_merge_spec = output_merge_spec
        if loss_weight is not None and scale_grads is not None:
            raise ValueError(f"loss_weight is for scale_grads None, and that is {scale_grads!r}")
        self.scale_grads = scale_grads
        self._loss_weight = loss_weight
        self._looks_at_means = scale_grads is None and loss_weight is None
        self._proved = self._generate() if self._generator else None
        self._order: Order | None = None
        self._with_messages: Order | None = None  # The same as it runs, where somebody asked.
        self._running: ScheduleRun | None = None
        self._divisor = 1  # Divides a step's gradients, on all ranks.

    def __getattr__(self, name: str) -> Any:
        return member("penstock.pipelining.schedules", "_PipelineSchedule", self, name)

    @property
    def pipeline_order(self) -> Order:
        """What each rank does at each step; None where it is idle."""
        if self._order is None:
            self._order = self._make_order()
        return self._order

    @pipeline_order.setter
    def pipeline_order(self, order: Order) -> None:
        self._order = order
        self._with_messages = None

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
        """Runs the program on a batch, and adds its gradients to those of the parameters.

        args, kwargs: what the model takes; the rank of the first stage passes args, each rank the
            keyword arguments that its own stages take.
        target: on the rank of the last stage; split like args.
        losses: there, is emptied and filled with the loss of each microbatch: detached scalars.
        return_outputs: whether the merged output is returned there; None elsewhere.
        loss_kwargs: handed to loss_fn, as they are, for each microbatch.
        arg_mbs, kwarg_mbs, target_mbs: the same by microbatch, in place of args, kwargs and target.

        Raises what a module or loss_fn raises, on the rank where it does, and penstock.CommError,
        with its words, on all others; the schedule cannot be used after that.
        """
        if self._has_backward and not torch.is_grad_enabled():
            raise RuntimeError("step() needs gradients, and they are off: use eval(), or turn on")
        batch = Batch(args, kwargs, target, arg_mbs, kwarg_mbs, target_mbs)
        return self._run(self._has_backward, batch, losses, return_outputs, loss_kwargs)

    @for_all_ranks("a schedule", name="schedule.eval()")
    def eval(
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
        """The same, forward only: no graphs, and gradients stay as they are.

        Without a target there are no losses.  Modules stay in train() or eval() as they are set.
        """
        batch = Batch(args, kwargs, target, arg_mbs, kwarg_mbs, target_mbs)
        return self._run(False, batch, losses, return_outputs, loss_kwargs)

    # The name of its generator; none for programs of one's own.
    _generator: ClassVar[str] = ""

    def _generate(self) -> Schedule:
        """The schedule of these sizes, proved, with the stages that it has on this rank."""
        schedule = _planning.generate(
            self._generator, self.pp_group_size, self._n_microbatches, len(self._stages), None
        )
        self._check_sizes(schedule)
        placement = dict(enumerate(proved(schedule).rank_of_stage))
        here = [stage for stage, rank in placement.items() if rank == self.rank]
        given = [stage.stage_index for stage in self._stages if hasattr(stage, "stage_index")]
        if given and sorted(given) != here:
            raise ScheduleError(
                f"{type(self).__name__} has stages {_listed(here)} on rank {self.rank}, which was "
                f"given stages {_listed(given)}"
            )
        for stage in self._stages:
            stage.stage_index_to_group_rank = placement
        return schedule

    def _make_order(self) -> Order:
        if self._proved is None:
            raise ScheduleError(
                f"{type(self).__name__} has no pipeline_order: set it before step()"
            )
        if self._proved.purpose == "forward":
            return actions.to_order(self._proved)
        return actions.torch_order(
            self._generator,
            ranks=self.pp_group_size,
            stages_per_rank=len(self._stages),
            microbatches=self._n_microbatches,
        )

    def _validate_and_set_stage_mapping(self, actions: Order) -> None:
        """Proves an order, and tells the stages on which rank each of them is."""
        ranks = _validate_schedule(
            actions, self.pp_group_size, self._num_stages, self._n_microbatches
        )
        for stage in self._stages:
            stage.stage_index_to_group_rank = ranks

    def _program(self) -> Schedule:
        """What runs: the schedule as it was proved, unless somebody has looked at its order."""
        if self._proved is not None and self._order is None:
            return self._proved
        program = actions.to_schedule(self.pipeline_order, name=type(self).__name__)
        self._check_sizes(program)
        return program

    def _check_sizes(self, program: Schedule) -> None:
        wanted = (self.pp_group_size, self._num_stages, self._n_microbatches)
        found = (program.ranks, program.stages, program.microbatches)
        for name, want, have in zip(
            ("ranks", "stages", "microbatches"), wanted, found, strict=True
        ):
            if want != have:
                raise ScheduleError(
                    f"{type(self).__name__}: its program has {have} {name}, must have {want}"
                )

    def _connected(self) -> ScheduleRun:
        if self._running is None:
            program = self._program()
            communicator = connect(self._stages[0].group, self._stages[0].device)
            run = ScheduleRun(program, self._stages, self._loss_fn, communicator)
            self._divisor = self._agreed_divisor(communicator)
            self._running = run
        self._running.check_modules(self._stages)
        self._running.use_loss(self._loss_fn)  # Libraries set it between steps.
        return self._running

    def _run(
        self,
        trains: bool,
        batch: Batch,
        losses: list[torch.Tensor] | None,
        return_outputs: bool,
        loss_kwargs: dict[str, Any] | None,
    ) -> Any:
        run = self._connected()
        with run.telling_others():
            step = self._step_of(trains, batch, loss_kwargs)
            step.keeps_outputs = return_outputs
            factors = self._loss_factors(step) if trains else None
            if factors is not None:
                step.of_nothing = frozenset(i for i, each in enumerate(factors) if each == 0)
                step.looks_at_means = self._looks_at_means
        self._before_step(step)
        if trains:
            with divided((stage.submod for stage in self._stages), self._divisor):
                run.train(step, self._starts(step, factors))
        else:
            run.evaluate(step)
        if not self._has(-1):
            return None
        if step.looks_at_means and factors is not None:
            self._look_at_means(step, factors)
        if losses is not None:
            losses[:] = [step.losses[i] for i in range(len(step.targets or ()))]
        if not return_outputs:
            return None
        outputs = [step.outputs[microbatch] for microbatch in range(self._n_microbatches)]
        return merge_chunks(outputs, self._output_merge_spec)

    def _before_step(self, step: Step) -> None:
        """Hook for schedules whose actions may be functions of one's own."""

    def _has(self, stage_index: int) -> bool:
        """Whether this rank has that stage, counted from the end where it is negative."""
        wanted = stage_index % self._num_stages
        return any(stage.stage_index == wanted for stage in self._stages)

    def _step_of(self, trains: bool, batch: Batch, loss_kwargs: dict[str, Any] | None) -> Step:
        count = self._n_microbatches
        args, kwargs = batch.inputs(count, self._args_chunk_spec, self._kwargs_chunk_spec)
        step = Step(args if self._has(0) else None, kwargs)
        step.loss_kwargs = loss_kwargs or {}
        if not self._has(-1) or self._loss_fn is None:
            return step
        step.targets = batch.targets(count)
        if step.targets is None and trains:
            raise ValueError("step() was given no target, which the rank of the last stage passes")
        return step

    def _is_mean(self, loss_kwargs: dict[str, Any]) -> bool:
        """Whether a step's gradients are those of the mean over its microbatches."""
        if self.scale_grads is not None:
            return self.scale_grads
        return is_mean(self._loss_fn, loss_kwargs, self._loss_weight)

    def _agreed_divisor(self, communicator: Communicator) -> int:
        """Collective: the number of microbatches, or 1 where the last stage's rank adds losses up.

        The others may not know its loss.
        """
        mine = str(self._n_microbatches if self._is_mean({}) else 1) if self._has(-1) else ""
        return int("".join(communicator.exchange("gradient divisor", mine)))

    def _loss_factors(self, step: Step) -> list[float] | None:
        """What each microbatch counts in the mean, where that is not the same of all."""
        if step.targets is None or self.scale_grads is not None:
            return None
        if not self._is_mean(step.loss_kwargs):
            return None
        return factors_of(self._loss_fn, step.targets, step.loss_kwargs, self._loss_weight)

    def _starts(self, step: Step, factors: list[float] | None) -> list[float] | None:
        """What each microbatch's loss is multiplied by where its backward begins.

        That is what it counts, unless losses have become sums, or means, after the first step.
        """
        wanted = self._n_microbatches if self._is_mean(step.loss_kwargs) else 1
        if wanted == self._divisor:
            return factors
        return [each * self._divisor / wanted for each in factors or [1.0] * self._n_microbatches]

    def _look_at_means(self, step: Step, factors: list[float]) -> None:
        """Has a loss told that is a sum, or a mean over something else; once, of the first step."""
        if step.sums and self._n_microbatches > 1:
            warn_of_sum(self._n_microbatches)
            self._looks_at_means = False
            return
        self._looks_at_means = len(step.means) == len(factors) and not warn_of_other_means(
            factors, step.means
        )


def proved(program: Schedule) -> Verdict:
    """Its verdict; a ScheduleError with every objection where there are some."""
    verdict = verify(program)
    if not verdict:
        raise ScheduleError(
            f"{program.name} does not verify: {len(verdict.diagnostics)} objections",
            (str(verdict),),
        )
    return verdict


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))


published_as("penstock.pipelining.schedules", globals())
