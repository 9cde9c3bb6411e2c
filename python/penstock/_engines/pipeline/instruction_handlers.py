"""Functions of a user's own at instructions of a user's own, while a program runs.

A program has actions for forwards and backwards, and none for what penstock does not know: so a
handler of the latter is called in front of the stage's next forward or backward, or when the
program is over.  Knows no connections.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from penstock._pipe_schedule import (
    INSTRUCTIONS,
    BackwardPass,
    ForwardPass,
    PipeInstruction,
    PipeSchedule,
)

__all__ = ["Handler", "Handlers", "Placed"]

Handler = Callable[[Any, Callable[[], None]], None]
"""Gets the instruction, and what runs it as the forward or backward that it is derived from."""

Part = tuple[int, str, int | None, Callable[[], None]]
"""As penstock._runtime gives them: stage, operation, microbatch, and what runs it."""

Call = tuple[Handler, PipeInstruction]


class Handlers:
    """Handlers by the class of their instructions.

    Raises TypeError for what is no such class, and ValueError for a class whose place is
    penstock's: one that is derived from another of its instructions than a forward or a backward.
    """

    def __init__(self, handlers: Mapping[type[PipeInstruction], Handler]) -> None:
        for kind in handlers:
            if not (isinstance(kind, type) and issubclass(kind, PipeInstruction)):
                raise TypeError(f"handlers has {kind!r}, must have classes of PipeInstruction")
            base = _base(kind)
            if base not in (None, ForwardPass, BackwardPass):
                raise ValueError(
                    f"handlers has {kind.__name__}, which is a {base.__name__}: penstock places "
                    f"that itself; handlers are for forwards, backwards, and what it does not know"
                )
        self._handlers = dict(handlers)

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._handlers)

    def unknown(self) -> list[type[PipeInstruction]]:
        """The classes that penstock knows nothing of: what verifies passes over them."""
        return [kind for kind in self._handlers if _base(kind) is None]

    def place(self, schedules: Sequence[PipeSchedule]) -> Placed:
        """The places where the instructions of some stages are handled."""
        placed = Placed()
        for schedule in schedules:
            self._place_stage(schedule, placed)
        return placed

    def _place_stage(self, schedule: PipeSchedule, placed: Placed) -> None:
        waiting: list[Call] = []
        in_buffer: dict[int, int] = {}
        forwards = 0
        for instruction in (each for step in schedule.steps() for each in step):
            handler, base = self._find(instruction), _base(type(instruction))
            if base is None and handler is not None:
                waiting.append((handler, instruction))
            if base not in (ForwardPass, BackwardPass):
                continue
            buffer = instruction.kwargs["buffer_id"]
            if base is ForwardPass:
                in_buffer[buffer] = forwards
                forwards += 1
            operation = "F" if base is ForwardPass else "B"
            place = (schedule.stage_id, operation, in_buffer[buffer])
            placed.before[place], waiting = waiting, []
            if handler is not None:
                placed.instead[place] = (handler, instruction)
        placed.at_end += waiting

    def _find(self, instruction: PipeInstruction) -> Handler | None:
        for kind in type(instruction).__mro__:
            if kind in self._handlers:
                return self._handlers[kind]
            if _is_known(kind):
                return None
        return None


class Placed:
    """Handlers at actions: stage, operation and microbatch."""

    def __init__(self) -> None:
        self.before: dict[tuple[int, str, int | None], list[Call]] = {}
        self.instead: dict[tuple[int, str, int | None], Call] = {}
        self.at_end: list[Call] = []

    def run_action(self, parts: Sequence[Part]) -> None:
        """Runs in place of an action."""
        for stage, operation, microbatch, run in parts:
            place = (stage, operation, microbatch)
            for handler, instruction in self.before.get(place, []):
                handler(instruction, _nothing)
            if place in self.instead:
                handler, instruction = self.instead[place]
                handler(instruction, run)
            else:
                run()

    def run_end(self) -> None:
        """When the program is over."""
        for handler, instruction in self.at_end:
            handler(instruction, _nothing)


def _nothing() -> None:
    """What an instruction that penstock does not know is derived from."""


def _is_known(kind: type) -> bool:
    return INSTRUCTIONS.get(kind.__name__) is kind


def _base(kind: type) -> type | None:
    """The instruction of DeepSpeed's that a class is derived from."""
    return next((each for each in kind.__mro__ if _is_known(each)), None)
