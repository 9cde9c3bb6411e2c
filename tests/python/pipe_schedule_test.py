"""penstock.pipe.schedule is what scripts written for DeepSpeed's module expect."""

import numbers

import pytest

import penstock.pipe.schedule as schedule

SCHEDULES = {
    "train": schedule.TrainSchedule,
    "inference": schedule.InferenceSchedule,
    "dataparallel": schedule.DataParallelSchedule,
}


def make(name, micro_batches, stages, stage_id):
    if name == "train_later":
        return schedule.TrainSchedule(micro_batches, stages, stage_id, version="later")
    return SCHEDULES[name](micro_batches, stages, stage_id)


def spell(steps):
    return "; ".join(" ".join(map(repr, step)) for step in steps)


def test_steps_and_buffers_are_those_of_deepspeed(golden_lines):
    lines = golden_lines("deepspeed_steps.txt")
    assert len(lines) == 4 * 56
    for line in lines:
        head, _, steps = line.partition(" | ")
        name, micro_batches, stages, stage_id, buffers = head.split()
        each = make(name, int(micro_batches), int(stages), int(stage_id))
        assert spell(each) == steps, head
        assert each.num_pipe_buffers() == int(buffers), head


def test_one_stage_trains_and_steps_once():
    """Every other step goes forward, and only the last one reduces and steps."""
    steps = list(schedule.TrainSchedule(micro_batches=4, stages=1, stage_id=0))
    assert len(steps) == 8
    for number, step in enumerate(steps):
        if number % 2 == 0:
            assert [type(each) for each in step] == [
                schedule.LoadMicroBatch,
                schedule.ForwardPass,
            ]
        else:
            assert type(step[0]) == schedule.BackwardPass  # noqa: E721
            assert len(step) == (4 if number == 7 else 1)
    assert [type(each) for each in steps[-1][1:]] == [
        schedule.ReduceTiedGrads,
        schedule.ReduceGrads,
        schedule.OptimizerStep,
    ]


@pytest.mark.parametrize("micro_batches", [1, 3, 8, 10])
@pytest.mark.parametrize("stages", [1, 2, 3, 5])
def test_inference_sends_what_the_previous_step_made(micro_batches, stages):
    steps = list(schedule.InferenceSchedule(micro_batches, stages, stage_id=0))
    assert len(steps) == micro_batches + stages - 1
    for number, step in enumerate(steps):
        kinds = [type(each).__name__ for each in step]
        loads = ["LoadMicroBatch"] if number < micro_batches else []
        sends = ["SendActivation"] if stages > 1 and 1 <= number <= micro_batches else []
        forwards = ["ForwardPass"] if number < micro_batches else []
        assert kinds == loads + sends + forwards
    last = list(schedule.InferenceSchedule(micro_batches, stages, stage_id=stages - 1))
    assert {type(each) for step in last for each in step} <= {
        *(schedule.LoadMicroBatch, schedule.RecvActivation, schedule.ForwardPass),
    }


def test_every_buffer_id_is_one_of_the_stages():
    for stages in range(1, 5):
        for stage_id in range(stages):
            for make_schedule in SCHEDULES.values():
                each = make_schedule(micro_batches=6, stages=stages, stage_id=stage_id)
                for step in each:
                    for instruction in step:
                        if isinstance(instruction, schedule.BufferOpInstruction):
                            assert 0 <= instruction.buffer_id < each.num_pipe_buffers()


def test_iteration_restarts():
    each = schedule.TrainSchedule(micro_batches=3, stages=2, stage_id=1)
    assert iter(each) is each
    first = list(iter(each))
    assert spell(each) == spell(first)
    assert spell([next(iter(each))]) == spell(first[:1])
    assert spell([next(each)]) == spell(first[1:2])
    assert spell(each) == spell(first)
    with pytest.raises(StopIteration):
        next(each)


def test_next_needs_no_iter():
    each = schedule.DataParallelSchedule(micro_batches=1, stages=1, stage_id=0)
    assert len(next(each)) == 5


def test_attributes_and_properties():
    each = schedule.TrainSchedule(stage_id=1, stages=3, micro_batches=4)
    assert (each.micro_batches, each.stages, each.stage_id) == (4, 3, 1)
    assert (each.prev_stage, each.next_stage) == (0, 2)
    assert (each.stage, each.num_stages, each.num_micro_batches) == (1, 3, 4)
    assert not each.is_first_stage
    assert not each.is_last_stage
    assert schedule.TrainSchedule(4, 1, 0).is_first_stage
    assert schedule.TrainSchedule(4, 1, 0).is_last_stage
    assert [each._valid_micro_batch(i) for i in (-1, 0, 3, 4)] == [False, True, True, False]
    assert [each._valid_stage(i) for i in (-1, 0, 2, 3)] == [False, True, True, False]
    assert [each._buffer_idx(i) for i in range(4)] == [0, 1, 2, 0]
    for invalid in (-1, 4):
        with pytest.raises(AssertionError, match=f"micro_batch_id is {invalid}, must be 0 to 3"):
            each._buffer_idx(invalid)


def test_the_clock_is_that_of_the_formulas():
    for stages in range(1, 9):
        for stage_id in range(stages):
            each = schedule.TrainSchedule(micro_batches=24, stages=stages, stage_id=stage_id)
            for k in range(-3, 30):
                assert each._step_to_micro_batch(2 * k + stage_id) == (k, True)
                assert each._step_to_micro_batch(2 * k + 2 * stages - 1 - stage_id) == (k, False)
            for t in range(60):
                assert each._even_step_forward_id(t) == t // 2 - stage_id // 2
                assert each._odd_step_forward_id(t) == (t - 1) // 2 - stage_id // 2
                assert each._even_step_backward_id(t) == t // 2 - stages + (stage_id + 1) // 2
                assert each._odd_step_backward_id(t) == (t - 1) // 2 - stages + 1 + stage_id // 2
            assert isinstance(each._step_to_micro_batch(0)[1], bool)


def test_instructions_print_as_calls_and_have_their_keywords():
    assert repr(schedule.OptimizerStep()) == "OptimizerStep()"
    forward = schedule.ForwardPass(buffer_id=1)
    assert repr(forward) == "ForwardPass(buffer_id=1)"
    assert repr(schedule.ForwardPass(1)) == "ForwardPass(buffer_id=1)"
    assert (forward.name, forward.kwargs, forward.buffer_id) == (
        "ForwardPass",
        {"buffer_id": 1},
        1,
    )
    other = schedule.SendGrad(2, tag="x")
    assert (other.buffer_id, other.tag) == (2, "x")
    assert repr(other) == "SendGrad(buffer_id=2, tag='x')"
    assert repr(schedule.PipeInstruction(a=1, b=[2])) == "PipeInstruction(a=1, b=[2])"


def test_instructions_are_of_their_exact_type():
    buffered = [
        *(schedule.LoadMicroBatch, schedule.ForwardPass, schedule.BackwardPass),
        *(schedule.SendActivation, schedule.RecvActivation, schedule.SendGrad, schedule.RecvGrad),
    ]
    plain = [schedule.OptimizerStep, schedule.ReduceGrads, schedule.ReduceTiedGrads]
    for each in buffered:
        assert issubclass(each, schedule.BufferOpInstruction)
    for each in plain:
        assert issubclass(each, schedule.PipeInstruction)
        assert not issubclass(each, schedule.BufferOpInstruction)
    seen = {
        type(instruction)
        for stage_id in range(3)
        for step in schedule.TrainSchedule(4, 3, stage_id)
        for instruction in step
    }
    assert seen == {*buffered, *plain}


@pytest.mark.parametrize("make_schedule", SCHEDULES.values())
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 1, 0), "micro_batches is 0, must be 1 to 16777216"),
        ((-3, 1, 0), "micro_batches is -3, must be 1 to 16777216"),
        ((1, 0, 0), "stages is 0, must be 1 to 16777216"),
        ((1, 2, 2), "stage_id is 2, must be 0 to 1"),
        ((1, 2, -1), "stage_id is -1, must be 0 to 1"),
        ((10**12, 1, 0), "micro_batches is 1000000000000, must be of 32 bits"),
    ],
)
def test_values_out_of_range_are_named(make_schedule, arguments, message):
    with pytest.raises(ValueError, match=message):
        make_schedule(*arguments)


@pytest.mark.parametrize("make_schedule", SCHEDULES.values())
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("4", 1, 0), "micro_batches is '4' of type str, must be an integer"),
        ((4, 1.0, 0), "stages is 1.0 of type float, must be an integer"),
        ((4, 1, None), "stage_id is None of type NoneType, must be an integer"),
        ((True, 1, 0), "micro_batches is True of type bool, must be an integer"),
    ],
)
def test_types_other_than_integers_are_named(make_schedule, arguments, message):
    with pytest.raises(TypeError, match=message):
        make_schedule(*arguments)


def test_whatever_counts_as_an_integer_is_one():
    class Four:
        def __index__(self):
            return 4

    each = schedule.TrainSchedule(Four(), 1, 0)
    assert type(each.micro_batches) is int
    assert isinstance(each.micro_batches, numbers.Integral)


def test_the_version_is_one_of_two():
    with pytest.raises(ValueError, match="version is 'newest', must be"):
        schedule.TrainSchedule(1, 1, 0, version="newest")


def test_a_schedule_without_steps_is_abstract():
    with pytest.raises(TypeError, match="abstract"):
        schedule.PipeSchedule(1, 1, 0)


def test_the_number_of_buffers_of_a_subclass_is_used():
    class Roomy(schedule.TrainSchedule):
        def num_pipe_buffers(self):
            return 100

    buffers = [
        each.buffer_id
        for step in Roomy(8, 1, 0)
        for each in step
        if type(each) is schedule.ForwardPass
    ]
    assert buffers == list(range(8))
    assert schedule.PipeSchedule.num_pipe_buffers(Roomy(8, 1, 0)) == 8


def test_deepspeeds_own_path_is_the_same_module():
    import penstock.runtime.pipe.schedule as other
    from penstock.runtime.pipe import schedule as another

    assert other is schedule
    assert another is schedule
    assert other.TrainSchedule is schedule.TrainSchedule
