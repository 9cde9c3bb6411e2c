"""Actions, and the passes over them, as torch.distributed.pipelining.schedules has them.

    >>> _Action.from_str("2F0")
    2F0
    >>> order = {0: [_Action(0, F, 0), _Action(0, B, 0)], 1: [_Action(1, F, 0), _Action(1, B, 0)]}
    >>> _validate_schedule(order, 2, 2, 1)
    {0: 0, 1: 1}

An order has, for each rank, its actions, and None where it is idle.  What is said of orders here is
said by the C++ library: these are views of it, by torch's names.  `to_schedule` gives the Schedule
that `penstock.schedule` verifies, simulates and draws.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from penstock import _arguments, _planning
from penstock._compatibility import published_as
from penstock._planning import Schedule
from penstock.errors import ScheduleError

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
    "InvalidOrder",
    "Order",
    "W",
    "_Action",
    "_ComputationType",
    "_add_reduce_grad",
    "_add_send_recv",
    "_add_unshard_reshard",
    "_defer_recv_ops",
    "_format_pipeline_order",
    "_merge_bw",
    "_simulate_comms_compute",
    "_validate_schedule",
    "load_order",
    "to_order",
    "to_schedule",
    "torch_order",
]


class InvalidOrder(ScheduleError, AssertionError):  # noqa: N818  (It is an error of both kinds.)
    """An order that does not verify; torch raises AssertionError for some of them."""


class _ComputationType(str, Enum):
    """What an action does; the value is its word in the text of an action."""

    FORWARD = "F"
    BACKWARD_INPUT = "I"
    BACKWARD_WEIGHT = "W"
    UNSHARD = "UNSHARD"
    RESHARD = "RESHARD"
    SEND_F = "SEND_F"
    RECV_F = "RECV_F"
    SEND_B = "SEND_B"
    RECV_B = "RECV_B"
    FULL_BACKWARD = "B"
    OVERLAP_F_B = "OVERLAP_F_B"
    REDUCE_GRAD = "REDUCE_GRAD"
    BACKWARD = FULL_BACKWARD
    WEIGHT = BACKWARD_WEIGHT

    @staticmethod
    def from_str(action: str) -> _ComputationType:
        """The type of that word; a ValueError for any other."""
        return _ComputationType(action)


FORWARD = F = _ComputationType.FORWARD
BACKWARD_INPUT = I = _ComputationType.BACKWARD_INPUT  # noqa: E741
BACKWARD_WEIGHT = WEIGHT = W = _ComputationType.BACKWARD_WEIGHT
FULL_BACKWARD = BACKWARD = B = _ComputationType.FULL_BACKWARD
UNSHARD = _ComputationType.UNSHARD
RESHARD = _ComputationType.RESHARD
SEND_F = _ComputationType.SEND_F
RECV_F = _ComputationType.RECV_F
SEND_B = _ComputationType.SEND_B
RECV_B = _ComputationType.RECV_B
OVERLAP_F_B = _ComputationType.OVERLAP_F_B
REDUCE_GRAD = _ComputationType.REDUCE_GRAD

_COMPUTE = frozenset({F, I, W, B, OVERLAP_F_B})
_PAIR_STAGE = -1  # An overlapped pair is of two stages; torch gives it this number.


class _Action(NamedTuple):
    """One step of a rank: `_Action.from_str(str(a)) == a`.

    sub_actions: of OVERLAP_F_B, the F and the B that run together; its stage_index is -1.
    """

    stage_index: int
    computation_type: _ComputationType
    microbatch_index: int | None = None
    sub_actions: tuple[_Action, ...] | None = None

    def __str__(self) -> str:
        if self.sub_actions is not None:
            return f"({';'.join(map(str, self.sub_actions))}){self.computation_type.value}"
        number = "" if self.microbatch_index is None else self.microbatch_index
        return f"{self.stage_index}{self.computation_type.value}{number}"

    def __repr__(self) -> str:
        return str(self)

    @property
    def is_compute_op(self) -> bool:
        """Whether it occupies its rank: F, I, W, B, and the overlapped pair."""
        return self.computation_type in _COMPUTE

    @staticmethod
    def from_str(action_string: str) -> _Action | None:
        """The action of that text; None for an empty cell.

        Raises ParseError (also a RuntimeError and a ValueError) with the column, for `0F0junk` and
        `1F`, too.
        """
        text = action_string.strip()
        if not text:
            return None
        unit = [
            _Action(stage, _ComputationType(word), microbatch)
            for stage, word, microbatch in _planning.parse_unit(text)
        ]
        return unit[0] if len(unit) == 1 else _Action(_PAIR_STAGE, OVERLAP_F_B, None, tuple(unit))


Row = Iterable[_Action | None]
Order = Mapping[int, Row]
"""By rank, what it does at each step; None where it is idle."""


def to_schedule(order: Order, *, name: str = "pipeline_order") -> Schedule:
    """The order as the Schedule that penstock.schedule works on, without idle steps.

    Raises ScheduleError where the keys are not the ranks 0, 1, 2 ...
    """
    if set(order) != set(range(len(order))):
        given = ", ".join(map(str, order))
        raise InvalidOrder(f"{name}: ranks are {given or 'none'}, must be 0 to {len(order) - 1}")
    return _planning.parse_cells([_cells(order[rank]) for rank in range(len(order))], name)


def to_order(schedule: Schedule) -> dict[int, list[_Action | None]]:
    """The programs of a Schedule as an order, without idle steps."""
    return _order_of(schedule.programs)


def torch_order(
    name: str, *, ranks: int, stages_per_rank: int, microbatches: int
) -> dict[int, list[_Action | None]]:
    """What torch shows as the pipeline_order of its schedule of that name, idle steps included.

    Of Schedule1F1B it is the order that torch executes; what it shows is off by one.
    """
    integer = _arguments.integer
    return _order_of(
        _planning.torch_table(
            name,
            integer("ranks", ranks),
            integer("stages_per_rank", stages_per_rank),
            integer("microbatches", microbatches),
        )
    )


def load_order(
    path: str | os.PathLike[str], format: str = "compute_only"
) -> dict[int, list[_Action | None]]:
    """The order in a CSV file: a row per rank, an empty cell where it is idle.

    format: "compute_only", without SEND and RECV, or "compute_comms".
    Raises ParseError with line and column; ConfigError for a file that cannot be read.
    """
    return _order_of(_planning.load_table(os.fspath(path), format))


def _cells(row: Row) -> list[str]:
    return [str(action) for action in row if action is not None]


def _action_of(cell: str | None) -> _Action | None:
    return None if cell is None else _Action.from_str(cell)


def _order_of(table: Iterable[Iterable[str | None]]) -> dict[int, list[_Action | None]]:
    return {rank: [_action_of(cell) for cell in row] for rank, row in enumerate(table)}


def _actions_of(cells: Iterable[str]) -> list[_Action]:
    return [action for action in map(_Action.from_str, cells) if action is not None]


def _through(row_pass: Callable[[Schedule], Schedule], actions: Row) -> list[_Action]:
    """What a pass makes of one rank's actions."""
    cells = _cells(actions)
    if not cells:
        return []
    return _actions_of(row_pass(_planning.parse_cells([cells], "actions")).programs[0])


def _add_unshard_reshard(compute_actions: Row, max_active_stages: int = 3) -> list[_Action]:
    """One rank's actions with the weights of its next stages gathered, and dropped again.

    max_active_stages: how many stages have theirs at once.
    """
    window = _arguments.integer("max_active_stages", max_active_stages)
    if window < 1:
        raise ValueError(f"max_active_stages is {window}, must be at least 1")
    return _through(lambda row: _planning.add_unshard(row, window), compute_actions)


def _add_reduce_grad(actions: Row, n_microbatches: int) -> list[_Action | None]:
    """One rank's actions with a REDUCE_GRAD behind a stage's last B or W."""
    microbatches = _arguments.integer("n_microbatches", n_microbatches)

    def reduce(row: Schedule) -> Schedule:
        return _planning.add_reduce_gradients(_planning.with_sizes(row, row.stages, microbatches))

    return list(_through(reduce, actions))


def _merge_bw(compute_actions: Row) -> list[_Action]:
    """One rank's actions, each I with its W right behind it as one B."""
    return _through(_planning.fuse_backwards, compute_actions)


def _add_send_recv(
    compute_actions: Order, stage_to_rank: Callable[[int], int], num_stages: int
) -> dict[int, list[_Action]]:
    """The program of each rank with its messages, where torch puts them; idle steps are dropped.

    Raises InvalidOrder, an AssertionError, for an order that does not verify.
    """
    schedule = to_schedule(compute_actions)
    _check_placement(schedule, stage_to_rank, num_stages)
    table = [
        ["" if action is None else str(action) for action in compute_actions[rank]]
        for rank in range(schedule.ranks)
    ]
    programs = _planning.add_send_recv(table, schedule.name).programs
    return {rank: _actions_of(cells) for rank, cells in enumerate(programs)}


def _defer_recv_ops(
    actions: Order, stage_to_rank: Callable[[int], int]
) -> dict[int, list[_Action]]:
    """Each RECV as near to the action that needs it as the order of the messages allows.

    Any two ranks keep the order of the messages between them, so what comes out verifies when what
    goes in does; that of torch 2.13 swaps messages.
    """
    schedule = to_schedule(actions)
    _check_placement(schedule, stage_to_rank, schedule.stages)
    programs = _planning.defer_receives(schedule).programs
    return {rank: _actions_of(cells) for rank, cells in enumerate(programs)}


def _validate_schedule(
    actions: Order, pp_group_size: int, num_stages: int, num_microbatches: int
) -> dict[int, int]:
    """The rank of each stage, of an order that verifies.

    Raises InvalidOrder, an AssertionError, with every objection (docs/errors.md), for one that does
    not: the whole of it must run, not only each rank for itself.
    """
    if len(actions) != pp_group_size:
        raise InvalidOrder(
            f"pipeline_order: there are actions of {len(actions)} ranks, must be of {pp_group_size}"
        )
    schedule = _planning.with_sizes(
        to_schedule(actions),
        _arguments.integer("num_stages", num_stages),
        _arguments.integer("num_microbatches", num_microbatches),
    )
    return dict(enumerate(_placement(schedule)))


def _simulate_comms_compute(
    pipeline_order: Order, stage_to_rank: Callable[[int], int], num_stages: int
) -> dict[int, list[_Action | None]]:
    """The steps in which a program runs when each action takes one.

    A RECV waits for its SEND, and may share its step.
    Raises ScheduleError, a ValueError, for one that does not verify, or gets stuck in this way.
    """
    schedule = to_schedule(pipeline_order)
    _check_placement(schedule, stage_to_rank, num_stages)
    return _order_of(_planning.slots(schedule))


def _format_pipeline_order(
    pipeline_order: Mapping[int, Sequence[_Action | None]], error_step_number: int | None = None
) -> str:
    """The order as a grid: a row per step, a column per rank."""
    rows = [pipeline_order[rank] for rank in sorted(pipeline_order)]
    steps = max(map(len, rows), default=0)
    digits = len(str(max(0, steps - 1)))
    texts = [["" if action is None else str(action) for action in row] for row in rows]
    widths = [max([len("Step ") + digits, *map(len, row)]) for row in texts]

    def line(label: str, cells: Iterable[str]) -> str:
        return f"{label} " + " ".join(f"{c:<{w}}" for c, w in zip(cells, widths, strict=True))

    lines = [line(" " * (digits + 6), [f"Rank {rank}" for rank in range(len(rows))])]
    for step in range(steps):
        cells = [row[step] if step < len(row) else "" for row in texts]
        mark = " <-- ERROR HERE" if step == error_step_number else ""
        lines.append(line(f"Step {step:0{digits}}:", cells) + mark)
    return "\n".join(lines) + "\n"


def _placement(schedule: Schedule) -> list[int]:
    """The rank of each stage; InvalidOrder for a schedule that does not verify."""
    verdict = _planning.verify(
        schedule, _planning.Options(_planning.Channels.Tagged, None, None, 1.0, 1.0)
    )
    if verdict.diagnostics:
        raise InvalidOrder(
            f"{schedule.name}: {len(verdict.diagnostics)} objections", (str(verdict),)
        )
    return verdict.rank_of_stage


def _check_placement(
    schedule: Schedule, stage_to_rank: Callable[[int], int], num_stages: int
) -> None:
    """InvalidOrder where the schedule does not verify, or has its stages elsewhere."""
    ranks = _placement(schedule)
    if len(ranks) != num_stages:
        raise InvalidOrder(
            f"{schedule.name}: it has {len(ranks)} stages, num_stages is {num_stages}"
        )
    for stage, rank in enumerate(ranks):
        if stage_to_rank(stage) != rank:
            raise InvalidOrder(
                f"{schedule.name}: rank {rank} runs stage {stage}, which stage_to_rank has on "
                f"rank {stage_to_rank(stage)}"
            )


published_as("penstock.pipelining.actions", globals())
