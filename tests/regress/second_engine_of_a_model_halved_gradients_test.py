"""A second engine of one model had half of the gradients of a script's own loss.backward().

With two microbatches a step each engine's share is a half, and the first engine still multiplied
by its own.  Under fp16 the first one refused the backwards of the second.
"""

from __future__ import annotations

import pytest
import torch

import penstock


def change_of_weights(*, stage, is_own, fp16=False):
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    before = model.weight.detach().clone()
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 2,
        "optimizer": {"type": "SGD", "params": {"lr": 1.0}},
        "zero_optimization": {"stage": stage},
        "fp16": {"enabled": fp16, "initial_scale_power": 4},
    }
    first = penstock.initialize(model=model, config=config)[0]
    engine = penstock.initialize(model=model, config=config)[0]
    inputs = torch.ones(1, 4, dtype=torch.half if fp16 else torch.float)
    for _ in range(2):
        loss = engine(inputs).float().sum()
        if is_own:
            engine.scale(loss).backward()
        else:
            engine.backward(loss)
        engine.step()
    assert first.global_steps == 0
    with penstock.zero.GatheredParameters(model.parameters()):
        return (before - model.weight.detach().float()).flatten().tolist()


@pytest.mark.parametrize("is_own", [False, True])
@pytest.mark.parametrize("stage", [0, 2, 3])
def test_the_last_engine_alone_counts(stage, is_own):
    assert change_of_weights(stage=stage, is_own=is_own) == pytest.approx([1.0] * 4)


@pytest.mark.parametrize("is_own", [False, True])
def test_the_first_one_refuses_nothing_under_fp16(is_own):
    assert change_of_weights(stage=0, is_own=is_own, fp16=True) == pytest.approx(
        [1.0] * 4, abs=2e-3
    )
