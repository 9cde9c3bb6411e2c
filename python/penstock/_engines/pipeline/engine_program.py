"""The program of a pipeline, from whatever says which one: a name, a file, a program, or steps.

The module asks where stages are, the engine what runs.  Needs no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from penstock import _planning
from penstock._pipe_schedule import PipeSchedule
from penstock._pipe_verification import Handled, program, verify
from penstock._planning import Schedule, Verdict
from penstock.errors import ScheduleError
from penstock.schedule import verify as verify_program

__all__ = ["Chosen", "placement_of", "program_of", "steps_of", "title_of"]

Chosen = str | Schedule | Callable[..., PipeSchedule] | Sequence[PipeSchedule]
"""A schedule's name or a file with a program, a program, or what makes a stage's PipeSchedule."""

_FILES = (".csv", ".json", ".txt")


def program_of(
    chosen: Chosen,
    *,
    ranks: int,
    microbatches: int,
    stages_per_rank: int | None = None,
    tied_stages: Iterable[int] | None = None,
    handled: Handled = (),
) -> Schedule:
    """The program that trains, proved.

    tied_stages: those that hold tied layers, which meet at ReduceTiedGrads; None: not known.
    handled: instructions that are no part of it.

    Raises ScheduleError with every objection, and for sizes that do not fit.
    """
    if isinstance(chosen, Schedule):
        found = chosen
    elif isinstance(chosen, str) and Path(chosen).suffix in _FILES:
        found = _planning.load(chosen)
    elif isinstance(chosen, str):
        found = _planning.generate(chosen, ranks, microbatches, stages_per_rank, None)
    else:
        stages = steps_of(chosen, ranks=ranks, microbatches=microbatches)
        return _of_steps(title_of(stages), stages, tied_stages, handled)
    if found.purpose != "train":
        raise ScheduleError(f"{found.name} runs the model forward only: it cannot train")
    for what, has, needs in [
        ("ranks", found.ranks, ranks),
        ("microbatches", found.microbatches, microbatches),
    ]:
        if has != needs:
            raise ScheduleError(f"{found.name} is for {has} {what}, must be for {needs}")
    _refuse(found.name, verify_program(found))
    return found


def placement_of(chosen: Chosen, *, ranks: int, stages_per_rank: int | None = None) -> list[int]:
    """The rank of each stage.

    Raises ScheduleError for what program_of() would refuse with any number of microbatches.
    """
    if isinstance(chosen, str) and Path(chosen).suffix not in _FILES:
        some = 2 * ranks  # Every schedule takes as many; placements do not depend on them.
        found = program_of(chosen, ranks=ranks, microbatches=some, stages_per_rank=stages_per_rank)
    elif isinstance(chosen, str | Schedule):
        found = _planning.load(chosen) if isinstance(chosen, str) else chosen
    else:
        return list(range(ranks))
    verdict = verify_program(found)
    _refuse(found.name, verdict)
    return verdict.rank_of_stage


def title_of(chosen: Chosen) -> str:
    """What messages call it."""
    if isinstance(chosen, str):
        return chosen
    if isinstance(chosen, Schedule):
        return chosen.name
    if isinstance(chosen, Sequence):
        return type(chosen[0]).__name__ if chosen else "no schedule"
    return getattr(chosen, "__name__", type(chosen).__name__)


def steps_of(
    chosen: Callable[..., PipeSchedule] | Sequence[PipeSchedule], *, ranks: int, microbatches: int
) -> list[PipeSchedule]:
    """Each stage's PipeSchedule, of these sizes."""
    stages: Any = chosen
    if callable(chosen):
        stages = [
            chosen(micro_batches=microbatches, stages=ranks, stage_id=stage)
            for stage in range(ranks)
        ]
    elif not isinstance(chosen, Sequence):
        raise TypeError(
            f"schedule is {chosen!r}, must be a name, a file, a program or a class of PipeSchedule"
        )
    for number, each in enumerate(stages):
        if not isinstance(each, PipeSchedule):
            raise TypeError(
                f"{title_of(chosen)} gave {each!r} for stage {number}, must give a PipeSchedule"
            )
        if (each.stages, each.micro_batches) != (ranks, microbatches):
            raise ScheduleError(
                f"{title_of(chosen)} is of {each.stages} stages and {each.micro_batches} "
                f"micro_batches, must be of {ranks} and {microbatches}"
            )
    return list(stages)


def _of_steps(
    title: str,
    stages: Sequence[PipeSchedule],
    tied_stages: Iterable[int] | None,
    handled: Handled,
) -> Schedule:
    _refuse(title, verify(stages, tied_stages=tied_stages, handled=handled))
    found = program(stages, handled=handled)
    if found.purpose != "train":
        raise ScheduleError(f"{title} has no BackwardPass: it cannot train")
    return found


def _refuse(title: str, verdict: Verdict) -> None:
    if verdict:
        return
    raise ScheduleError(
        f"{title} does not verify: {len(verdict.diagnostics)} objections", (str(verdict),)
    )
