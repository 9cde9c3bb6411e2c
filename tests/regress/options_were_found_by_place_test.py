"""A checkpoint gave each parameter group the options of the one that stood in its place.

A script that makes its groups in another order, weight decay first for example, trained on with the
other group's rates.  Options are found by the names of a group's parameters.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import ranks
import torch

import penstock
import penstock.checkpoint
from penstock.pipe import LayerSpec, PipelineModule

WORLD_SIZE = 2
STEP = {"train_micro_batch_size_per_gpu": 2}
OPTIONS = {
    "weight": {"lr": 0.5, "weight_decay": 0.25},
    "bias": {"lr": 0.125, "weight_decay": 0.0},
}


def place(name):
    return Path(os.environ["STORE"]).with_name(name)


def groups_of(module, order):
    """By what their parameters' names end with."""
    return [
        {
            "params": [each for name, each in module.named_parameters() if name.endswith(kinds)],
            **OPTIONS[kinds[0]],
        }
        for kinds in order
    ]


def two_layers():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))


def engine_of(stage, order, course=None, options=None):
    model = two_layers()
    groups = groups_of(model, order)
    for group in groups:
        group.update(options or {})
    return penstock.initialize(
        model=model,
        optimizer=torch.optim.AdamW(groups),
        lr_scheduler=course,
        config={**STEP, "zero_optimization": {"stage": stage}},
    )[0]


def pipeline_of(order, course=None, options=None):
    layers = [LayerSpec(torch.nn.Linear, 4, 4) for _ in range(4)]
    module = PipelineModule(layers, num_stages=2, loss_fn=torch.nn.functional.mse_loss)
    groups = groups_of(module, order)
    for group in groups:
        group.update(options or {})
    return penstock.initialize(
        model=module, optimizer=torch.optim.AdamW(groups), lr_scheduler=course, config=STEP
    )[0]


FORTH, BACK = [("weight",), ("bias",)], [("bias",), ("weight",)]
OTHER = {"lr": 1.0, "weight_decay": 1.0}  # What a checkpoint has to take the place of.


def options_of(engine):
    return [
        {key: group[key] for key in ("lr", "weight_decay")}
        for group in engine.optimizer.param_groups
    ]


def train(engine, steps=1):
    for _ in range(steps):
        if isinstance(engine.module, PipelineModule):
            engine.train_batch(iter([(torch.ones(2, 4), torch.zeros(2, 4))]))
        else:
            engine.backward(engine(torch.ones(2, 4)).square().mean())
            engine.step()


MAKERS = {
    **{
        f"zero-{stage}": (lambda *of, s=stage, **more: engine_of(s, *of, **more))
        for stage in range(4)
    },
    "pipeline": pipeline_of,
}


def check_groups_in_another_order(group):
    del group
    for name, make in MAKERS.items():
        make(FORTH).save_checkpoint(place(name))
        again = make(BACK, options=OTHER)
        again.load_checkpoint(place(name))
        assert options_of(again) == [OPTIONS["bias"], OPTIONS["weight"]], name
        train(again)


def halves(optimizer):
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)


def check_the_rates_of_a_scheduler_move_with_them(group):
    del group
    for name, make in MAKERS.items():
        first = make(FORTH, course=halves)
        train(first)
        first.save_checkpoint(place(f"course-{name}"))
        again = make(BACK, course=halves, options=OTHER)
        again.load_checkpoint(place(f"course-{name}"))
        train(first)
        train(again)
        assert again.get_lr() == first.get_lr()[::-1] == [0.03125, 0.125], name


def check_another_layout_goes_by_names(group):
    """Stage 0 has its groups in one order, stage 1 in the other."""
    engine = pipeline_of(FORTH if group.rank() == 0 else BACK)
    engine.save_checkpoint(place("mixed"))
    whole = engine_of(1, BACK, options=OTHER)
    whole.module.load_state_dict(two_layers().state_dict())
    layers = [LayerSpec(torch.nn.Linear, 4, 4) for _ in range(4)]
    module = PipelineModule(layers, num_stages=1, loss_fn=torch.nn.functional.mse_loss)
    groups = groups_of(module, BACK)
    for each in groups:
        each.update(OTHER)
    replicas = penstock.initialize(model=module, optimizer=torch.optim.AdamW(groups), config=STEP)[
        0
    ]
    replicas.load_checkpoint(place("mixed"))
    assert options_of(replicas) == [OPTIONS["bias"], OPTIONS["weight"]]


def check_what_cannot_be_matched_is_refused_by_name(group):
    del group
    engine_of(0, FORTH).save_checkpoint(place("refused"))
    one = engine_of(0, [("weight", "bias")], options=OTHER)
    with pytest.raises(penstock.Error, match=r"0\.weight and 0\.bias.*lr 0\.5 and 0\.125"):
        one.load_checkpoint(place("refused"))
    assert options_of(one) == [OTHER]
    one.load_checkpoint(place("refused"), load_optimizer_states=False)
    engine_of(0, [("weight",)]).save_checkpoint(place("part"))
    both = engine_of(0, FORTH, options=OTHER)
    with pytest.raises(penstock.Error, match=r"group 1, of 0\.bias, 1\.bias: .* in no group"):
        both.load_checkpoint(place("part"))
    assert options_of(both) == [OTHER, OTHER]


def check_groups_that_are_divided_otherwise(group):
    """Three groups of two, where options say that it makes no difference."""
    del group
    engine_of(1, FORTH).save_checkpoint(place("divided"))
    three = engine_of(1, [("bias",), ("weight",)], options=OTHER)
    model = two_layers()
    named = dict(model.named_parameters())
    optimizer = torch.optim.AdamW(
        [
            {"params": [named["1.weight"]], **OTHER},
            {"params": [named["0.bias"], named["1.bias"]], **OTHER},
            {"params": [named["0.weight"]], **OTHER},
        ]
    )
    three = penstock.initialize(
        model=model,
        optimizer=optimizer,
        config={**STEP, "zero_optimization": {"stage": 1}},
    )[0]
    three.load_checkpoint(place("divided"))
    weight, bias = OPTIONS["weight"], OPTIONS["bias"]
    assert options_of(three) == [weight, bias, weight]


def check_stages_and_modules(group):
    rank = group.rank()
    model = two_layers()
    optimizer = torch.optim.AdamW(groups_of(model, FORTH))
    penstock.checkpoint.save(place("plain"), model, optimizer)
    again = two_layers()
    groups = groups_of(again, BACK)
    optimizer = torch.optim.AdamW([{**each, **OTHER} for each in groups])
    penstock.checkpoint.load(place("plain"), again, optimizer)
    assert [each["lr"] for each in optimizer.param_groups] == [0.125, 0.5]
    # Replicas that save one parameter with two rates have not one to go on with.
    other = torch.optim.AdamW(model.parameters(), lr=0.5 + rank / 4)
    penstock.checkpoint.save(place("drifted"), model, other)
    with pytest.raises(
        penstock.Error, match=r"parameter 0\.weight was saved with lr 0\.5 and 0\.75"
    ):
        penstock.checkpoint.load(place("drifted"), again, optimizer)
    assert [each["lr"] for each in optimizer.param_groups] == [0.125, 0.5]


test_check = ranks.tests_of(__file__, WORLD_SIZE)

if __name__ == "__main__":
    ranks.main(globals())
