"""A module in eval() trained again after the first evaluation of a pipeline, or its first step.

eval_batch() put the whole model back into train(), and train_batch() did so before every step: a
frozen batch norm moved its statistics.
"""

from __future__ import annotations

import ranks
import torch

import penstock
from penstock.pipe import LayerSpec, PipelineModule

WORLD_SIZE = 2


def check_frozen_modules_stay_frozen(group):
    layers = [LayerSpec(torch.nn.Linear, 3, 3), LayerSpec(torch.nn.BatchNorm1d, 3)] * 2
    model = PipelineModule(layers, num_stages=2, loss_fn=torch.nn.functional.mse_loss)
    optimizer = {"type": "SGD", "params": {"lr": 0.01}}
    config = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2}
    engine = penstock.initialize(model=model, config={**config, "optimizer": optimizer})[0]
    norms = [each for each in engine.module.modules() if isinstance(each, torch.nn.BatchNorm1d)]
    assert norms
    for norm in norms:
        norm.eval()
    batches = iter([(torch.rand(2, 3), torch.rand(2, 3)) for _ in range(8)])
    engine.train_batch(batches)
    engine.eval_batch(batches)
    assert engine.module.training
    engine.train_batch(batches)
    for norm in norms:
        assert not norm.training
        assert torch.equal(norm.running_mean, torch.zeros(3))
    engine.eval()
    engine.eval_batch(batches)
    assert not engine.module.training


test_check = ranks.tests_of(__file__, WORLD_SIZE)

if __name__ == "__main__":
    ranks.main(globals())
