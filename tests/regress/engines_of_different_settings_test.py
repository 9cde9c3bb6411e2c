"""Replicas with another learning rate, another torch setting or a shorter dataset trained on.

Engines compared the type of their optimizer and no option of it, and nothing of torch's settings or
of the data: every rank updated its own copy in its own way, and nobody said so.
"""

from __future__ import annotations

import os

import pytest
import ranks
import torch
import torch.distributed as dist

import penstock
from penstock.pipe import LayerSpec, PipelineModule

WORLD_SIZE = 2
STEP = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2}


def replica(lr=0.01, samples=8, **config):
    model = torch.nn.Linear(3, 3)
    return penstock.initialize(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=lr),
        config={**STEP, **config},
        training_data=torch.arange(samples),
    )[0]


def pipeline(samples=8, lr=0.01, **config):
    layers = [LayerSpec(torch.nn.Linear, 3, 3) for _ in range(4)]
    model = PipelineModule(layers, num_stages=2, loss_fn=torch.nn.functional.mse_loss)
    return penstock.initialize(
        model=model,
        config={**STEP, "optimizer": {"type": "SGD", "params": {"lr": lr}}, **config},
        training_data=torch.arange(samples),
    )[0]


def refused(make, words):
    with pytest.raises(penstock.CommError, match=words) as raised:
        make()
    assert "0" in str(raised.value) and "1" in str(raised.value)


def check_options_of_the_optimizer(group):
    rank = dist.get_rank()
    refused(lambda: replica(lr=0.01 * (1 + rank)), r"rank 0 has optimizer=.*lr 0\.01,")
    refused(lambda: pipeline(lr=0.01 * (1 + rank)), r"config optimizer\.params\.lr=0\.01")


def check_the_configuration(group):
    rank = dist.get_rank()
    refused(
        lambda: replica(gradient_clipping=1.0 + rank), "rank 0 has config gradient_clipping=1.0"
    )
    refused(lambda: pipeline(gradient_clipping=1.0 + rank), "config gradient_clipping=1.0")
    replica(steps_per_print=1 + rank)


def check_settings_of_torch(group):
    rank = dist.get_rank()
    os.environ["NVIDIA_TF32_OVERRIDE"] = str(rank)
    for make in (replica, pipeline):
        refused(make, "environment.NVIDIA_TF32_OVERRIDE=0")
    del os.environ["NVIDIA_TF32_OVERRIDE"]
    torch.use_deterministic_algorithms(rank == 1)
    for make in (replica, pipeline):
        refused(make, "deterministic algorithms.not asked for")
    torch.use_deterministic_algorithms(False)
    torch.set_flush_denormal(rank == 1)
    for make in (replica, pipeline):
        refused(make, "bits of an update on the host")
    torch.set_flush_denormal(False)


def check_the_size_of_the_data(group):
    rank = dist.get_rank()
    refused(lambda: replica(samples=8 + rank), "rank 0 has training data=8 samples")
    refused(lambda: pipeline(samples=8 + rank), "rank 0 has training data=8 samples")


test_check = ranks.tests_of(__file__, WORLD_SIZE)

if __name__ == "__main__":
    ranks.main(globals())
