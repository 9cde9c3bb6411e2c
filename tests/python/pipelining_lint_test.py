"""penstock.lint: schedule objects, files, orders."""

import subprocess
import sys

import pytest
import torch.distributed.pipelining.schedules as theirs
from pipelining_actions_test import (
    LOOPED,
    SMALL,
    TheirStage,
    loop,
    parse,
    their_schedule,
    v_shape,
)

import penstock
from penstock import lint
from penstock.pipe.schedule import TrainSchedule
from penstock.pipelining import schedules as ours
from penstock.pipelining import stage as ours_stage
from penstock.pipelining.actions import _Action

STUCK = ["0F0 0B0 0F1 0B1", "1F0 1F1 1B0 1B1"]


@pytest.mark.parametrize(("name", "v", "m", "p"), SMALL)
def test_schedules_of_torch_are_what_their_ranks_run(name, v, m, p):
    report = lint(their_schedule(name, v, m, p))
    assert report
    assert report.schedule.has_messages
    assert (report.schedule.stages, report.schedule.microbatches) == (v * p, m)
    assert f"{name}(ranks={p}, stages={v * p}, microbatches={m}): no objections" in str(report)
    assert f"makespan {report.simulation.makespan:g}" in str(report)


class OurStage(ours_stage._PipelineStageBase):
    def __init__(self, index, stages, ranks):
        self.stage_index, self.num_stages = index, stages
        self.group_size, self.group_rank, self.group = ranks, 0, None


@pytest.mark.parametrize(("name", "v", "m", "p"), SMALL)
def test_schedules_of_penstock_are_linted_too(name, v, m, p):
    stages = v * p
    mine = range(0, stages, p) if name in LOOPED else (0, stages - 1)
    schedule = getattr(ours, name)([OurStage(s, stages, p) for s in mine], m)
    report = lint(schedule)
    assert report
    assert (report.schedule.ranks, report.schedule.stages) == (p, stages)


def test_the_order_that_torch_does_not_execute_is_not_blamed():
    report = lint(theirs.Schedule1F1B(TheirStage(0, 2, 2), 4))
    assert report
    assert "off by one on the last rank" in report.notes[0]
    assert report.schedule.programs[1][:2] == ["1F0", "1B0"]
    assert lint(theirs.ScheduleGPipe(TheirStage(0, 2, 2), 4)).notes == ()


@pytest.mark.skipif(
    not hasattr(theirs, "_defer_recv_ops"), reason="torch 2.13 is the first with it"
)
def test_deferred_receives_of_torch_are_found_out():
    """Where torch swaps two messages, and nobody would notice."""
    refused = []
    for name, v, m, p in SMALL:
        schedule = their_schedule(name, v, m, p)
        order = {r: [a for a in row if a] for r, row in schedule.pipeline_order.items()}
        place = loop(p) if name in LOOPED else v_shape(p)
        lowered = theirs._add_send_recv(order, place, v * p)
        schedule.pipeline_order_with_comms = theirs._defer_recv_ops(lowered, place)
        report = lint(schedule)
        if not report:
            refused.append(name)
            assert report.simulation is None
            assert "[S0" in str(report)
            with pytest.raises(penstock.ScheduleError):
                report.render()
    assert refused


class Own(theirs.PipelineScheduleMulti):
    """A user's schedule, which lacks a microbatch or waits for itself."""

    def __init__(self, rows, microbatches):
        super().__init__([TheirStage(0, 2, 2)], microbatches)
        self.pipeline_order = parse(rows, theirs._Action)


def test_schedules_of_ones_own_are_checked_for_their_sizes():
    assert lint(Own(["0F0 . 0B0", ". 1F0 1B0"], 1))
    report = lint(Own(["0F0 0B0", "1F0 1B0"], 2))
    assert not report
    assert "microbatch 1 runs nowhere" in str(report)


def test_every_objection_is_told():
    report = lint(parse(STUCK), activations_max=1)
    assert not report
    assert str(report).startswith("pipeline_order(ranks=2, stages=2, microbatches=2): ")
    assert len(report.verdict.diagnostics) >= 1
    assert report._repr_svg_() is None


def test_files_are_linted_and_drawn(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n")
    report = lint(path, backward=2, latency=0.5)
    assert report
    assert report.simulation.makespan == 10.0
    assert report._repr_svg_().startswith("<svg")
    page = report.render(tmp_path / "mine.html")
    assert (tmp_path / "mine.html").read_text(encoding="utf-8") == page
    assert lint(str(path)).schedule.programs == report.schedule.programs
    with pytest.raises(penstock.ConfigError):
        lint(tmp_path / "none.csv")


def test_other_forms():
    assert lint(penstock.schedule.generate("zbv", ranks=2, microbatches=4))
    assert lint(TrainSchedule(micro_batches=4, stages=2, stage_id=0)).schedule.stages == 2
    assert lint({0: [_Action.from_str("0F0"), None, _Action.from_str("0B0")]})
    with pytest.raises(TypeError, match="schedule is of type int, must be a schedule object"):
        lint(3)


def test_it_needs_no_torch():
    code = "import sys, penstock; penstock.lint; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
