"""Traced models on two ranks: loss and gradients are the unsplit model's, at every step."""

from __future__ import annotations

import ranks
import torch
import torch.distributed as dist
from traced_models import CPU, PLACEMENTS, ExampleCode, MultiMLP, Traced

from penstock.pipelining import SplitPoint, pipeline
from penstock.pipelining.schedules import get_schedule_class

WORLD_SIZE = 2


def check_the_reference_workload_by_tracer(group):
    """With a split spec, and with pipe_split() in the model.

    In doubles: where a ReLU's input is nothing but rounding, gradients of floats differ by its row.
    """
    f64 = torch.float64
    for spec in ({"layers.2": SplitPoint.BEGINNING}, None):
        torch.manual_seed(0)
        model = MultiMLP(width=512, n_layers=2 if spec is None else 4, split=spec is None)
        model.double()
        pipe = pipeline(model, (torch.randn(64, 512, dtype=f64),), split_spec=spec)
        traced = Traced(group, "1F1B", pipe, model, torch.nn.MSELoss(reduction="sum"))
        for optimizer in traced.optimizers:
            optimizer.param_groups[0]["lr"] = 1e-5
        for _ in ranks.cases(range(20), quick=5):
            given, target = torch.randn(2, 256, 512, dtype=f64)
            traced.check_step((given,), {}, target)


def check_keywords_and_tied_parameters(group):
    """A skip, a keyword tensor and a parameter of two stages, in uneven microbatches."""
    for name in PLACEMENTS:
        if name == "1F1B":
            continue
        torch.manual_seed(0)
        model = ExampleCode()
        x = torch.randn(10, 16)
        pipe = pipeline(model, (x[:3],), {"y": x[:3], "scale": 0.5})
        traced = Traced(group, name, pipe, model, torch.nn.MSELoss(reduction="sum"))
        for rows in (10, 8):
            x = torch.randn(rows, 16)
            traced.check_step((x,), {"y": x + 1, "scale": 0.5}, torch.randn(rows, 16))


def check_modes_are_those_of_the_modules(group):
    """eval() of the stage's module turns dropout off, train() on."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 4))
    pipe = pipeline(model, (torch.randn(4, 4),), split_spec={"2": SplitPoint.BEGINNING})
    rank = dist.get_rank(group)
    schedule = get_schedule_class("GPipe")(pipe.build_stage(rank, CPU, group), 2)
    x = torch.randn(8, 4)
    expected = model.eval()(x)
    for training in (False, True):
        pipe.get_stage_module(rank).train(training)
        output = schedule.eval(*([x] if rank == 0 else []))
        if rank == 1:
            assert torch.allclose(output, expected) is not training


test_check = ranks.tests_of(__file__, WORLD_SIZE)
test_check_all = ranks.tests_of(__file__, WORLD_SIZE, is_long=True)

if __name__ == "__main__":
    ranks.main(globals())
