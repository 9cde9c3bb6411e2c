"""penstock.schedule: generate, verify, simulate and draw from Python."""

import json
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import pytest

import penstock
from penstock import ConfigError, Error, ParseError, ScheduleError
from penstock.schedule import (
    Program,
    generate,
    load,
    names,
    parse,
    render,
    simulate,
    table,
    verify,
)

TWO = Program({0: "0F0 0F1 0B0 0B1", 1: "1F0 1B0 1F1 1B1"})
STUCK = Program(["0F0 0B0 0F1 0B1", "1F0 1F1 1B0 1B1"])


def test_orders_are_those_of_torch(golden_lines):
    """Every recorded one: by its class's name, and as the text that torch writes."""
    lines = golden_lines("torch_orders.txt")
    orders = refusals = 0
    while lines:
        name, ranks, stages_per_rank, microbatches, *refused = lines.pop(0).split()
        sizes = {
            "ranks": int(ranks),
            "stages_per_rank": int(stages_per_rank),
            "microbatches": int(microbatches),
        }
        if refused:
            with pytest.raises(ValueError):
                generate(name, **sizes)
            refusals += 1
            continue
        rows = [lines.pop(0) for _ in range(int(ranks))]
        schedule = generate(name, **sizes)
        assert schedule.to_csv() == "".join(f"{row}\n" for row in rows), (name, sizes)
        assert parse("\n".join(rows)).programs == schedule.programs
        orders += 1
    assert orders > 100
    assert refusals > 10


def test_programs_with_messages_are_those_of_torch(golden_lines):
    lines = golden_lines("torch_lowered.txt")
    programs = 0
    while lines:
        name, ranks, stages_per_rank, microbatches = lines.pop(0).split()
        rows = [lines.pop(0) for _ in range(int(ranks))]
        if name in ("ScheduleGPipe", "Schedule1F1B"):
            continue  # Their orders hold a REDUCE_GRAD there.
        order = generate(
            name,
            ranks=int(ranks),
            stages_per_rank=int(stages_per_rank),
            microbatches=int(microbatches),
        )
        lowered = order.with_messages("torch")
        assert lowered.to_csv().split("\n")[:-1] == rows, (name, ranks, microbatches)
        programs += 1
    assert programs > 10


def test_generate_knows_every_name_of_the_registry():
    for name in names():
        schedule = generate(name, ranks=2, microbatches=4)
        assert schedule.name == name
        assert (schedule.ranks, schedule.microbatches) == (2, 4)
        assert verify(schedule), name
        assert verify(schedule.with_messages()), name
        assert name in table()
    assert generate("ScheduleZBVZeroBubble", ranks=2, microbatches=4).stages == 4
    assert generate("gpipe", ranks=2, microbatches=2).purpose == "train"
    assert generate("forward_only", ranks=2, microbatches=2).purpose == "forward"


def test_refused_sizes_say_what_works():
    with pytest.raises(ScheduleError) as refusal:
        generate("interleaved_1f1b", ranks=2, microbatches=5)
    assert "must be a multiple of its 2 rounds" in refusal.value.message
    assert refusal.value.notes[0].startswith("nearest sizes that work: microbatches=4")
    assert str(refusal.value) == f"{refusal.value.message}\n  note: {refusal.value.notes[0]}"
    assert refusal.value.exit_code == 2
    with pytest.raises(ValueError, match='unknown schedule "1f2b"; did you mean "1f1b"'):
        generate("1f2b", ranks=2, microbatches=5)
    with pytest.raises(TypeError, match="ranks is '2' of type str, must be an integer"):
        generate("1f1b", ranks="2", microbatches=5)


def test_simulation_is_that_of_the_closed_form():
    for ranks, microbatches in [(2, 2), (4, 8), (8, 32)]:
        schedule = generate("1f1b", ranks=ranks, microbatches=microbatches)
        result = simulate(schedule, forward=1, backward=2)
        assert result.makespan == 3 * (microbatches + ranks - 1)
        assert [each.busy for each in result.ranks] == [3 * microbatches] * ranks
        assert [each.peak_activations for each in result.ranks] == [
            min(microbatches, ranks - rank) for rank in range(ranks)
        ]
        assert result.ranks[0].bubble == 1 - 3 * microbatches / result.makespan


def test_costs_are_by_stage_and_by_microbatch():
    assert simulate(TWO, forward=[1, 3], backward=[2, 4]).ranks[1].busy == 14
    assert simulate(TWO, forward=[[1, 2], [3, 3]], backward=0).ranks[0].busy == 3
    assert simulate(TWO, latency=0.5).makespan > simulate(TWO).makespan
    lowered = TWO.with_messages()
    assert simulate(lowered, channels="dirfifo", latency=0.5).makespan > 0
    with pytest.raises(ConfigError, match="forward: 3 stages, the schedule has 2"):
        simulate(TWO, forward=[1, 2, 3])
    with pytest.raises(TypeError, match=r"forward\[1\] is 'x' of type str, must be a number"):
        simulate(TWO, forward=[1, "x"])
    with pytest.raises(ValueError, match="latency is nan, must be finite"):
        simulate(TWO, latency=float("nan"))
    with pytest.raises(ConfigError, match="channels is 'fast', must be one of tagged, dirfifo"):
        simulate(TWO, channels="fast")


def test_costs_out_of_their_range_are_refused_and_none_at_all_are_drawn():
    with pytest.raises(ConfigError, match=r"forward: 1e\+308; expected 0, or a number from 1e-30"):
        simulate(TWO, forward=1e308).to_svg()
    free = simulate(TWO, forward=0, backward=0)
    assert [each.bubble for each in free.ranks] == [0, 0]
    ElementTree.fromstring(free.to_svg())


def test_objections_come_with_code_and_place():
    verdict = verify(STUCK)
    assert not verdict
    only = verdict.diagnostics[0]
    assert (only.code, only.kind, only.rank, only.step) == ("S030", "deadlock", 0, 1)
    assert "rank 1 step 1: 1F1 waits for 0F1 of rank 0" in str(verdict)
    assert str(verify(TWO)) == "no objections"
    assert verify(TWO).peak_activations == [2, 1]
    assert verify(TWO, activations_max=1).diagnostics[0].code == "S050"
    with pytest.raises(ScheduleError, match=r"\[S030\]"):
        simulate(STUCK)


def test_programs_are_written_in_python():
    def row(rank):
        for microbatch in range(3):
            yield f"{rank}F{microbatch}"
            yield f"{rank}B{microbatch}"

    schedule = Program(row, ranks=2, name="eager")
    assert repr(schedule) == "<Schedule eager(ranks=2, stages=2, microbatches=3)>"
    assert str(schedule).split("\n")[0] == "rank 0: 0F0 0B0 0F1 0B1 0F2 0B2"
    assert verify(schedule)
    assert Program([["0F0"], ["1F0"]]).purpose == "forward"
    assert parse(schedule.to_csv()).programs == schedule.programs
    with pytest.raises(TypeError, match="ranks is '2' of type str, must be an integer"):
        Program(row, ranks="2")
    with pytest.raises(ConfigError, match="ranks is required with a function"):
        Program(row)
    with pytest.raises(ConfigError, match="ranks are 0, 2, must be 0 to 1"):
        Program({0: "0F0", 2: "1F0"})
    with pytest.raises(ConfigError, match="ranks is 3, but there are programs for 1"):
        Program(["0F0"], ranks=3)
    with pytest.raises(TypeError, match="ranks is '1' of type str, must be an integer"):
        Program(["0F0"], ranks="1")
    with pytest.raises(ConfigError, match="programs is one text, must have one per rank"):
        Program("0F0 0B0")
    with pytest.raises(ParseError, match='program: rank 0 action 1: action "0F0,0F1" column 4'):
        Program([["0F0", "0F0,0F1"]])


def test_messages_are_added_to_what_verifies_and_has_none():
    lowered = TWO.with_messages()
    assert lowered.has_messages
    assert not TWO.has_messages
    assert "0SEND_F0" in lowered.programs[0]
    assert lowered.programs == TWO.with_messages("penstock").programs
    with pytest.raises(ScheduleError, match=r"\[S030\]"):
        STUCK.with_messages()
    with pytest.raises(ConfigError, match="microbatches=2\\) has messages already"):
        lowered.with_messages()
    with pytest.raises(ConfigError, match='how is "deepspeed", must be "penstock" or "torch"'):
        TWO.with_messages("deepspeed")


def test_texts_are_read_in_every_dialect(tmp_path):
    instructions = penstock.pipe.to_text(penstock.pipe.schedule.TrainSchedule(2, 2, 0))
    for text in (TWO.to_csv(), TWO.to_json(), instructions):
        schedule = parse(text)
        assert [
            [cell for cell in row if cell[1] in "FB"] for row in schedule.programs
        ] == TWO.programs
        path = tmp_path / "two"
        path.write_text(text)
        assert load(path).programs == schedule.programs
    assert parse(TWO.to_json()).name == "program"
    with pytest.raises(ParseError, match="mine:1:12: invalid literal"):
        parse('{"programs"; []}', name="mine")
    with pytest.raises(ParseError, match=r"mine:2:11: .*ForwardPas"):
        parse("stage 0 buffers=1\n  step 0: ForwardPas(buffer_id=0)\n", name="mine")


def test_files_and_texts(tmp_path):
    path = tmp_path / "two.csv"
    path.write_text(TWO.to_csv())
    assert load(path).programs == TWO.programs
    assert load(str(path)).name == str(path)
    assert json.loads(TWO.to_json())["programs"] == TWO.programs
    with pytest.raises(ParseError, match='mine:1:5: action "1F" column 3'):
        parse("0F0,1F", name="mine")
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        load(tmp_path / "none.csv")


def test_notebooks_show_pictures():
    ElementTree.fromstring(TWO._repr_svg_())
    assert STUCK._repr_svg_() is None
    simulation = simulate(TWO, forward=2)
    assert ElementTree.fromstring(simulation._repr_svg_()).tag.endswith("svg")
    assert repr(simulation).startswith("<Simulation of program(ranks=2")


def test_drawings_are_written_by_suffix(tmp_path):
    assert render(TWO) == TWO._repr_svg_()
    for suffix, opening in [(".svg", "<svg"), (".html", "<!"), (".json", "{")]:
        path = tmp_path / f"two{suffix}"
        assert path.write_text("old")
        assert render(TWO, path) == path.read_text(encoding="utf-8")
        assert path.read_text(encoding="utf-8").startswith(opening)
    json.loads(render(simulate(TWO), format="trace"))
    with pytest.raises(ConfigError, match=r"must end in .svg, .html or .json"):
        render(TWO, tmp_path / "two.png")
    with pytest.raises(ConfigError, match="format is 'png', must be"):
        render(TWO, format="png")
    assert not (tmp_path / "two.png").exists()
    with pytest.raises(ScheduleError, match=r"\[S030\]"):
        render(STUCK, tmp_path / "two.svg")
    assert (tmp_path / "two.svg").read_text(encoding="utf-8") == render(TWO)
    with pytest.raises(Error, match=r"none/two.svg.*No such file"):
        render(TWO, tmp_path / "none/two.svg")


def test_planning_needs_no_torch():
    script = (
        "import sys, penstock\n"
        "penstock.schedule.simulate(penstock.schedule.generate('zbv', ranks=2, microbatches=4))\n"
        "import penstock.pipe.schedule\n"
        "sys.exit('torch' in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_the_version_is_that_of_the_library():
    assert penstock.__version__.count(".") == 2


def test_help_names_what_users_import():
    for each in (penstock.schedule.Schedule, penstock.schedule.Simulation):
        assert each.__module__ == "penstock.schedule"
        assert each.__doc__
    for name in penstock.schedule.__all__:
        assert hasattr(penstock.schedule, name)


def test_programs_of_several_replicas_verify_and_simulate():
    """A microbatch passes a stage on one of its ranks, so that stages have no rank of their own."""
    text = '{"replicas": 2, "programs": [["0F0", "0B0"], ["0F1", "0B1"], %s]}'
    schedule = parse(text % '["1F0", "1B0", "1F1", "1B1"]')
    verdict = verify(schedule)
    assert verdict
    assert verdict.rank_of_stage == []
    assert verdict.peak_activations == [1, 1, 1]
    assert simulate(schedule).makespan == 9
    assert not verify(parse((text % '["1F0", "1B0", "1F1", "1B1"]').replace("2", "1", 1)))
