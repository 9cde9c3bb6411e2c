"""Constructors of schedules, without ranks: what they show, what they prove, what they refuse."""

from __future__ import annotations

import pytest

import penstock
from penstock import _torch
from penstock._engines.torch_schedules.base_schedule import proved
from penstock.pipelining import schedules
from penstock.pipelining.schedules import (
    B,
    F,
    I,
    PipelineScheduleMulti,
    PipelineScheduleSingle,
    W,
    _Action,
    _format_pipeline_order,
    _PipelineScheduleRuntime,
    get_schedule_class,
)
from penstock.pipelining.stage import _PipelineStageBase

# Stages per rank, microbatches, ranks.
SIZES = [
    *[(2, 2, 2), (2, 4, 4), (2, 8, 2), (2, 8, 4), (2, 8, 8), (4, 4, 4), (4, 8, 4), (4, 8, 8)],
    *[(4, 16, 4), (4, 32, 4), (4, 64, 4), (4, 16, 16), (4, 32, 32), (4, 128, 64), (3, 2, 2)],
    *[(3, 8, 2), (3, 12, 4), (4, 6, 3), (4, 10, 5)],
]
MULTI = ["Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble"]


class MockStage(_PipelineStageBase):
    """As existing tests have it: nothing but sizes."""

    def __init__(self, num_stages, group_size):
        self.num_stages = num_stages
        self.group_size = group_size
        self.group_rank = 0
        self.group = None
        self.stage_index_to_group_rank = None

    def _create_grad_recv_info(self, *args, **kwargs):
        return None

    def _prepare_forward_infra(self, n_microbatches):
        return None

    def _prepare_backward_infra(self, n_microbatches):
        return None


def mocks(stages_per_rank, ranks):
    return [MockStage(stages_per_rank * ranks, ranks) for _ in range(stages_per_rank)]


def objection(order, stages, microbatches):
    """What is wrong with a table, step by step: an action needs what earlier steps have done."""
    done = set()
    for step in range(max(map(len, order.values()))):
        row = [order[rank][step] if step < len(order[rank]) else None for rank in sorted(order)]
        for action in filter(None, row):
            stage, kind, m, _ = action
            if kind == F:
                needs = {(stage - 1, F, m)} if stage else set()
            elif kind == W:
                needs = {(stage, I, m)}
            else:
                needs = {(stage, F, m)}
                if stage < stages - 1 and not {(stage + 1, B, m), (stage + 1, I, m)} & done:
                    return f"step {step}: {action} before the backward of the next stage"
            if not needs <= done:
                return f"step {step}: {action} before {needs - done}"
            if (stage, kind, m) in done:
                return f"step {step}: {action} twice"
        done |= {action[:3] for action in row if action is not None}
    forwards = {(s, F, m) for s in range(stages) for m in range(microbatches)}
    missing = forwards - done
    backwards = {(s, m) for s, kind, m in done if kind == B} | {
        (s, m) for s, kind, m in done if kind == W
    }
    return missing or {(s, m) for s, _, m in forwards} - backwards or None


@pytest.mark.parametrize("name", MULTI)
def test_orders_of_the_table_hold_step_by_step(name):
    for stages_per_rank, microbatches, ranks in SIZES:
        schedule = get_schedule_class(name)(mocks(stages_per_rank, ranks), microbatches)
        order = schedule.pipeline_order
        assert list(order) == list(range(ranks))
        if name == "InterleavedZeroBubble":  # Whose table in torch lets Is run too early.
            continue
        assert len({len(row) for row in order.values()}) <= ranks
        assert objection(order, stages_per_rank * ranks, microbatches) is None
        text = _format_pipeline_order(order)
        assert "Rank 0" in text and "ERROR" not in text


@pytest.mark.parametrize("name", ["GPipe", "1F1B", "ZBVZeroBubble", "DualPipeV"])
def test_every_constructor_takes_mock_stages(name):
    kind = get_schedule_class(name)
    single = issubclass(kind, PipelineScheduleSingle)
    stages = mocks(1 if single else 2, 4)
    schedule = kind(stages[0] if single else stages, 8)
    assert sum(len(row) for row in schedule.pipeline_order.values()) > 0
    assert stages[0].stage_index_to_group_rank[3] == 3


def test_names_of_classes():
    assert get_schedule_class("1f1b") is schedules.Schedule1F1B
    assert get_schedule_class("ScheduleGPipe") is schedules.ScheduleGPipe
    assert get_schedule_class("PipelineScheduleMulti") is PipelineScheduleMulti
    with pytest.raises(ValueError, match="must be one of 1F1B, DualPipeV, GPipe"):
        get_schedule_class("GPip")


@pytest.mark.parametrize(
    ("kind", "stages_per_rank", "microbatches", "words"),
    [
        ("ZBVZeroBubble", 3, 8, "stages"),
        ("DualPipeV", 2, 4, "microbatches"),
        ("Interleaved1F1B", 2, 9, "microbatches"),
    ],
)
def test_sizes_that_do_not_fit(kind, stages_per_rank, microbatches, words):
    with pytest.raises(ValueError, match=words):
        get_schedule_class(kind)(mocks(stages_per_rank, 4), microbatches)


class Own(PipelineScheduleMulti):
    """A program of one's own, that of its argument."""

    def __init__(self, rows):
        super().__init__(mocks(1, 2), 2, loss_fn=lambda output, target: output)
        self.pipeline_order = {rank: list(map(_Action.from_str, row)) for rank, row in rows.items()}


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ({0: ["0F0", "0F1", "0B0"], 1: ["1F0", "1B0", "1F1", "1B1"]}, "0B1"),
        ({0: ["0F0", "0B0", "0F1", "0B1"], 1: ["1B0", "1F0", "1F1", "1B1"]}, "1B0"),
        ({0: ["0F0", "0B0"], 1: ["1F0", "1B0"]}, "1 microbatches, must have 2"),
        ({0: ["0F0", "0F1", "0B0", "0B1"]}, "1 ranks, must have 2"),
    ],
)
def test_programs_that_cannot_run_are_refused(rows, words):
    with pytest.raises(penstock.ScheduleError, match=words):
        proved(Own(rows)._program())


def test_a_file_that_would_hang_is_refused_as_it_is_loaded(tmp_path):
    path = tmp_path / "hangs.csv"
    path.write_text(
        "0F0,0SEND_F0,0RECV_B0,0B0,0REDUCE_GRAD,\n1F0,1RECV_F0,1B0,1SEND_B0,1REDUCE_GRAD\n"
    )
    schedule = _PipelineScheduleRuntime(mocks(1, 2), 1)
    with pytest.raises(penstock.ScheduleError, match="1RECV_F0"):
        schedule._load_csv(path, format="compute_comms")


def test_what_functions_cannot_stand_in_for():
    schedule = _PipelineScheduleRuntime(mocks(1, 2), 1)
    with pytest.raises(ValueError, match="must be one of FORWARD, FULL_BACKWARD"):
        schedule.register_custom_function(schedules.SEND_F, lambda action, context: None)


def test_a_torch_that_it_was_not_built_for():
    for function in (_torch.check, _torch.load):
        with pytest.raises(ImportError, match=r"built for torch 2\.1\.0, and this is torch"):
            function("2.1.0")
    with pytest.raises(ImportError, match="plans, and cannot run"):
        _torch.load("")
