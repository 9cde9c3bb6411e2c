"""A scheduler of another optimizer than the engine's was taken, and no rate ever changed.

It is made of an optimizer that initialize() is not given, which then makes one of its own.
"""

from __future__ import annotations

import pytest
import torch
from torch.optim.lr_scheduler import LambdaLR

import penstock


def test_it_is_refused():
    model = torch.nn.Linear(2, 2)
    scheduler = LambdaLR(torch.optim.Adam(model.parameters()), lambda epoch: epoch)
    config = {"train_batch_size": 1, "optimizer": {"type": "Adam"}}
    with pytest.raises(penstock.ConfigError, match="LambdaLR sets the rates of another optimizer"):
        penstock.initialize(model=model, config=config, lr_scheduler=scheduler)


def test_that_of_the_given_optimizer_is_taken():
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters())
    scheduler = LambdaLR(optimizer, lambda epoch: epoch)
    config = {"train_batch_size": 1}
    taken = penstock.initialize(
        model=model, config=config, optimizer=optimizer, lr_scheduler=scheduler
    )[3]
    assert taken is scheduler


def test_that_of_an_optimizer_with_the_same_groups_is_taken():
    """As libraries make it, which put another class in the place of an optimizer."""
    model = torch.nn.Linear(2, 2)
    first = torch.optim.Adam(model.parameters())
    scheduler = LambdaLR(first, lambda epoch: 2.0**epoch)
    second = torch.optim.AdamW(first.param_groups)
    engine = penstock.initialize(
        model=model, config={"train_batch_size": 1}, optimizer=second, lr_scheduler=scheduler
    )[0]
    engine.backward(engine(torch.ones(1, 2)).sum())
    engine.step()
    assert engine.get_lr() == [2e-3]
