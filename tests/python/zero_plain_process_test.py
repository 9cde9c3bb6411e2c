"""penstock.initialize in a process that nobody has launched."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SCRIPT = """
import sys
from types import SimpleNamespace

import penstock
import torch
from penstock.accelerator import get_accelerator

assert get_accelerator().device_name() == "cpu"
for stage in range(4):
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
    engine, optimizer, loader, scheduler = penstock.initialize(
        args=SimpleNamespace(local_rank=0),
        model=model,
        model_parameters=model.parameters(),
        config={
            "train_batch_size": 1,
            "steps_per_print": 1,
            "optimizer": {"type": "Adam", "params": {"lr": 0.01}},
            "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 1},
        },
    )
    assert (loader, scheduler) == (None, None)
    before = [each.detach().clone() for each in model.parameters()]
    for _ in range(3):
        loss = engine(torch.rand(4).to(engine.device)).sum()
        engine.backward(loss)
        engine.step()
    assert not any(torch.equal(*pair) for pair in zip(before, model.parameters()))
print("trained")
"""
LAUNCHED = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}


@pytest.mark.parametrize("launched", [False, True])
def test_a_world_of_one(launched):
    environment = {name: value for name, value in os.environ.items() if name not in LAUNCHED}
    environment.pop("MASTER_PORT", None)
    if launched:
        environment |= {**LAUNCHED, "MASTER_PORT": "0"}
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, timeout=120
    )
    assert (ran.returncode, ran.stdout) == (0, "trained\n"), ran.stderr
