"""A script that gives a module other parameters, memory, types or gradients while it trains.

Each change either trains on, to the numbers of plain PyTorch with the same change, or is an error
that names the parameter: no step updates what the module no longer has.
"""

from __future__ import annotations

import copy

import pytest
import ranks
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import parameters_to_vector, parametrize, vector_to_parameters

import penstock
from penstock.pipe import PipelineModule

WORLD_SIZE, RATE = 2, 0.1


def model_of(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 6))


def config(stage, **more):
    return {
        "train_micro_batch_size_per_gpu": 4,
        "optimizer": {"type": "SGD", "params": {"lr": RATE}},
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
        **more,
    }


def engine_of(stage, model=None, **more):
    model = model_of() if model is None else model
    return penstock.initialize(model=model, config=config(stage, **more))[0]


def data(step):
    return torch.randn(WORLD_SIZE, 4, 6, generator=torch.Generator().manual_seed(step))


def values_of(module):
    with penstock.zero.GatheredParameters(module.parameters()):
        return [each.detach().clone() for each in module.parameters()]


class Doubled(nn.Module):
    def forward(self, x):
        return 2 * x


def other_values(module):
    return {name: torch.full_like(each, 0.05) for name, each in module.state_dict().items()}


def assign_data(module):
    for each in module.parameters():
        each.data = each.data * 0.5


def to_vector_and_back(module):
    vector_to_parameters(0.5 * parameters_to_vector(module.parameters()), module.parameters())


def load_by_assigning(module):
    module.load_state_dict(other_values(module), assign=True)


def replace_one(module):
    module[0].weight = nn.Parameter(torch.full((8, 6), 0.02))


def replace_a_module(module):
    module[2] = nn.Linear(8, 6)
    for each in module[2].parameters():
        nn.init.constant_(each, 0.04)


def empty_and_fill(module):
    module.to_empty(device="cpu")
    with torch.no_grad():
        for each in module.parameters():
            each.fill_(0.03)


def cast_and_back(module):
    module.to(torch.bfloat16)
    module.float()


def parametrized(module):
    parametrize.register_parametrization(module[2], "weight", Doubled(), unsafe=True)


def freeze(module):
    module[0].requires_grad_(False)


def channels_last_and_back(module):
    module.to(memory_format=torch.preserve_format)


# What trains on, as plain PyTorch does, from ZeRO 0 to 2.
TAKEN_OVER = [
    *(assign_data, to_vector_and_back, load_by_assigning, replace_one, replace_a_module),
    empty_and_fill,
    *(cast_and_back, parametrized, freeze, channels_last_and_back),
]


# They change gradients as well, which from ZeRO 1 on are not there.
OF_GRADIENTS_TOO = (parametrized, freeze, empty_and_fill, cast_and_back)


def new_module(module):
    module[2] = nn.Linear(8, 6, bias=False)
    module[2].weight = nn.Parameter(torch.zeros(1, 8))


def added(module):
    module.register_parameter("late", nn.Parameter(torch.zeros(3)))


def another_shape(module):
    module[2].bias = nn.Parameter(torch.zeros(1))


def data_of_another_shape(module):
    module[0].bias.data = torch.zeros(1)


# What does not: the word that names it.
REFUSED = [
    (lambda module: module.to(torch.bfloat16), "0.weight"),
    (lambda module: module.double(), "0.weight"),
    (lambda module: module[2].half(), "2.weight"),
    (new_module, "2.weight"),
    (added, "late"),
    (another_shape, "2.bias"),
    (data_of_another_shape, "0.bias"),
]


def step_of(engine, number, between=None):
    x = data(number)[dist.get_rank()].to(next(engine.module.parameters()).dtype)
    engine.backward(engine(x).float().square().mean())
    if between is not None:
        between(engine.module)
    engine.step()


class Plain:
    """The same training in one process, whose optimizer has what its module has."""

    def __init__(self):
        self.module = model_of()

    def step(self, number, between=None):
        module = self.module
        module.zero_grad()
        module(data(number).flatten(0, 1)).square().mean().backward()
        gradients = {name: each.grad for name, each in module.named_parameters()}
        if between is not None:
            between(module)
        with torch.no_grad():
            for name, each in module.named_parameters():
                if gradients.get(name) is not None:
                    each -= RATE * gradients[name]


def check_what_trains_on(group):
    for stage in range(3):
        for change in TAKEN_OVER:
            for place in ("before a forward", "before an update"):
                if place == "before an update" and change in OF_GRADIENTS_TOO:
                    continue
                engine, plain = engine_of(stage), Plain()
                for training in (lambda *a, e=engine: step_of(e, *a), plain.step):
                    module = plain.module if training == plain.step else engine.module
                    training(0)
                    if place == "before a forward":
                        change(module)
                        training(1)
                    else:
                        training(1, change)
                    training(2)
                pairs = zip(engine.module.parameters(), plain.module.parameters(), strict=True)
                for found, expected in pairs:
                    torch.testing.assert_close(
                        found, expected, msg=lambda m, c=change, s=stage: f"{c} ZeRO {s}: {m}"
                    )


def check_what_is_refused_by_name(group):
    for stage in range(3):
        for change, name in REFUSED:
            engine = engine_of(stage)
            step_of(engine, 0)
            change(engine.module)
            with pytest.raises(penstock.Error, match=f'"{name}"'):
                step_of(engine, 1)


def check_zero_3(group):
    for change in (
        lambda module: module.float(),
        lambda module: module.to("cpu"),
        lambda module: module.to(torch.float32),
        lambda module: module.requires_grad_(True),
        assign_data,
    ):
        engine, plain = engine_of(3), Plain()
        step_of(engine, 0)
        change(engine.module)
        step_of(engine, 1)
        plain.step(0)
        change(plain.module)
        plain.step(1)
        for found, expected in zip(
            values_of(engine.module), plain.module.parameters(), strict=True
        ):
            torch.testing.assert_close(found, expected)
    for change, name in (
        (lambda module: module.to(torch.bfloat16), "0.weight"),
        (replace_one, "0.weight"),
        (new_module, "2.weight"),
        (data_of_another_shape, "0.bias"),
    ):
        engine = engine_of(3)
        step_of(engine, 0)
        with pytest.raises(penstock.Error, match=f'"{name}"'):
            change(engine.module)
            step_of(engine, 1)


def check_gradients_and_groups(group):
    for stage in (1, 2):
        engine = engine_of(stage)

        def set_gradient(module):
            module[0].bias.grad = torch.zeros(8)

        with pytest.raises(penstock.Error, match=r'"0\.bias" was given a gradient after its sum'):
            step_of(engine, 0, set_gradient)
    engine = engine_of(0)
    before = values_of(engine.module)[1]

    def no_gradient(module):
        module[0].bias.grad = torch.zeros(8)

    step_of(engine, 0, no_gradient)
    assert torch.equal(values_of(engine.module)[1], before)
    for stage in range(4):
        engine = engine_of(stage)
        engine.optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(7))]})
        with pytest.raises(
            penstock.Error, match=r"param_groups\[1\] has a parameter of shape \(7,\)"
        ):
            step_of(engine, 0)


def check_two_engines(group):
    for stage in range(4):
        torch.manual_seed(0)
        trunk = nn.Linear(6, 6)
        first, second = (nn.Sequential(trunk, nn.Linear(6, 3)) for _ in range(2))
        one = engine_of(stage, first)
        if stage > 0:
            # Each rank finds it by itself; one that is slower may hear of it from another.
            kinds = (penstock.ConfigError, penstock.CommError)
            with pytest.raises(kinds, match=r'"0\.weight" is trained by another') as caught:
                engine_of(stage, second)
            found = [None] * WORLD_SIZE
            dist.all_gather_object(found, caught.type.__name__, group=group)
            assert "ConfigError" in found
            step_of(one, 0)  # The first one goes on.
            continue
        two = engine_of(stage, second)
        step_of(one, 0)
        step_of(two, 0)


def check_one_model_twice(group):
    for stage in range(4):
        model = model_of()
        former, engine = engine_of(stage, model), engine_of(stage, model)
        plain = Plain()
        for number in range(2):
            step_of(engine, number)
            plain.step(number)
        for found, expected in zip(values_of(model), plain.module.parameters(), strict=True):
            torch.testing.assert_close(found, expected)
        if stage > 0:
            with pytest.raises(penstock.Error, match=r'"0\.weight" is trained by another engine'):
                step_of(former, 2)
        del former, engine
        step_of(engine_of(stage, model), 2)


def check_pipeline_engines(group):
    def trained(stage, change):
        torch.manual_seed(0)
        layers = [nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6)]
        module = PipelineModule(layers, num_stages=1, loss_fn=nn.MSELoss())
        engine = penstock.initialize(model=module, config=config(stage))[0]
        for number in range(3):
            x = data(number)[dist.get_rank()]
            engine.train_batch(iter([(x, x)]))
            if number == 0:
                change(module)
        return values_of(module)

    def in_place(module):
        with torch.no_grad():
            for each in module.parameters():
                each.mul_(0.5)

    def by_assigning(module):
        halved = {name: 0.5 * each for name, each in module.state_dict().items()}
        module.load_state_dict(halved, assign=True)

    for stage in range(3):
        expected = trained(stage, in_place)
        for change in (assign_data, to_vector_and_back, by_assigning):
            for found, values in zip(trained(stage, change), expected, strict=True):
                torch.testing.assert_close(found, values)
        with pytest.raises(penstock.Error, match=r'"\S*weight"'):
            trained(stage, lambda module: module.to(torch.bfloat16))


def check_copies_are_as_they_were(group):
    engine = engine_of(2)
    twin = copy.deepcopy(engine.module)
    twin.to(torch.bfloat16)
    step_of(engine, 0)


test_changes = ranks.tests_of(__file__, WORLD_SIZE)

if __name__ == "__main__":
    ranks.main(globals())
