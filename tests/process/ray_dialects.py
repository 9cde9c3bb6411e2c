"""Both Python dialects in the workers of a TorchTrainer: clusters_test.py runs it."""

from __future__ import annotations

import ray.train
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer


def train(_settings: dict) -> None:
    import torch
    import torch.distributed as dist
    from torch import nn

    import penstock
    from penstock.pipelining import PipelineStage, Schedule1F1B

    torch.manual_seed(0)
    torch.set_num_threads(1)
    rank, loss_fn = dist.get_rank(), nn.MSELoss()
    blocks = [nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(2)]
    stage = PipelineStage(blocks[rank], rank, 2, torch.device("cpu"))
    schedule = Schedule1F1B(stage, 4, loss_fn=loss_fn)
    x, y = torch.randn(16, 8), torch.randn(16, 8)
    losses: list = []
    schedule.step(x) if rank == 0 else schedule.step(target=y, losses=losses)
    if losses:
        whole = loss_fn(nn.Sequential(*blocks)(x), y)
        torch.testing.assert_close(sum(losses) / len(losses), whole)

    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "zero_optimization": {"stage": 2},
        "optimizer": {"type": "Adam", "params": {"lr": 0.02}},
    }
    engine, *_ = penstock.initialize(model=model, config=config)
    told = []
    for _ in range(20):
        loss = engine(x[rank::2]).square().mean()
        engine.backward(loss)
        engine.step()
        told.append(loss.item())
    assert told[-1] < told[0] / 2, told
    ray.train.report({"ranks": dist.get_world_size()})


result = TorchTrainer(train, scaling_config=ScalingConfig(num_workers=2)).fit()
print("both dialects:", result.metrics["ranks"], "ranks")
