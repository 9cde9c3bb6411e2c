"""Weights that a script sets in bf16 are in the checkpoint that it saves next.

The masters were saved as the last step had left them, and a resumed run went on from those.
"""

from __future__ import annotations

import os
from pathlib import Path

import ranks
import torch

import penstock

WORLD_SIZE = 2


def engine_of(stage):
    torch.manual_seed(1)
    engine, *_ = penstock.initialize(
        model=torch.nn.Linear(4, 4),
        config={
            "train_batch_size": 2 * WORLD_SIZE,
            "bf16": {"enabled": True},
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
            "zero_optimization": {"stage": stage},
        },
    )
    return engine


def check_weights_that_were_set_are_saved(group):
    folder = Path(os.environ["STORE"]).with_name("checkpoints")
    for stage in (0, 1):
        engine = engine_of(stage)
        loss = engine(torch.ones(2, 4, dtype=torch.bfloat16)).float().pow(2).mean()
        engine.backward(loss)
        engine.step()
        with torch.no_grad():
            for parameter in engine.module.parameters():
                parameter.fill_(0.5)
        engine.save_checkpoint(folder / str(stage))
        resumed = engine_of(stage)
        resumed.load_checkpoint(folder / str(stage))
        for name, parameter in resumed.module.named_parameters():
            assert bool((parameter == 0.5).all()), (stage, name, parameter)


test_check = ranks.tests_of(__file__, WORLD_SIZE)

if __name__ == "__main__":
    ranks.main(globals())
