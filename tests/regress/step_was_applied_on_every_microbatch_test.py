"""was_step_applied() stayed True on the microbatches that follow a step of the optimizer.

With two microbatches a step: False, True, True, where DeepSpeed has False, True, False.
"""

from __future__ import annotations

import torch

import penstock


def test_only_the_last_microbatch_applies_a_step():
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 2,
        "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
    }
    engine, _, _, _ = penstock.initialize(model=torch.nn.Linear(2, 1), config=config)
    found = []
    for _ in range(4):
        engine.backward(engine(torch.ones(1, 2)).sum())
        engine.step()
        found.append(engine.was_step_applied())
    assert found == [False, True, False, True]
