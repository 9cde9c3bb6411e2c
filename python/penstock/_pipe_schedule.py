"""DeepSpeed's pipeline schedules: change the import line, and nothing else.

    import penstock.pipe.schedule as schedule  # was: deepspeed.runtime.pipe.schedule

A schedule is iterated for the steps of one stage, each a list of instructions:

    >>> for step in schedule.TrainSchedule(micro_batches=4, stages=2, stage_id=0):
    ...     for instruction in step: ...

A step is atomic: a barrier of all stages may stand between any two steps, and nothing deadlocks.
`penstock.pipe.verify` proves that of any schedule, of one's own subclass too.

Arguments that make no sense are a ValueError, others than integers a TypeError; both name the
argument, its value and what is allowed.

Source: deepspeed.runtime.pipe.schedule; the steps come from C++ (penstock/plan/schedule/deepspeed).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any, Literal, SupportsIndex

from penstock import _arguments, _planning
from penstock._compatibility import published_as

__all__ = [
    "BackwardPass",
    "BufferOpInstruction",
    "DataParallelSchedule",
    "ForwardPass",
    "InferenceSchedule",
    "LoadMicroBatch",
    "OptimizerStep",
    "PipeInstruction",
    "PipeSchedule",
    "RecvActivation",
    "RecvGrad",
    "ReduceGrads",
    "ReduceTiedGrads",
    "SendActivation",
    "SendGrad",
    "TrainSchedule",
]


class PipeInstruction:
    """One thing that a stage does; its keywords are attributes, too.

    Engines look at the exact type of an instruction, so a subclass is another instruction.  It runs
    as the instruction that it is derived from, unless a handler is registered for it.
    """

    def __init__(self, **kwargs: Any) -> None:
        self.name = type(self).__name__
        self.kwargs = kwargs
        for key, value in kwargs.items():
            setattr(self, key, value)

    def __repr__(self) -> str:
        arguments = ", ".join(f"{key}={value!r}" for key, value in self.kwargs.items())
        return f"{self.name}({arguments})"


class OptimizerStep(PipeInstruction):
    """One step of the optimizer, after both reductions; then the gradients are zero.

    May wait for the other data-parallel ranks.
    """


class ReduceGrads(PipeInstruction):
    """Sums the stage's gradients over the data-parallel ranks."""


class ReduceTiedGrads(PipeInstruction):
    """Sums the gradients of tied modules over the stages that hold them, and waits for them."""


class BufferOpInstruction(PipeInstruction):
    """An instruction that works on one of the stage's buffers.

    `buffer_id` is in [0, num_pipe_buffers()).
    """

    buffer_id: int

    def __init__(self, buffer_id: int, **kwargs: Any) -> None:
        super().__init__(buffer_id=buffer_id, **kwargs)


class LoadMicroBatch(BufferOpInstruction):
    """Takes the next microbatch: its inputs on the first stage, its labels on the last."""


class ForwardPass(BufferOpInstruction):
    """Computes the outputs from the inputs in its buffer; on the last stage the loss, too."""


class BackwardPass(BufferOpInstruction):
    """Runs backward from the outputs in its buffer, with the gradients that were received.

    Adds to the gradients of the stage's parameters.
    """


class SendActivation(BufferOpInstruction):
    """Sends the outputs to the next stage, where a RecvActivation meets it; may block."""


class RecvActivation(BufferOpInstruction):
    """Receives inputs from the previous stage, where a SendActivation meets it; may block."""


class SendGrad(BufferOpInstruction):
    """Sends the inputs' gradients to the previous stage, where a RecvGrad meets it; may block.

    Only inputs that require a gradient have one; a missing one arrives as None.
    """


class RecvGrad(BufferOpInstruction):
    """Receives the outputs' gradients from the next stage, where a SendGrad meets it; may block."""


Step = list[tuple[str, int | None]]
"""Names of instructions with their buffers, as the native side has them."""

INSTRUCTIONS: dict[str, type[PipeInstruction]] = {
    each.__name__: each
    for each in (
        LoadMicroBatch,
        ForwardPass,
        BackwardPass,
        SendActivation,
        RecvActivation,
        SendGrad,
        RecvGrad,
        ReduceTiedGrads,
        ReduceGrads,
        OptimizerStep,
    )
}


class PipeSchedule(ABC):
    """The steps of one stage.  A subclass says them in `steps`; it runs like a shipped one.

    micro_batches: how many pass the stages between two steps of the optimizer, at least 1.
    stages: of the pipeline, at least 1.
    stage_id: which of them this is, in [0, stages).
    """

    def __init__(
        self, micro_batches: SupportsIndex, stages: SupportsIndex, stage_id: SupportsIndex
    ) -> None:
        self.micro_batches = _arguments.integer("micro_batches", micro_batches)
        self.stages = _arguments.integer("stages", stages)
        self.stage_id = _arguments.integer("stage_id", stage_id)
        self._position()
        self.prev_stage = self.stage_id - 1
        self.next_stage = self.stage_id + 1
        self._iterator: Iterator[list[PipeInstruction]] | None = None

    @abstractmethod
    def steps(self) -> Iterable[list[PipeInstruction]]:
        """The steps in turn, each a list of instructions."""

    def num_pipe_buffers(self) -> int:
        """How many buffers the stage needs: one per microbatch, if a subclass says no other."""
        return self.micro_batches

    @property
    def stage(self) -> int:
        """The number of this stage."""
        return self.stage_id

    @property
    def num_stages(self) -> int:
        """How many stages the pipeline has."""
        return self.stages

    @property
    def num_micro_batches(self) -> int:
        """How many microbatches pass the stages."""
        return self.micro_batches

    @property
    def is_first_stage(self) -> bool:
        """Whether this is the stage that loads the inputs."""
        return self.stage_id == 0

    @property
    def is_last_stage(self) -> bool:
        """Whether this is the stage that loads the labels."""
        return self.stage_id == self.stages - 1

    def __iter__(self) -> Iterator[list[PipeInstruction]]:
        """The schedule itself, which begins again."""
        self._iterator = None
        return self

    def __next__(self) -> list[PipeInstruction]:
        if self._iterator is None:
            self._iterator = iter(self.steps())
        return next(self._iterator)

    def _valid_micro_batch(self, micro_batch_id: int) -> bool:
        return 0 <= micro_batch_id < self.micro_batches

    def _valid_stage(self, stage_id: int) -> bool:
        return 0 <= stage_id < self.stages

    def _buffer_idx(self, micro_batch_id: int) -> int:
        """The buffer of a microbatch; an AssertionError where there is no such microbatch."""
        if not self._valid_micro_batch(micro_batch_id):
            raise AssertionError(
                f"micro_batch_id is {micro_batch_id}, must be 0 to {self.micro_batches - 1}"
            )
        return micro_batch_id % self.num_pipe_buffers()

    def _of_stage(self, stage_id: int) -> PipeSchedule:
        """The schedule of another stage of the same pipeline."""
        try:
            return type(self)(
                micro_batches=self.micro_batches, stages=self.stages, stage_id=stage_id
            )
        except TypeError as error:
            raise TypeError(
                f"{type(self).__name__} cannot be made for stage {stage_id} from micro_batches, "
                f"stages and stage_id alone ({error}): give a list with the schedule of each stage"
            ) from error

    def _position(self) -> _planning.Position:
        return _planning.Position(self.micro_batches, self.stages, self.stage_id)


def instructions_of(step: Step) -> list[PipeInstruction]:
    """A step of the native side, with DeepSpeed's classes."""
    return [
        INSTRUCTIONS[name]() if buffer is None else INSTRUCTIONS[name](buffer_id=buffer)
        for name, buffer in step
    ]


def train_version(version: str) -> _planning.TrainVersion:
    """The TrainSchedule that is meant; a ValueError for another word."""
    versions = {
        "original": _planning.TrainVersion.Original,
        "later": _planning.TrainVersion.Later,
    }
    if version not in versions:
        raise ValueError(f'version is {version!r}, must be "original" or "later"')
    return versions[version]


class TrainSchedule(PipeSchedule):
    """1F1B on an even/odd clock: 2 (micro_batches + stages - 1) steps, those without work empty.

    The forward of microbatch k is at step 2k + stage_id, its backward at
    2k + 2 stages - 1 - stage_id.

    version: "original" receives before it sends going forward; "later", as DeepSpeed 0.16 does,
    sends first and needs a buffer less.
    """

    def __init__(
        self,
        micro_batches: SupportsIndex,
        stages: SupportsIndex,
        stage_id: SupportsIndex,
        *,
        version: Literal["original", "later"] = "original",
    ) -> None:
        super().__init__(micro_batches, stages, stage_id)
        train_version(version)
        self.version = version

    def steps(self) -> Iterator[list[PipeInstruction]]:
        position = self._position()
        previous = -1
        last = position.train_step_count() - 1
        for step in range(last + 1):
            microbatch, is_forward = self._step_to_micro_batch(step)
            work = position.train_step(microbatch, is_forward, previous, self._version())
            previous = microbatch
            instructions = [
                INSTRUCTIONS[name](buffer_id=self._buffer_idx(number)) for name, number in work
            ]
            if step == last:
                instructions += [ReduceTiedGrads(), ReduceGrads(), OptimizerStep()]
            yield instructions

    def num_pipe_buffers(self) -> int:
        """max(2, min(stages - stage_id + 1, micro_batches)); the later version needs one less."""
        return self._position().train_buffers(self._version())

    def _of_stage(self, stage_id: int) -> PipeSchedule:
        other = super()._of_stage(stage_id)
        if isinstance(other, TrainSchedule):
            other.version = self.version
        return other

    def _version(self) -> _planning.TrainVersion:
        return train_version(self.version)

    def _step_to_micro_batch(self, step_id: int) -> tuple[int, bool]:
        """The microbatch that a step is of, in range or not, and whether it goes forward."""
        return self._position().step_to_micro_batch(step_id)

    def _even_step_forward_id(self, step_id: int) -> int:
        return self._position().even_step_forward_id(step_id)

    def _odd_step_forward_id(self, step_id: int) -> int:
        return self._position().odd_step_forward_id(step_id)

    def _even_step_backward_id(self, step_id: int) -> int:
        return self._position().even_step_backward_id(step_id)

    def _odd_step_backward_id(self, step_id: int) -> int:
        return self._position().odd_step_backward_id(step_id)


class InferenceSchedule(PipeSchedule):
    """Forward only: microbatch k at step k + stage_id, in two buffers."""

    def steps(self) -> Iterator[list[PipeInstruction]]:
        position = self._position()
        for step in range(self.micro_batches + self.stages - 1):
            yield instructions_of(position.inference_step(step))

    def num_pipe_buffers(self) -> int:
        """2: one receives while the other is sent."""
        return _planning.INFERENCE_BUFFERS


class DataParallelSchedule(PipeSchedule):
    """A step per microbatch, all of it on one rank: load, forward, backward."""

    def steps(self) -> Iterator[list[PipeInstruction]]:
        position = self._position()
        for step in range(self.micro_batches):
            yield instructions_of(position.data_parallel_step(step))

    def num_pipe_buffers(self) -> int:
        """1: nothing is under way."""
        return _planning.DATA_PARALLEL_BUFFERS


published_as("penstock.pipe.schedule", globals())
