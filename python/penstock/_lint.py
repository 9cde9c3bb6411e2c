"""penstock.lint: what speaks against a schedule, and what it would cost, before anything runs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock import _planning
from penstock._pipe_schedule import PipeSchedule
from penstock._pipe_verification import program
from penstock.errors import ScheduleError
from penstock.schedule import Channels, Cost, Schedule, Simulation, Verdict, load, render
from penstock.schedule import simulate as simulate_schedule
from penstock.schedule import verify as verify_schedule

__all__ = ["Report", "lint"]


@dataclass(frozen=True)
class Report:
    """What lint found; true when there are no objections, and a notebook shows the timeline.

    schedule: the programs that were looked at, with their messages where there are any.
    verdict: every objection.  simulation: None where there are some.
    notes: what is to be known of where the schedule came from.
    """

    schedule: Schedule
    verdict: Verdict
    simulation: Simulation | None
    notes: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.verdict)

    @property
    def _title(self) -> str:
        return repr(self.schedule).removeprefix("<Schedule ").removesuffix(">")

    def __str__(self) -> str:
        lines = [f"{self._title}: {self.verdict}", *(f"  note: {note}" for note in self.notes)]
        if self.simulation is not None:
            lines.append(f"makespan {self.simulation.makespan:g}")
            lines += [
                f"rank {number}: busy {rank.busy:g}, idle {rank.bubble:.1%} of the makespan, at "
                f"most {rank.peak_activations} activations"
                for number, rank in enumerate(self.simulation.ranks)
            ]
        return "\n".join(lines)

    def render(self, path: str | os.PathLike[str] | None = None) -> str:
        """The timeline as .svg, .html or .json, as penstock.schedule.render draws it.

        Raises ScheduleError for a schedule with objections, which has none.
        """
        if self.simulation is None:
            raise ScheduleError(f"{self._title} has no timeline", (str(self.verdict),))
        return render(self.simulation, path)

    def _repr_svg_(self) -> str | None:
        return None if self.simulation is None else self.simulation._repr_svg_()


def lint(
    schedule: object,
    *,
    channels: Channels | None = None,
    activations_max: int | None = None,
    forward: Cost = 1.0,
    input: Cost = 1.0,
    weight: Cost = 1.0,
    backward: Cost | None = None,
    latency: float = 0.0,
) -> Report:
    """Proves that a schedule can run, or says everything that speaks against it, and prices it.

        >>> print(penstock.lint(torch_schedule))
        >>> penstock.lint("mine.csv").render("mine.html")

    schedule: a schedule object of torch.distributed.pipelining or of penstock.pipelining; a path to
    a file in any form that penstock.schedule.load reads; a Schedule; an order of actions by rank; a
    PipeSchedule.  Of objects it is what their ranks run, with its messages where they have any.
    channels: how messages meet; None: those of torch objects in one queue for each pair of ranks,
    as NCCL has them, others by name.
    activations_max: most live activations allowed on a rank.
    forward ... latency: as in penstock.schedule.simulate.

    Raises TypeError for what is no schedule; errors of files and of text as load does.
    """
    programs, notes = _programs_of(schedule)
    if channels is None:
        channels = "pairfifo" if _is_of_torch(schedule) else "tagged"
    verdict = verify_schedule(programs, channels=channels, activations_max=activations_max)
    simulation = None
    if verdict:
        simulation = simulate_schedule(
            programs,
            channels=channels,
            forward=forward,
            input=input,
            weight=weight,
            backward=backward,
            latency=latency,
        )
    return Report(programs, verdict, simulation, notes)


def _is_of_torch(schedule: object) -> bool:
    """Whether torch runs it: a class of torch or derived from one."""
    return any(each.__module__.startswith("torch.distributed.") for each in type(schedule).__mro__)


def _programs_of(schedule: Any) -> tuple[Schedule, tuple[str, ...]]:
    if isinstance(schedule, Schedule):
        return schedule, ()
    if isinstance(schedule, (str, os.PathLike)):
        return load(schedule), ()
    if isinstance(schedule, PipeSchedule):
        return program(schedule), ()
    if isinstance(schedule, Mapping):
        return _schedule_of(schedule, "pipeline_order"), ()
    if hasattr(schedule, "pipeline_order"):
        return _of_object(schedule)
    kind = type(schedule).__name__
    raise TypeError(
        f"lint: schedule is of type {kind}, must be a schedule object, a Schedule, a path, an "
        f"order of actions by rank or a PipeSchedule"
    )


def _of_object(schedule: Any) -> tuple[Schedule, tuple[str, ...]]:
    """A live schedule of torch's dialect: what its ranks run, in the sizes that it was made for."""
    name = type(schedule).__name__
    stages, microbatches = schedule._num_stages, schedule._n_microbatches
    if _is_of_torch(schedule) and name == "Schedule1F1B":
        ranks = len(schedule.pipeline_order)
        note = "the order that torch executes; its pipeline_order is off by one on the last rank"
        return _planning.generate(name, ranks, microbatches, None, None), (note,)
    lowered = getattr(schedule, "pipeline_order_with_comms", None)
    order = lowered or schedule.pipeline_order
    programs = _schedule_of(order, name)
    return _planning.with_sizes(programs, stages, microbatches), ()


def _schedule_of(order: Mapping[int, Any], name: str) -> Schedule:
    rows = [order[rank] for rank in sorted(order)]
    cells = [[str(action) for action in row if action is not None] for row in rows]
    return _planning.parse_cells(cells, name)
