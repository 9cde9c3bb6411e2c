"""Pipeline schedules as programs: generate, verify, simulate, search, plan, draw.  Needs no torch.

    >>> from penstock.schedule import generate, simulate, verify
    >>> schedule = generate("zbv", ranks=4, microbatches=8)
    >>> bool(verify(schedule))
    True
    >>> simulate(schedule).makespan
    51.0

A notebook shows a schedule as its picture, and a simulation as its timeline.

Times and sizes have any unit; those of one call share it.  A cost is one number for all stages, one
per stage, or one per stage and microbatch.

Errors are those of `penstock.errors`.  They are ValueErrors, too, but that a file cannot be written
is a plain Error; an argument of another type is a TypeError.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from penstock import _arguments, _planning
from penstock._arguments import Cost
from penstock._plan import Candidate, Plan, plan
from penstock._planning import Diagnostic, Found, RankSimulation, Schedule, Simulation, Verdict
from penstock.errors import ConfigError

__all__ = [
    "Candidate",
    "Channels",
    "Cost",
    "Diagnostic",
    "Found",
    "Plan",
    "Program",
    "RankSimulation",
    "Schedule",
    "Simulation",
    "Verdict",
    "generate",
    "load",
    "names",
    "parse",
    "plan",
    "render",
    "search",
    "simulate",
    "table",
    "verify",
]

Channels = Literal["tagged", "dirfifo", "pairfifo", "rankfifo"]
"""How a message finds its receiver; see docs/schedules.md."""

Row = str | Iterable[str]
"""The actions of one rank: "0F0 0F1 0B0 0B1", or one by one."""

_PLACEMENTS = {
    "loop": _planning.Placement.Loop,
    "v": _planning.Placement.V,
    "any": _planning.Placement.Any,
}
_CHANNELS = {
    "tagged": _planning.Channels.Tagged,
    "dirfifo": _planning.Channels.DirFifo,
    "pairfifo": _planning.Channels.PairFifo,
    "rankfifo": _planning.Channels.RankFifo,
}
_SECONDS_MAX = 1e6


def generate(
    name: str,
    *,
    ranks: int,
    microbatches: int,
    stages_per_rank: int | None = None,
    microbatch_group: int | None = None,
) -> Schedule:
    """The compute order of the schedule of that name; `table()` says what each one needs.

    name: in any case; PyTorch's class names, too ("ScheduleZBVZeroBubble").
    stages_per_rank: None: as many as the schedule likes.
    microbatch_group: of interleaved schedules, how many microbatches pass a stage before the rank's
    next one; None: as torch has it.

    Raises ScheduleError for an unknown name, with the nearest ones, and for sizes that the schedule
    refuses, with the nearest ones that work.
    """
    return _planning.generate(
        name,
        _arguments.integer("ranks", ranks),
        _arguments.integer("microbatches", microbatches),
        _arguments.optional_integer("stages_per_rank", stages_per_rank),
        _arguments.optional_integer("microbatch_group", microbatch_group),
    )


def names() -> list[str]:
    """The names that `generate` knows."""
    return _planning.names()


def table() -> str:
    """What each schedule needs and what it costs, as a table for people."""
    return _planning.table()


def parse(text: str, *, name: str = "text") -> Schedule:
    """A schedule from its text, in whichever form; the first character says which it is.

    CSV: a row per rank, as torch.distributed.pipelining writes it; empty cells are idle.
    JSON: as `to_json` writes it; costs that are in it are left to the command line.
    DeepSpeed's instructions: as `penstock.pipe.to_text` writes them.

    name: what errors call the text.
    Raises ParseError with line, column and what was expected; ScheduleError for instructions that
    make no program.
    """
    return _planning.parse(text, name)


def load(path: str | os.PathLike[str]) -> Schedule:
    """The same from a file.  Raises ConfigError when it cannot be read."""
    return _planning.load(os.fspath(path))


def Program(  # noqa: N802  (It reads as what it makes.)
    programs: Mapping[int, Row] | Sequence[Row] | Callable[[int], Row],
    *,
    ranks: int | None = None,
    name: str = "program",
) -> Schedule:
    """A schedule written in Python.

    programs: each rank's actions: a mapping, a sequence, or a function of the rank (which may be a
    generator), and then `ranks` says how many.

        >>> Program({0: "0F0 0F1 0B0 0B1", 1: "1F0 1B0 1F1 1B1"})
        <Schedule program(ranks=2, stages=2, microbatches=2)>

    Raises ParseError for an action that is none; ConfigError for ranks that are not 0, 1, 2 ...
    """
    count = _arguments.optional_integer("ranks", ranks)
    if isinstance(programs, str):
        raise ConfigError(
            'Program: programs is one text, must have one per rank: ["0F0 0B0"]; parse() takes CSV'
        )
    if callable(programs):
        if count is None:
            raise ConfigError("Program: ranks is required with a function of the rank")
        rows = [programs(rank) for rank in range(count)]
    elif isinstance(programs, Mapping):
        if set(programs) != set(range(len(programs))):
            given = ", ".join(map(str, programs))
            raise ConfigError(f"Program: ranks are {given}, must be 0 to {len(programs) - 1}")
        rows = [programs[rank] for rank in range(len(programs))]
    else:
        rows = list(programs)
    if count is not None and count != len(rows):
        raise ConfigError(f"Program: ranks is {count}, but there are programs for {len(rows)}")
    cells = [row.split() if isinstance(row, str) else [str(cell) for cell in row] for row in rows]
    return _planning.parse_cells(cells, name)


def verify(
    schedule: Schedule,
    *,
    channels: Channels = "tagged",
    activations_max: int | None = None,
    memory_max: float | None = None,
    activation: Cost = 1.0,
    keep: float = 1.0,
) -> Verdict:
    """Proves that the schedule can run, or says everything that speaks against it.

    channels: how messages meet, of a schedule that has them.
    activations_max: most live activations allowed on a rank; None: any number.
    memory_max: the most that they may take, in the unit of `activation`; None: any.
    keep: share of an activation that a split backward keeps from the end of I to W.
    """
    return _planning.verify(
        schedule, _options(channels, activations_max, memory_max, activation, keep)
    )


def simulate(
    schedule: Schedule,
    *,
    forward: Cost = 1.0,
    input: Cost = 1.0,
    weight: Cost = 1.0,
    backward: Cost | None = None,
    forward_exchange: Cost = 0.0,
    input_exchange: Cost = 0.0,
    backward_exchange: Cost | None = None,
    overlap: float = 1.0,
    latency: float = 0.0,
    message: Cost = 0.0,
    bandwidth: float | None = None,
    gather: Cost = 0.0,
    reduce: Cost = 0.0,
    optimizer: float = 0.0,
    activation: Cost = 1.0,
    keep: float = 1.0,
    channels: Channels = "tagged",
) -> Simulation:
    """When each action would run, given what actions cost.

    forward, input, weight: of an F, an I, a W; backward: of a B; None: as I and W together.
    forward_exchange, input_exchange, backward_exchange: what of an F, an I and a B is exchanges
    inside of layers, which the other pass of an overlapped pair hides; of a B, None: what its W
    does not hide of those of its I.
    overlap: share of its F and backward that an overlapped pair takes.
    latency: from the end of a message's transfer to its arrival.
    message: size of what a stage hands on; bandwidth: of each link; None: unlimited.
    gather, reduce: of an UNSHARD and a REDUCE_GRAD; optimizer: once, at the end.
    activation, keep: see `verify`.

    Raises ScheduleError when the schedule does not verify, ConfigError for costs that do not fit.
    """
    costs = _costs(
        forward=forward, input=input, weight=weight, backward=backward,
        forward_exchange=forward_exchange, input_exchange=input_exchange,
        backward_exchange=backward_exchange, overlap=overlap,
        latency=latency, message=message, bandwidth=bandwidth, gather=gather, reduce=reduce,
        optimizer=optimizer, activation=activation, keep=keep,
    )  # fmt: skip
    return _planning.simulate(schedule, costs, _options(channels, None, None, activation, keep))


def search(
    *,
    ranks: int,
    microbatches: int,
    stages_per_rank: Sequence[int] = (1, 2),
    placements: Sequence[str] = ("loop", "v"),
    forward: Cost = 1.0,
    input: Cost = 1.0,
    weight: Cost = 1.0,
    backward: Cost | None = None,
    forward_exchange: Cost = 0.0,
    input_exchange: Cost = 0.0,
    backward_exchange: Cost | None = None,
    latency: float = 0.0,
    message: Cost = 0.0,
    bandwidth: float | None = None,
    optimizer: float = 0.0,
    activation: Cost = 1.0,
    keep: float = 1.0,
    memory_max: float | None = None,
    seconds: float = 10.0,
    rounds: int | None = None,
    seed: int = 1,
) -> Found:
    """The fastest schedule that is found in some seconds, and what no schedule can beat.

    stages_per_rank, placements: what may be chosen; placements are "loop", "v" and "any".
    Costs are those of `simulate`, for all stages of a rank together; where one of them is a list by
    stage, all are of single stages.
    memory_max: of each rank's activations, in the unit of `activation`; None: unlimited.
    seconds, rounds: the search ends with the first of them.  The same rounds and seed give the same
    schedule on any machine.

    Raises ConfigError for sizes and costs that do not fit, and Error where no schedule has so
    little memory, which says what would do.
    """
    if unknown := [each for each in placements if each not in _PLACEMENTS]:
        raise ConfigError(
            f"placements has {unknown[0]!r}, must be some of {', '.join(_PLACEMENTS)}"
        )
    if (time := _arguments.number("seconds", seconds)) < 0 or time > _SECONDS_MAX:
        raise ValueError(f"seconds is {seconds}, must be from 0 to {_SECONDS_MAX}")
    costs = _costs(
        forward=forward, input=input, weight=weight, backward=backward,
        forward_exchange=forward_exchange, input_exchange=input_exchange,
        backward_exchange=backward_exchange, latency=latency,
        message=message, bandwidth=bandwidth, optimizer=optimizer, activation=activation, keep=keep,
    )  # fmt: skip
    return _planning.search(
        ranks=_arguments.integer("ranks", ranks),
        microbatches=_arguments.integer("microbatches", microbatches),
        stages_per_rank=[_arguments.integer("stages_per_rank", each) for each in stages_per_rank],
        placements=[_PLACEMENTS[each] for each in placements],
        costs=costs,
        memory_max=None if memory_max is None else _arguments.number("memory_max", memory_max),
        seconds=time,
        rounds=_arguments.optional_integer("rounds", rounds),
        seed=_arguments.integer("seed", seed),
    )


def render(
    what: Schedule | Simulation,
    path: str | os.PathLike[str] | None = None,
    *,
    format: Literal["svg", "html", "trace"] | None = None,
) -> str:
    """A drawing: "svg", "html" (one page with zoom) or "trace" (for chrome://tracing).

    path: where to write it, too; its suffix (.svg, .html, .json) is the format where none is given.
    Without either, the format is "svg".  A schedule is simulated first, at a unit for each action.

    Raises ScheduleError for a schedule that does not verify; ConfigError for another format, and
    for more actions than a browser opens in one page; Error when the file cannot be written, and
    then it is as before.
    """
    suffixes = {".svg": "svg", ".html": "html", ".json": "trace"}
    drawings = {
        "svg": Simulation.to_svg,
        "html": Simulation.to_html,
        "trace": Simulation.to_trace,
    }
    suffix = ".svg" if path is None else Path(path).suffix
    if format is None and suffix not in suffixes:
        raise ConfigError(f'path is "{path}", must end in .svg, .html or .json')
    wanted = format or suffixes[suffix]
    if wanted not in drawings:
        raise ConfigError(f'format is {wanted!r}, must be "svg", "html" or "trace"')
    text = drawings[wanted](what if isinstance(what, Simulation) else simulate(what))
    if path is not None:
        _planning.write_atomically(os.fspath(path), text)
    return text


def _costs(
    *,
    forward: Cost,
    input: Cost,
    weight: Cost,
    backward: Cost | None,
    forward_exchange: Cost,
    input_exchange: Cost,
    backward_exchange: Cost | None,
    latency: float,
    message: Cost,
    bandwidth: float | None,
    optimizer: float,
    activation: Cost,
    keep: float,
    overlap: float = 1.0,
    gather: Cost = 0.0,
    reduce: Cost = 0.0,
) -> _planning.Costs:
    cost, number = _arguments.cost, _arguments.number
    return _planning.Costs(
        forward=cost("forward", forward),
        input=cost("input", input),
        weight=cost("weight", weight),
        backward=None if backward is None else cost("backward", backward),
        forward_exchange=cost("forward_exchange", forward_exchange),
        input_exchange=cost("input_exchange", input_exchange),
        backward_exchange=None
        if backward_exchange is None
        else cost("backward_exchange", backward_exchange),
        overlap=number("overlap", overlap),
        latency=number("latency", latency),
        message=cost("message", message),
        bandwidth=None if bandwidth is None else number("bandwidth", bandwidth),
        gather=cost("gather", gather),
        reduce=cost("reduce", reduce),
        optimizer=number("optimizer", optimizer),
        activation=cost("activation", activation),
        keep=number("keep", keep),
    )


def _options(
    channels: str,
    activations_max: int | None,
    memory_max: float | None,
    activation: Cost,
    keep: float,
) -> _planning.Options:
    if channels not in _CHANNELS:
        raise ConfigError(f"channels is {channels!r}, must be one of {', '.join(_CHANNELS)}")
    return _planning.Options(
        _CHANNELS[channels],
        _arguments.optional_integer("activations_max", activations_max),
        None if memory_max is None else _arguments.number("memory_max", memory_max),
        _arguments.cost("activation", activation),
        _arguments.number("keep", keep),
    )


for _class in (Candidate, Diagnostic, Found, Plan, RankSimulation, Schedule, Simulation, Verdict):
    _class.__module__ = __name__  # Users find them there; help() and errors say so.
