"""Calls for all ranks that rank 0 makes alone: both are told which, long before the timeout."""

from __future__ import annotations

import tempfile
import time
from datetime import timedelta

import pytest
import ranks
import torch
import torch.distributed as dist

import penstock
from penstock.errors import CommError, Error
from penstock.pipe import LayerSpec, PipelineModule
from penstock.utils import safe_get_full_grad

WORLD_SIZE = 2
SOON_S = 20  # Timeouts are 30 s.


def told(action):
    """What a rank is told that makes such a call."""
    start = time.monotonic()
    with pytest.raises(Error) as caught:
        action()
    assert time.monotonic() - start < SOON_S
    return str(caught.value)


def expect_told(group, first, second, of_first, of_second):
    """Rank 0 calls `first`, rank 1 `second`."""
    text = told(of_first if dist.get_rank(group) == 0 else of_second)
    both = f"rank 0 is in {first}(), rank 1 is in {second}(): both are calls for all ranks"
    assert both in text, text


def engine_of(stage):
    model = torch.nn.Linear(6, 6)
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "optimizer": {"type": "AdamW"},
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
    }
    return penstock.initialize(model=model, config=config)[0]


def train(engine, steps=1):
    for _ in range(steps):
        engine.backward(engine(torch.ones(2, 6)).square().mean())
        engine.step()


def gather(engine):
    with penstock.zero.GatheredParameters(engine.module.parameters()):
        pass


CALLS_OF_AN_ENGINE = [
    (0, "save_checkpoint", lambda engine: engine.save_checkpoint(tempfile.mkdtemp())),
    (3, "save_16bit_model", lambda engine: engine.save_16bit_model(tempfile.mkdtemp())),
    (3, "GatheredParameters", gather),
    (1, "load_checkpoint", lambda engine: engine.load_checkpoint(tempfile.mkdtemp())),
    (3, "save_checkpoint", lambda engine: engine.save_checkpoint(tempfile.mkdtemp())),
    (3, "module_state_dict", lambda engine: engine.module_state_dict()),
    (3, "load_module_state_dict", lambda engine: engine.load_module_state_dict({})),
    (2, "safe_get_full_grad", lambda engine: safe_get_full_grad(engine.module.weight)),
]


def check_calls_of_an_engine(group):
    for stage, name, call in ranks.cases(CALLS_OF_AN_ENGINE, quick=3):
        engine = engine_of(stage)
        train(engine)
        trains = "forward" if stage == 3 else "backward"
        expect_told(
            group, name, trains, lambda e=engine, c=call: c(e), lambda e=engine: train(e, steps=2)
        )


def pipeline_engine():
    model = PipelineModule(
        [LayerSpec(torch.nn.Linear, 4, 4), LayerSpec(torch.nn.Linear, 4, 4)],
        num_stages=2,
        loss_fn=torch.nn.MSELoss(),
    )
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 2,
        "optimizer": {"type": "SGD"},
    }
    return penstock.initialize(model=model, config=config)[0]


def batches():
    while True:
        yield torch.ones(2, 4), torch.zeros(2, 4)


def check_an_evaluation_of_one_stage(group):
    engine = pipeline_engine()
    engine.train_batch(batches())
    expect_told(
        group,
        "eval_batch",
        "train_batch",
        lambda: engine.eval_batch(batches()),
        lambda: engine.train_batch(batches()),
    )


def schedule_over(group):
    rank = dist.get_rank(group)
    stage = penstock.pipelining.PipelineStage(
        torch.nn.Linear(4, 4), rank, 2, torch.device("cpu"), group=group
    )
    return penstock.pipelining.Schedule1F1B(stage, 2, loss_fn=torch.nn.MSELoss())


def step(schedule, call="step"):
    first = schedule.rank == 0
    return getattr(schedule, call)(
        *([torch.ones(4, 4)] if first else []), **({} if first else {"target": torch.zeros(4, 4)})
    )


def check_activations_of_an_evaluation_are_not_trained_on(group):
    """The first stage waits for nobody there: its step() would be one ahead for ever."""
    schedule = schedule_over(group)
    step(schedule)
    text = told(
        lambda: (step(schedule, "eval"), step(schedule)) if schedule.rank == 0 else step(schedule)
    )
    assert "rank 0 is in schedule.eval(), rank 1 is in schedule.step(): both are calls" in text


def check_ranks_that_meet_in_different_calls(group):
    schedule = schedule_over(group)
    model = torch.nn.Linear(2, 2)
    expect_told(
        group,
        "schedule.step",
        "penstock.checkpoint.save",
        lambda: step(schedule),
        lambda: penstock.checkpoint.save(tempfile.mkdtemp(), model, group=group),
    )


def check_a_rank_that_is_in_no_call(group):
    """Nothing is wrong before the timeout: it may still come."""
    short = dist.new_group(timeout=timedelta(seconds=2))
    schedule = schedule_over(short)
    step(schedule)
    if schedule.rank == 0:
        text = told(lambda: step(schedule))
        last = "rank 0 is in schedule.step(), rank 1 is in no call since schedule.step()"
        assert last in text, text
    dist.barrier(group)  # Rank 1 has its connections until then.


def check_absent_ranks_of_a_meeting(group):
    short = dist.new_group(timeout=timedelta(seconds=2))
    schedule = schedule_over(short)
    step(schedule)
    if schedule.rank == 0:
        model = torch.nn.Linear(2, 2)
        text = told(lambda: penstock.checkpoint.save(tempfile.mkdtemp(), model, group=short))
        assert "to come to penstock.checkpoint.save(), which is a call for all ranks" in text, text
    else:
        with pytest.raises(CommError) as caught:
            step(schedule)
        # Both wait for two seconds: whose end first, all hear from.
        where = "rank 0 is in penstock.checkpoint.save(), rank 1 is in schedule.step()"
        other = "to come to penstock.checkpoint.save(), which is a call for all ranks"
        assert where in str(caught.value) or other in str(caught.value), caught.value


test_check = ranks.tests_of(__file__, WORLD_SIZE)

if __name__ == "__main__":
    ranks.main(globals())
