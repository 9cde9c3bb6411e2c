"""A reentrant activation_checkpoint_func in the first stage left its layers untrained.

The model's input takes no gradient, and a reentrant checkpoint hands none on from such an input.
Where other layers were trained, nobody said so.
"""

from __future__ import annotations

import functools

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import penstock
from penstock.pipe import PipelineModule

REENTRANT = functools.partial(checkpoint, use_reentrant=True)


def _train(layers, inputs):
    module = PipelineModule(
        layers,
        num_stages=1,
        loss_fn=lambda output, _: output.square().mean(),
        activation_checkpoint_interval=1,
        activation_checkpoint_func=REENTRANT,
    )
    config = {"train_batch_size": 2, "optimizer": {"type": "SGD", "params": {"lr": 0.1}}}
    engine, *_ = penstock.initialize(model=module, config=config)
    before = [each.detach().clone() for each in module.parameters()]
    engine.train_batch(iter([(inputs, inputs)]))
    return [not torch.equal(*each) for each in zip(before, module.parameters(), strict=True)]


def test_the_first_layer_is_trained():
    layers = [torch.nn.Linear(3, 3), torch.nn.Tanh(), torch.nn.Linear(3, 3)]
    assert all(_train(layers, torch.ones(2, 3)))


def test_a_layer_that_cannot_be_is_an_error():
    layers = [torch.nn.Embedding(3, 3), torch.nn.Linear(3, 3)]
    with pytest.raises(penstock.ConfigError, match=r"layer 0 \(Embedding\).*would not be trained"):
        _train(layers, torch.tensor([0, 1]))
