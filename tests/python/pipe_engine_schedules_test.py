"""Schedules of one's own in penstock.pipe's engine: classes, instructions, programs."""

from __future__ import annotations

import pytest
import ranks
from penstock.pipe import schedule as s
from penstock.pipe.schedule import ForwardPass, TrainSchedule
from pipe_models import compare, engine_of, language_model, reference_of

import penstock

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


def check_programs_and_files(group):
    layers = language_model(blocks=7)
    program = penstock.schedule.Program(
        {0: "0F0 0F1 0F2 0F3 0B0 0B1 0B2 0B3", 1: "1F0 1B0 1F1 1B1 1F2 1B2 1F3 1B3"}
    )
    compare(engine_of(layers, schedule=program), reference_of(layers), steps=2)


test_check = ranks.tests_of(__file__, WORLD_SIZE)

if __name__ == "__main__":
    ranks.main(globals())
