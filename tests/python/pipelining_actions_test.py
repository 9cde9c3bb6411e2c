"""penstock.pipelining.actions: by the side of the torch that is installed."""

import itertools

import pytest
import torch.distributed.pipelining.schedules as theirs
from torch.distributed.pipelining.stage import _PipelineStageBase

import penstock
from penstock.pipelining import actions as ours
from penstock.pipelining.actions import (
    InvalidOrder,
    _Action,
    _ComputationType,
    load_order,
    to_order,
    to_schedule,
    torch_order,
)

# Stages per rank, microbatches, ranks.
TABLE = [
    *((2, 2, 2), (2, 4, 4), (2, 8, 2), (2, 8, 4), (2, 8, 8), (4, 4, 4), (4, 8, 4), (4, 8, 8)),
    *((4, 16, 4), (4, 32, 4), (4, 64, 4), (4, 16, 16), (4, 32, 32), (4, 128, 64)),
    *((3, 2, 2), (3, 8, 2), (3, 12, 4), (4, 6, 3), (4, 10, 5)),
]
LOOPED = ["ScheduleInterleaved1F1B", "ScheduleLoopedBFS", "ScheduleInterleavedZeroBubble"]
V_SHAPED = ["ScheduleZBVZeroBubble", "ScheduleDualPipeV"]
SMALL = [
    *((name, v, m, p) for name in LOOPED for v, m, p in [(1, 4, 2), (2, 4, 2), (2, 4, 4)]),
    *(
        (name, 2, m, p)
        for name in ["ScheduleZBVZeroBubble", "ScheduleDualPipeV"]
        for m, p in [(8, 2), (10, 4)]
    ),
]


class TheirStage(_PipelineStageBase):
    """As torch's own tests make one: an order needs no more."""

    def __init__(self, index, stages, ranks):
        self.stage_index, self.num_stages = index, stages
        self.group_size, self.group_rank, self.group = ranks, 0, None
        self.submod = None

    def _create_grad_recv_info(self, *_):
        return None

    _prepare_forward_infra = _prepare_backward_infra = _create_grad_recv_info


def their_schedule(name, stages_per_rank, microbatches, ranks):
    stages = stages_per_rank * ranks
    mine = range(0, stages, ranks) if name in LOOPED else (0, stages - 1)
    return getattr(theirs, name)([TheirStage(s, stages, ranks) for s in mine], microbatches)


def texts(order):
    """An order of either kind as text, without what is idle behind the last action."""
    rows = {r: [None if a is None else str(a) for a in row] for r, row in order.items()}
    for row in rows.values():
        while row and row[-1] is None:
            row.pop()
    return rows


def packed(row):
    return [action for action in row if action is not None]


def words(row):
    return list(map(str, row))


def parse(rows, kind=_Action):
    """Rows as "0F0 . 0B0"; a dot is an idle step."""
    return {
        rank: [None if cell == "." else kind.from_str(cell) for cell in row.split()]
        for rank, row in enumerate(rows)
    }


def loop(ranks):
    return lambda stage: stage % ranks


def v_shape(ranks):
    return lambda stage: min(stage, 2 * ranks - 1 - stage)


def test_types_are_those_of_torch():
    for each in theirs._ComputationType:
        mine = _ComputationType[each.name]
        assert (mine.value, str(mine), mine == each.value) == (each.value, str(each), True)
        assert getattr(ours, each.name) is mine
        assert _ComputationType.from_str(each.value) is mine
    assert len(_ComputationType) == len(theirs._ComputationType)
    for letter in "FIWB":
        assert getattr(ours, letter).name == getattr(theirs, letter).name
    assert ours.BACKWARD is ours.B is _ComputationType.BACKWARD
    assert ours.WEIGHT is ours.W is _ComputationType.WEIGHT
    with pytest.raises(ValueError):
        _ComputationType.from_str("X")


@pytest.mark.parametrize(
    "text",
    [
        *("1F0", "2I1", "0W3", "10B25", "1UNSHARD", "3RESHARD", "2REDUCE_GRAD", "2REDUCE_GRAD3"),
        *("0SEND_F1", "1RECV_F1", "2SEND_B2", "0RECV_B1", "(0F4;3B2)OVERLAP_F_B"),
    ],
)
def test_the_text_of_an_action_is_that_of_torch(text):
    action, theirs_ = _Action.from_str(text), theirs._Action.from_str(text)
    assert str(action) == repr(action) == f"{action}" == text == str(theirs_)
    assert action.is_compute_op == theirs_.is_compute_op
    assert action[:3] == (theirs_[0], _ComputationType(theirs_[1].value), theirs_[2])
    assert action == _Action.from_str(text)
    assert len({action, _Action.from_str(text), _Action(7, ours.F, 0)}) == 2
    assert _Action.from_str(f"  {text} ") == action


def test_an_overlapped_pair_holds_two_actions():
    pair = _Action.from_str("(0F4;3B2)OVERLAP_F_B")
    assert pair == _Action(
        -1, ours.OVERLAP_F_B, None, (_Action(0, ours.F, 4), _Action(3, ours.B, 2))
    )
    assert _Action(1, ours.F, 0).sub_actions is None


@pytest.mark.parametrize("text", ["   ", ""])
def test_an_empty_cell_is_no_action(text):
    assert _Action.from_str(text) is None


@pytest.mark.parametrize(
    "text",
    ["0F0junk", "1F", "F0", "0Q0", "-1F0", "0OVERLAP_F_B", "1UNSHARD2", "0F0;1B0", "(0F4;3B2)"],
)
def test_text_that_is_no_action_is_refused_with_its_column(text):
    with pytest.raises(penstock.ParseError, match="column") as refused:
        _Action.from_str(text)
    assert isinstance(refused.value, (RuntimeError, ValueError))


def test_orders_are_those_of_torch_slot_for_slot():
    names = [*LOOPED[:2], "ScheduleInterleavedZeroBubble"]
    for name, (v, m, p) in itertools.product(names, TABLE):
        their = their_schedule(name, v, m, p)
        mine = torch_order(name, ranks=p, stages_per_rank=v, microbatches=m)
        assert texts(mine) == texts(their.pipeline_order), (name, v, m, p)


def test_orders_validate():
    for name, (v, m, p) in itertools.product(LOOPED, TABLE[:-6]):
        order = torch_order(name, ranks=p, stages_per_rank=v, microbatches=m)
        placed = ours._validate_schedule(order, p, v * p, m)
        assert placed == {stage: stage % p for stage in range(v * p)}


@pytest.mark.parametrize(("name", "v", "m", "p"), SMALL)
def test_passes_are_those_of_torch(name, v, m, p):
    """Each by itself, and all in the order in which torch applies them.

    Those of torch empty the lists that they are given.
    """
    order = {r: packed(row) for r, row in their_schedule(name, v, m, p).pipeline_order.items()}
    mine = parse([" ".join(map(str, order[r])) for r in range(p)])
    place = loop(p) if name in LOOPED else v_shape(p)
    for rank in range(p):
        assert words(ours._merge_bw(mine[rank])) == words(theirs._merge_bw([*order[rank]]))
        for window in (1, 2, 3):
            if name == "ScheduleDualPipeV" and window == 1:
                continue  # A pair needs the weights of both its stages, which torch drops.
            expected = theirs._add_unshard_reshard([*order[rank]], window)
            assert words(ours._add_unshard_reshard(mine[rank], window)) == words(expected)
    their_program = theirs._add_send_recv({r: [*row] for r, row in order.items()}, place, v * p)
    program = ours._add_send_recv(mine, place, v * p)
    assert texts(program) == texts(their_program)
    if name != "ScheduleDualPipeV":  # Whose pairs torch does not simulate.
        expected = theirs._simulate_comms_compute(their_program, place, v * p)
        assert texts(ours._simulate_comms_compute(program, place, v * p)) == texts(expected)
    for rank in range(p):
        order[rank] = theirs._add_reduce_grad(theirs._add_unshard_reshard(order[rank]), m)
        mine[rank] = ours._add_reduce_grad(ours._add_unshard_reshard(mine[rank]), m)
    expected = theirs._add_send_recv(order, place, v * p)
    assert texts(ours._add_send_recv(mine, place, v * p)) == texts(expected)


def test_messages_of_a_small_program():
    order = parse(["0F0 0F1 . 0B0 . 0B1", ". 1F0 1B0 1F1 1B1 ."])
    program = ours._add_send_recv(order, lambda stage: stage, 2)
    assert " ".join(map(str, program[1])) == ("1RECV_F0 1RECV_F1 1F0 1B0 1SEND_B0 1F1 1B1 1SEND_B1")
    steps = ours._simulate_comms_compute(program, lambda stage: stage, 2)
    assert max(map(len, steps.values())) == 11


def test_a_compute_order_can_be_laid_out_in_steps():
    steps = ours._simulate_comms_compute(parse(["0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1"]), loop(2), 2)
    assert texts(steps) == texts(parse(["0F0 0F1 . 0B0 . 0B1", ". 1F0 1B0 1F1 1B1"]))


def test_steps_need_receives_that_come():
    """It verifies, since a RECV only posts; waited for, the two ranks wait for each other."""
    program = parse(
        [
            "0F0 0SEND_F0 3RECV_F0 0RECV_B0 3F0 3B0 3SEND_B0 0B0",
            "2RECV_B0 1RECV_F0 1F0 2F0 2SEND_F0 2B0 1B0 1SEND_B0",
        ]
    )
    assert penstock.schedule.verify(to_schedule(program))
    with pytest.raises(ValueError, match=r"rank 0 waits at 3RECV_F0 for 2SEND_F0 of rank 1"):
        ours._simulate_comms_compute(program, v_shape(2), 4)


@pytest.mark.parametrize(("name", "v", "m", "p"), SMALL)
def test_deferred_receives_verify_and_are_late(name, v, m, p):
    """Those of torch 2.13 do not always: they swap messages between two ranks."""
    place = loop(p) if name in LOOPED else v_shape(p)
    order = torch_order(name, ranks=p, stages_per_rank=v, microbatches=m)
    early = ours._add_send_recv(order, place, v * p)
    late = ours._defer_recv_ops(early, place)
    assert penstock.schedule.verify(to_schedule(late), channels="pairfifo")
    assert {r: sorted(map(str, row)) for r, row in late.items()} == {
        r: sorted(map(str, row)) for r, row in early.items()
    }
    assert total_lead(late) <= total_lead(early)


def total_lead(program):
    """How many actions lie between each RECV and the one that needs it, all together."""
    lead = 0
    for row in program.values():
        needs = {}
        for i, action in enumerate(row):
            kind, at = action.computation_type.value, (action.stage_index, action.microbatch_index)
            if kind.startswith("RECV"):
                needs[kind[-1], at] = i
            elif kind in "FBI":
                lead += i - needs.pop(("F" if kind == "F" else "B", at), i)
            for sub in action.sub_actions or ():
                at = (sub.stage_index, sub.microbatch_index)
                lead += i - needs.pop((sub.computation_type.value, at), i)
        assert not needs
    return lead


GRIDS = [
    (["0F0 0F1 . 0B0", ". 1F0 1B0 1F1 1B1 10F10"], [None, 0, 2, 7]),
    (["1F0 (0F4;3B2)OVERLAP_F_B", "0F0 ."], [None, 1]),
    ([" ".join(["0F0"] * 120), " ".join(["1SEND_F10"] * 118)], [None, 110]),
    ([" ".join(f"{r}F{m}" for m in range(12)) for r in range(12)], [None]),
]


@pytest.mark.parametrize(("rows", "errors"), GRIDS)
def test_the_grid_is_that_of_torch(rows, errors):
    for error in errors:
        expected = theirs._format_pipeline_order(parse(rows, theirs._Action), error)
        assert ours._format_pipeline_order(parse(rows), error) == expected


def test_the_grids_of_the_table_are_those_of_torch():
    for v, m, p in TABLE[:8]:
        order = torch_order("Interleaved1F1B", ranks=p, stages_per_rank=v, microbatches=m)
        their = their_schedule("ScheduleInterleaved1F1B", v, m, p).pipeline_order
        assert ours._format_pipeline_order(order) == theirs._format_pipeline_order(their)


def test_a_grid_may_have_fewer_steps_than_ranks():
    assert ours._format_pipeline_order({0: [], 1: []}) == "        Rank 0 Rank 1\n"
    assert ours._format_pipeline_order(parse([".", ".", "2F0"])) == (
        "        Rank 0 Rank 1 Rank 2\nStep 0:               2F0   \n"
    )


INVALID = {
    "one rank of two": ["0F0 0B0"],
    "no backward": ["0F0 0B0", "1F0"],
    "backward first": ["0F0 0B0", "1B0 1F0"],
    "weight first": ["0F0 0W0 0I0", "1F0 1B0"],
    "stage on two ranks": ["0F0 0B0", "1F0 1B0 0F0 0B0"],
    "twice": ["0F0 0F0 0B0", "1F0 1B0"],
    "forward only": ["0F0", "1F0"],
    "another microbatch": ["0F0 0B0 0F1 0B1", "1F0 1B0 1F1 1B1"],
    "stuck": ["0F0 0B0 2F0 2B0", "1F0 1B0"],
}


@pytest.mark.parametrize("rows", INVALID.values(), ids=INVALID)
def test_what_cannot_run_does_not_validate(rows):
    stages = 3 if "2F0" in rows[0] else 2
    with pytest.raises(AssertionError) as refused:
        ours._validate_schedule(parse(rows), 2, stages, 1)
    assert isinstance(refused.value, (InvalidOrder, ValueError))


def test_split_backwards_validate():
    order = parse(["0F0 0I0 0W0", "1F0 1B0"])
    assert ours._validate_schedule(order, 2, 2, 1) == {0: 0, 1: 1}


def test_every_objection_is_named():
    with pytest.raises(InvalidOrder) as refused:
        ours._validate_schedule(parse(["0B0 0F0", "1F0"]), 2, 2, 1)
    assert "[S0" in str(refused.value)
    assert "1 stage" not in refused.value.message
    assert "0B0 runs before 0F0" in str(refused.value)


def test_stages_must_be_where_stage_to_rank_has_them():
    order = parse(["0F0 0B0", "1F0 1B0"])
    with pytest.raises(
        InvalidOrder, match="rank 0 runs stage 0, which stage_to_rank has on rank 1"
    ):
        ours._add_send_recv(order, lambda stage: 1 - stage, 2)
    with pytest.raises(InvalidOrder, match="it has 2 stages, num_stages is 3"):
        ours._add_send_recv(order, lambda stage: stage, 3)
    with pytest.raises(InvalidOrder, match="ranks are 0, 2, must be 0 to 1"):
        ours._add_send_recv({0: order[0], 2: order[1]}, lambda stage: stage, 2)


def test_stages_that_lack_backwards_are_not_reduced():
    row = parse(["0F0 . 0F1 0B0 0B1 . 1B0"])[0]
    assert ours._add_reduce_grad(row, 2) == parse(["0F0 0F1 0B0 0B1 0REDUCE_GRAD 1B0"])[0]
    assert ours._add_reduce_grad([None], 2) == []


def test_a_window_of_stages_is_positive():
    with pytest.raises(ValueError, match="max_active_stages is 0"):
        ours._add_unshard_reshard([], 0)


def test_orders_are_schedules_and_files(tmp_path):
    order = parse(["0F0 0F1 . 0B0 . 0B1", ". 1F0 1B0 1F1 1B1 ."])
    schedule = to_schedule(order)
    assert (schedule.ranks, schedule.stages, schedule.microbatches) == (2, 2, 2)
    assert texts(to_order(schedule)) == texts(parse(["0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1"]))
    path = tmp_path / "order.csv"
    path.write_text("0F0,0F1,,0B0,,0B1\n,1F0,1B0,1F1,1B1,\n")
    assert load_order(path) == order
    path.write_text("0F0,0SEND_F0\n1RECV_F0,1F0\n")
    assert load_order(path, "compute_comms") == parse(["0F0 0SEND_F0", "1RECV_F0 1F0"])
    with pytest.raises(penstock.ParseError, match=r"csv:1:5: 0SEND_F0 in a compute_only file"):
        load_order(path)
    with pytest.raises(penstock.ConfigError, match='must be "compute_only" or "compute_comms"'):
        load_order(path, "comms")


def test_torch_has_no_order_of_that_name():
    with pytest.raises(penstock.ScheduleError):
        torch_order("hanayo", ranks=2, stages_per_rank=2, microbatches=4)
