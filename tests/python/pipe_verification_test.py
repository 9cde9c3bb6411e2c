"""penstock.pipe proves PipeSchedules, also those of users, and refuses by step and instruction."""

import pytest

from penstock import ScheduleError, pipe
from penstock.pipe.schedule import (
    BackwardPass,
    DataParallelSchedule,
    ForwardPass,
    InferenceSchedule,
    LoadMicroBatch,
    OptimizerStep,
    PipeInstruction,
    PipeSchedule,
    RecvActivation,
    RecvGrad,
    ReduceGrads,
    ReduceTiedGrads,
    SendActivation,
    SendGrad,
    TrainSchedule,
)
from penstock.schedule import Program, generate


class Listed(PipeSchedule):
    """Says the steps that it is given, stage by stage."""

    all_steps = ()

    def steps(self):
        return self.all_steps[self.stage_id]


def listed(*stages):
    return [
        type("Custom", (Listed,), {"all_steps": stages})(2, len(stages), stage)
        for stage in range(len(stages))
    ]


def codes(verdict):
    return [each.code for each in verdict.diagnostics]


@pytest.mark.parametrize("stages", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("micro_batches", [1, 2, 5, 12])
def test_the_shipped_schedules_verify(stages, micro_batches):
    for each in (
        TrainSchedule(micro_batches, stages, 0),
        TrainSchedule(micro_batches, stages, 0, version="later"),
        InferenceSchedule(micro_batches, stages, 0),
    ):
        verdict = pipe.verify(each)
        assert verdict, str(verdict)
    assert pipe.verify(DataParallelSchedule(micro_batches, 1, 0))


def test_a_train_schedule_is_1f1b():
    program = pipe.program(TrainSchedule(micro_batches=3, stages=2, stage_id=0))
    compute = [
        [cell for cell in row if "SEND" not in cell and "RECV" not in cell and "REDUCE" not in cell]
        for row in program.programs
    ]
    assert compute == [
        ["0F0", "0F1", "0B0", "0F2", "0B1", "0B2"],
        ["1F0", "1B0", "1F1", "1B1", "1F2", "1B2"],
    ]
    assert program.has_messages


@pytest.mark.parametrize("version", ["original", "later"])
def test_1f1b_is_a_train_schedule(version):
    """Instruction by instruction, from an order, and from the program of the instructions."""
    for stages, micro_batches in [(1, 1), (2, 3), (3, 2), (4, 8)]:
        train = TrainSchedule(micro_batches, stages, 0, version=version)
        order = generate("1f1b", ranks=stages, microbatches=max(stages, micro_batches))
        if micro_batches >= stages:
            back = pipe.from_program(order, version=version)
            assert pipe.to_text(back) == pipe.to_text(train)
        assert pipe.to_text(pipe.from_program(pipe.program(train), version=version)) == (
            pipe.to_text(train)
        )


def test_forward_only_is_an_inference_schedule():
    back = pipe.from_program(generate("forward_only", ranks=3, microbatches=4))
    assert pipe.to_text(back) == pipe.to_text(InferenceSchedule(4, 3, 0))


def test_a_program_of_instructions_is_a_pipe_schedule():
    back = pipe.from_program(generate("gpipe", ranks=2, microbatches=2))
    assert [(each.stage_id, each.stages, each.micro_batches) for each in back] == [
        (0, 2, 2),
        (1, 2, 2),
    ]
    assert [type(each) for each in next(iter(back[0]))] == [LoadMicroBatch, ForwardPass]
    assert back[0].num_pipe_buffers() == 2
    assert pipe.verify(back)
    assert pipe.to_text(back[1]) == pipe.to_text(back)  # The others are made from any.
    with pytest.raises(ScheduleError, match="is half of a backward"):
        pipe.from_program(generate("zb_h1", ranks=2, microbatches=2))
    with pytest.raises(ScheduleError, match=r"\[S030\]"):
        pipe.from_program(Program(["0F0 0B0 0F1 0B1", "1F0 1F1 1B0 1B1"]))
    with pytest.raises(ValueError, match="version is 'newest', must be"):
        pipe.from_program(generate("1f1b", ranks=2, microbatches=2), version="newest")


# Both microbatches forward, then both backward: a schedule of one's own.
FIRST = (
    [LoadMicroBatch(0), ForwardPass(0), SendActivation(0)],
    [LoadMicroBatch(1), ForwardPass(1), SendActivation(1)],
    [RecvGrad(0), BackwardPass(0)],
    [RecvGrad(1), BackwardPass(1), ReduceTiedGrads(), ReduceGrads(), OptimizerStep()],
)
LAST = (
    [RecvActivation(0), LoadMicroBatch(0), ForwardPass(0)],
    [RecvActivation(1), LoadMicroBatch(1), ForwardPass(1)],
    [BackwardPass(0), SendGrad(0)],
    [BackwardPass(1), SendGrad(1), ReduceTiedGrads(), ReduceGrads(), OptimizerStep()],
)


def test_a_custom_schedule_verifies_and_has_a_program():
    schedules = listed(FIRST, LAST)
    verdict = pipe.verify(schedules)
    assert verdict, str(verdict)
    assert pipe.verify(schedules[0])  # The other stage is made with the same arguments.
    assert pipe.program(schedules).programs[1] == [
        *("1RECV_F0", "1F0", "1RECV_F1", "1F1", "1B0", "1SEND_B0", "1B1", "1SEND_B1"),
        "1REDUCE_GRAD",
    ]
    assert pipe.to_text(schedules).startswith(
        "stage 0 buffers=2\n"
        "  step 0: LoadMicroBatch(buffer_id=0) ForwardPass(buffer_id=0) "
        "SendActivation(buffer_id=0)\n"
    )


def test_an_end_in_another_step_is_refused_with_step_stages_and_instructions():
    late = ([], *LAST)
    verdict = pipe.verify(listed((*FIRST, []), late))
    assert not verdict
    assert str(verdict.diagnostics[0]).startswith(
        "rank 0 step 0: SendActivation(buffer_id=0) waits for RecvActivation(buffer_id=0) of "
        "stage 1, which is in step 1 [S060]\n"
    )
    assert set(codes(verdict)) == {"S060"}
    assert (verdict.diagnostics[0].rank, verdict.diagnostics[0].step) == (0, 0)
    assert verdict.diagnostics[0].notes[-1].startswith("a barrier may stand between two steps")


def test_a_tied_reduction_is_a_rendezvous_of_the_stages_that_hold_it():
    untied = tuple([each for each in step if type(each) is not ReduceTiedGrads] for step in LAST)
    schedules = listed(FIRST, untied)
    assert codes(pipe.verify(schedules)) == ["S060"]
    assert pipe.verify(schedules, tied_stages=[0])
    assert pipe.verify(schedules, tied_stages=[])
    assert codes(pipe.verify(schedules, tied_stages=[0, 1])) == ["S060", "S069"]
    with pytest.raises(ScheduleError, match="tied_stages: 2 is no stage"):
        pipe.verify(schedules, tied_stages=[2])


def test_an_overwritten_buffer_is_refused():
    short = tuple(
        [type(each)(0) if isinstance(each, SendGrad | BackwardPass) else each for each in step]
        for step in LAST
    )
    assert "S065" in codes(pipe.verify(listed(FIRST, short)))


class LoudForward(ForwardPass):
    pass


class Checkpoint(PipeInstruction):
    pass


def test_a_subclass_of_an_instruction_runs_as_its_base():
    loud = ([LoadMicroBatch(0), LoudForward(0), SendActivation(0)], *FIRST[1:])
    assert pipe.verify(listed(loud, LAST))
    # Run by a handler, nobody knows what it does.
    assert not pipe.verify(listed(loud, LAST), handled=[LoudForward])


def test_an_instruction_that_nothing_handles_is_refused_by_name():
    odd = ([*FIRST[0], Checkpoint(every=3)], *FIRST[1:])
    with pytest.raises(
        ValueError, match=r"nothing handles Checkpoint\(every=3\): derive Checkpoint"
    ):
        pipe.verify(listed(odd, LAST))
    assert pipe.verify(listed(odd, LAST), handled=[Checkpoint])


def test_what_is_no_schedule_is_named():
    with pytest.raises(TypeError, match=r"schedule\[1\] is 'x', must be a PipeSchedule"):
        pipe.verify([TrainSchedule(1, 2, 0), "x"])
    with pytest.raises(
        ValueError, match=r"schedule\[1\] is of stage 0 of 2, must be of stage 1 of 2"
    ):
        pipe.verify([TrainSchedule(1, 2, 0), TrainSchedule(1, 2, 0)])
    with pytest.raises(ValueError, match=r"schedule\[1\] has 2 micro_batches, schedule\[0\] has 1"):
        pipe.verify([TrainSchedule(1, 2, 0), TrainSchedule(2, 2, 1)])
    with pytest.raises(ValueError, match="schedule is empty"):
        pipe.verify([])
    with pytest.raises(TypeError, match="a step holds 'ForwardPass', must hold instances"):
        pipe.verify(listed((["ForwardPass"],)))
    with pytest.raises(TypeError, match="buffer_id is '0' of type str, must be an integer"):
        pipe.verify(listed(([LoadMicroBatch("0")],)))


def test_a_schedule_with_arguments_of_its_own_is_given_for_all_stages():
    class Named(TrainSchedule):
        def __init__(self, micro_batches, stages, stage_id, label):
            super().__init__(micro_batches, stages, stage_id)

    with pytest.raises(TypeError, match=r"Named cannot be made for stage 0 .*: give a list"):
        pipe.verify(Named(2, 2, 0, "x"))
    assert pipe.verify([Named(2, 2, stage, "x") for stage in range(2)])


def test_a_number_of_buffers_that_is_none_is_named():
    class OddBuffers(InferenceSchedule):
        def num_pipe_buffers(self):
            return "2"

    with pytest.raises(TypeError, match=r"num_pipe_buffers\(\) is '2' of type str"):
        pipe.program(OddBuffers(1, 1, 0))


def test_a_schedule_that_loses_a_microbatch_has_no_program():
    with pytest.raises(ScheduleError, match="stage 0 step 0: BackwardPass"):
        pipe.program(listed(([BackwardPass(0)],)))
