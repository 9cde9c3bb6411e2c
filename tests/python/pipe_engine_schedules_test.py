"""Schedules of one's own in penstock.pipe's engine: classes, instructions, programs."""

from __future__ import annotations

import pytest
import ranks
import torch.distributed as dist
from pipe_models import (
    MICROBATCHES,
    batches,
    compare,
    engine_of,
    language_model,
    reference_of,
)

import penstock
from penstock.pipe import schedule as s
from penstock.pipe.schedule import ForwardPass, PipeInstruction, TrainSchedule

WORLD_SIZE = 2


class Reversed(TrainSchedule):
    """A PipeSchedule of one's own: GPipe, with all backwards from the last one to the first."""

    def num_pipe_buffers(self):
        return self.micro_batches

    def steps(self):
        count = self.micro_batches
        for clock in range(count + self.stages - 1):
            k = clock - self.stage_id
            step = []
            if self._valid_micro_batch(k - 1) and not self.is_last_stage:
                step.append(s.SendActivation(buffer_id=k - 1))
            if self._valid_micro_batch(k):
                if not self.is_first_stage:
                    step.append(s.RecvActivation(buffer_id=k))
                if self.is_first_stage or self.is_last_stage:
                    step.append(s.LoadMicroBatch(buffer_id=k))
                step.append(s.ForwardPass(buffer_id=k))
            yield step
        late = self.stages - 1 - self.stage_id
        for clock in range(count + self.stages):
            k = count - 1 - (clock - late)
            step = []
            if self._valid_micro_batch(k + 1) and not self.is_first_stage:
                step.append(s.SendGrad(buffer_id=k + 1))
            if self._valid_micro_batch(k):
                if not self.is_last_stage:
                    step.append(s.RecvGrad(buffer_id=k))
                step.append(s.BackwardPass(buffer_id=k))
            if clock == count + self.stages - 1:
                step += [s.ReduceTiedGrads(), s.ReduceGrads(), s.OptimizerStep()]
            yield step


class MyForward(ForwardPass):
    """An instruction of one's own, which runs as what it is derived from."""


class Derived(TrainSchedule):
    def steps(self):
        for step in super().steps():
            yield [
                MyForward(each.buffer_id) if type(each) is ForwardPass else each for each in step
            ]


class Wrong(Reversed):
    def steps(self):
        for step in super().steps():
            yield [each for each in step if type(each) is not s.RecvGrad]


class Unknown(Reversed):
    def steps(self):
        class Prefetch(s.PipeInstruction):
            pass

        yield [Prefetch()]
        yield from super().steps()


def check_a_schedule_of_ones_own(group):
    layers = language_model()
    engine = engine_of(layers, schedule=Reversed)
    compare(engine, reference_of(layers))
    compare(engine_of(layers, schedule=Derived), reference_of(layers), steps=2)


def check_a_wrong_schedule_is_refused_before_it_runs(group):
    for kind, error, words in [
        (Wrong, penstock.ScheduleError, "BackwardPass"),
        (Unknown, ValueError, "nothing handles Prefetch()"),
    ]:
        with pytest.raises(error) as caught:
            engine_of(language_model(), schedule=kind)
        assert words in str(caught.value), caught.value


class Note(PipeInstruction):
    """What penstock knows nothing of."""


class Noted(Derived):
    """1F1B, with notes before the first forward, between, and at the end."""

    def steps(self):
        yield [Note(text="begin")]
        for step in super().steps():
            yield step if step else [Note(text="idle")]
        yield [Note(text="end")]


def check_handlers_of_instructions(group):
    layers = language_model()
    noted = []

    def note(instruction, run):
        run()
        noted.append(instruction.text)

    def forward(instruction, run):
        noted.append(f"F{instruction.buffer_id}")
        run()

    engine = engine_of(layers, schedule=Noted, handlers={Note: note, MyForward: forward})
    compare(engine, reference_of(layers), steps=2)
    steps = [noted[: len(noted) // 2], noted[len(noted) // 2 :]]
    assert steps[0] == steps[1]
    if engine.is_first_stage():
        assert steps[0] == ["begin", "F0", "F1", "F2", "F0", "idle", "end"], steps[0]
    else:
        assert steps[0] == ["begin", "idle", "F0", "F1", "F0", "F1", "end"], steps[0]


def check_handlers_that_are_refused(group):
    for error, words, options in [
        (TypeError, "handlers has 3", {"handlers": {3: print}}),
        (ValueError, "SendGrad, which is a SendGrad", {"handlers": {s.SendGrad: print}}),
        (penstock.ConfigError, "a class of PipeSchedule", {"handlers": {Note: print}}),
        (ValueError, "nothing handles Note", {"schedule": Noted}),
        (TypeError, "schedule is 3, must be a name", {"schedule": 3}),
    ]:
        with pytest.raises((error, penstock.CommError)) as caught:
            engine_of(language_model(), **options)
        assert words in str(caught.value), caught.value


def check_a_handler_that_fails(group):
    def fails(instruction, run):
        raise KeyError("my handler")

    handlers = {Note: fails if dist.get_rank() == 1 else lambda instruction, run: None}
    engine = engine_of(language_model(), schedule=Noted, handlers=handlers)
    dist.barrier()
    with pytest.raises((KeyError, penstock.CommError), match="my handler"):
        engine.train_batch(batches(0, [5] * MICROBATCHES))


def check_programs_and_files(group):
    layers = language_model(blocks=7)
    program = penstock.schedule.Program(
        {0: "0F0 0F1 0F2 0F3 0B0 0B1 0B2 0B3", 1: "1F0 1B0 1F1 1B1 1F2 1B2 1F3 1B3"}
    )
    compare(engine_of(layers, schedule=program), reference_of(layers), steps=2)


test_check = ranks.tests_of(__file__, WORLD_SIZE)

if __name__ == "__main__":
    ranks.main(globals())
