"""Every optimizer of torch over replicas: weights of plain torch, or a refusal that names it."""

from __future__ import annotations

import tempfile

import pytest
import ranks
import torch
import torch.distributed as dist
import zero_models

import penstock
from penstock.errors import ConfigError

WORLD_SIZE, STEPS = 2, 3
OPTIONS = {
    "Adagrad": {"initial_accumulator_value": 0.1},
    "Adam": {"amsgrad": True},
    "RMSprop": {"centered": True, "momentum": 0.9},
    "SGD": {"momentum": 0.9, "nesterov": True},
}
REFUSED = {"Adafactor", "LBFGS", "Muon", "SparseAdam"}
KINDS = sorted(
    name
    for name, each in vars(torch.optim).items()
    if isinstance(each, type)
    and issubclass(each, torch.optim.Optimizer)
    and each is not torch.optim.Optimizer
)


def model_of():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 70), torch.nn.Tanh(), torch.nn.Linear(70, 6))


def make(kind, model):
    parameters = [each for each in model.parameters() if each.dim() == 2 or kind != "Muon"]
    return getattr(torch.optim, kind)(parameters, lr=0.02, **OPTIONS.get(kind, {}))


def engine_of(kind, stage, model, optimizer=None):
    config = zero_models.config(stage)
    del config["optimizer"]
    optimizer = make(kind, model) if optimizer is None else optimizer
    return penstock.initialize(model=model, config=config, optimizer=optimizer)[0]


def weights(engine):
    with penstock.zero.GatheredParameters(engine.module.parameters()):
        return [each.detach().clone() for each in engine.module.parameters()]


def check_weights_are_those_of_plain_torch(group):
    rank = dist.get_rank(group)
    for kind in KINDS:
        for stage in (1, 3) if kind not in REFUSED else ():
            plain, model = model_of(), model_of()
            optimizer, engine = make(kind, plain), engine_of(kind, stage, model)
            for step in range(STEPS):
                inputs = torch.arange(48.0).view(2, 4, 6).sin() + step
                plain(inputs.flatten(0, 1)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
                engine.backward(engine(inputs[rank]).square().mean())
                engine.step()
            for mine, want in zip(weights(engine), plain.parameters(), strict=True):
                torch.testing.assert_close(mine, want.detach(), rtol=1e-4, atol=1e-5, msg=kind)


def check_refusals_name_the_optimizer(group):
    del group
    for kind in KINDS:
        for stage in (1, 3) if kind in REFUSED else ():
            with pytest.raises(ConfigError, match=f"optimizer {kind} "):
                engine_of(kind, stage, model_of())


def check_one_that_has_taken_steps_is_refused(group):
    """Its states are of whole parameters, and would be lost without a word."""
    del group
    for kind in ("Adam", "Adagrad"):
        model = model_of()
        optimizer = make(kind, model)
        model(torch.ones(1, 6)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        with pytest.raises(ConfigError, match=f"optimizer {kind} has taken steps"):
            engine_of(kind, 2, model, optimizer)


def check_states_that_were_made_with_it_are_saved_and_loaded(group):
    folder = [tempfile.mkdtemp() if dist.get_rank(group) == 0 else None]
    dist.broadcast_object_list(folder, 0, group=group)
    inputs = torch.ones(4, 6)

    def step(engine):
        engine.backward(engine(inputs).square().mean())
        engine.step()

    engine, again = engine_of("Adagrad", 2, model_of()), engine_of("Adagrad", 3, model_of())
    step(engine)
    engine.save_checkpoint(folder[0])
    again.load_checkpoint(folder[0])
    step(engine)
    step(again)
    for mine, want in zip(weights(again), weights(engine), strict=True):
        assert torch.equal(mine, want)


test_check = ranks.tests_of(__file__, WORLD_SIZE)

if __name__ == "__main__":
    ranks.main(globals())
