"""Proves schedules in DeepSpeed's form, whoever wrote them, and turns them into programs.

A schedule is given as the PipeSchedule of one stage, from which those of the others are made with
the same arguments, or as a list with one per stage.  What is proved: docs/deepspeed.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from penstock import _arguments, _planning
from penstock._compatibility import published_as
from penstock._pipe_schedule import (
    INSTRUCTIONS,
    PipeInstruction,
    PipeSchedule,
    Step,
    instructions_of,
    train_version,
)
from penstock._planning import Schedule, Verdict

__all__ = ["from_program", "program", "to_text", "verify"]

Stages = PipeSchedule | Sequence[PipeSchedule]
"""One stage's schedule, or those of all stages in order."""

Handled = Iterable[type[PipeInstruction]]
"""Instructions that a handler runs: nothing is known of them, and they are passed over."""


def verify(
    schedule: Stages, *, tied_stages: Iterable[int] | None = None, handled: Handled = ()
) -> Verdict:
    """Proves that a barrier may stand between any two steps, and that buffers hold what they must.

    tied_stages: the stages that hold a tied module, for which ReduceTiedGrads is a rendezvous;
    None: not known, so all of them.
    handled: instructions that a handler runs; they are passed over.

    The verdict is true when there are no objections; str() of it spells them.
    Raises ValueError for an instruction that nothing handles, by its name.
    """
    tied = None
    if tied_stages is not None:
        tied = [_arguments.integer("tied_stages", each) for each in tied_stages]
    return _native(schedule, handled).verify(tied)


def program(schedule: Stages, *, handled: Handled = ()) -> Schedule:
    """What the stages run, as actions that penstock verifies, simulates and draws.

    Raises ScheduleError where a microbatch gets lost.
    """
    return _native(schedule, handled).to_schedule()


def from_program(
    program: Schedule, *, version: Literal["original", "later"] = "original"
) -> list[PipeSchedule]:
    """The other way: a program's instructions, a PipeSchedule per stage.

    Of 1F1B they are those of TrainSchedule in that version, of forward_only those of
    InferenceSchedule.

    Raises ScheduleError where the program does not verify, and for the first action that DeepSpeed
    has no instruction for.
    """
    stages = _planning.to_stepped(program, train_version(version)).stages
    return [_Written(stages, program.microbatches, stage) for stage in range(len(stages))]


class _Written(PipeSchedule):
    """A stage of steps that are written down for all stages."""

    def __init__(
        self, native: list[tuple[int, list[Step]]], micro_batches: int, stage_id: int
    ) -> None:
        super().__init__(micro_batches, len(native), stage_id)
        self._native = native

    def steps(self) -> Iterator[list[PipeInstruction]]:
        for step in self._native[self.stage_id][1]:
            yield instructions_of(step)

    def num_pipe_buffers(self) -> int:
        return self._native[self.stage_id][0]

    def _of_stage(self, stage_id: int) -> PipeSchedule:
        return _Written(self._native, self.micro_batches, stage_id)


def to_text(schedule: Stages, *, handled: Handled = ()) -> str:
    """A line per step, as `penstock schedule --dialect deepspeed` prints it."""
    return _native(schedule, handled).to_text()


def _native_instruction(
    instruction: PipeInstruction, handled: frozenset[type[PipeInstruction]]
) -> tuple[str, int | None] | None:
    """What the instruction runs as; None where a handler runs it."""
    if not isinstance(instruction, PipeInstruction):
        raise TypeError(f"a step holds {instruction!r}, must hold instances of PipeInstruction")
    for each in type(instruction).__mro__:
        if each in handled:
            return None
        if INSTRUCTIONS.get(each.__name__) is each:
            buffer = _arguments.optional_integer("buffer_id", instruction.kwargs.get("buffer_id"))
            return each.__name__, buffer
    name = type(instruction).__name__
    raise ValueError(
        f"nothing handles {instruction!r}: derive {name} from an instruction of penstock, or "
        f"register a handler for it"
    )


def _stages_of(schedule: Stages) -> list[PipeSchedule]:
    """The schedules of all stages, in order."""
    if isinstance(schedule, PipeSchedule):
        return [schedule._of_stage(stage) for stage in range(schedule.stages)]
    stages = list(schedule)
    for number, each in enumerate(stages):
        if not isinstance(each, PipeSchedule):
            raise TypeError(f"schedule[{number}] is {each!r}, must be a PipeSchedule")
        if (each.stage_id, each.stages) != (number, len(stages)):
            raise ValueError(
                f"schedule[{number}] is of stage {each.stage_id} of {each.stages}, must be of "
                f"stage {number} of {len(stages)}"
            )
        if each.micro_batches != stages[0].micro_batches:
            raise ValueError(
                f"schedule[{number}] has {each.micro_batches} micro_batches, schedule[0] has "
                f"{stages[0].micro_batches}"
            )
    if not stages:
        raise ValueError("schedule is empty, must have a PipeSchedule per stage")
    return stages


def _native(schedule: Stages, handled: Handled) -> _planning.SteppedSchedule:
    """All stages' steps on the native side."""
    by_handler = frozenset(handled)
    stages = _stages_of(schedule)
    native = _planning.SteppedSchedule(type(stages[0]).__name__, stages[0].micro_batches)
    for stage in stages:
        steps: list[Step] = []
        for instructions in stage.steps():
            native_step = [_native_instruction(each, by_handler) for each in instructions]
            steps.append([each for each in native_step if each is not None])
        buffers = _arguments.integer("num_pipe_buffers()", stage.num_pipe_buffers())
        native.add_stage(buffers, steps)
    return native


published_as("penstock.pipe.verification", globals())
