"""Of engines that share a parameter, safe_get_* meant any of them, and not the same on all ranks.

An engine that does not update the parameter hid one that does, too.
"""

from __future__ import annotations

import torch

import penstock
from penstock.utils import safe_get_full_optimizer_state

ADAM = {"train_batch_size": 1, "optimizer": {"type": "Adam", "params": {"lr": 0.1}}}


def _engine(*layers, parameters=None):
    model = torch.nn.Sequential(*layers)
    engine, *_ = penstock.initialize(model=model, config=ADAM, model_parameters=parameters)
    return engine


def _step(engine):
    engine.backward(engine(torch.ones(1, 2)).sum())
    engine.step()


def test_the_engine_that_was_made_last_is_meant():
    shared = torch.nn.Linear(2, 2)
    engines = [_engine(shared) for _ in range(9)]
    for engine in engines[:-1]:
        _step(engine)
        assert safe_get_full_optimizer_state(shared.weight, "exp_avg") is None
    _step(engines[-1])
    assert safe_get_full_optimizer_state(shared.weight, "exp_avg") is not None
    while engines:
        engines.pop().destroy()
    assert safe_get_full_optimizer_state(shared.weight, "exp_avg") is None


def test_an_engine_that_does_not_update_it_is_not_meant():
    shared, own = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    first = _engine(shared)
    others = [_engine(shared, own, parameters=own.parameters()) for _ in range(5)]
    _step(first)
    assert safe_get_full_optimizer_state(shared.weight, "exp_avg") is not None
    assert safe_get_full_optimizer_state(own.weight, "exp_avg") is None
    for engine in (first, *others):
        engine.destroy()
