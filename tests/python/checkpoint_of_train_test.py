"""`penstock train` and an engine of Python go on from each other's checkpoints."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PENSTOCK = Path(os.environ["PENSTOCK_BUILD"]) / "bin" / "penstock"
CONFIG = {
    "train_batch_size": 8,
    "seed": 7,
    "model": {"layers": 2, "hidden": 32, "heads": 2, "sequence_length": 16},
    "mesh": {"pipe": 2, "data": 1},
    "optimizer": {"type": "AdamW", "params": {"lr": 0.003}},
    "scheduler": {
        "type": "WarmupCosineLR",
        "params": {"warmup_num_steps": 3, "total_num_steps": 8},
    },
    "data": {"path": "text"},
    "checkpoint": {"save_interval": 2},
    "run": {"sample_bytes": 0, "eval_batches": 1},
}
PROGRAM = '''
import json, sys, torch, penstock

folder, into, kind = sys.argv[1:]

class Named(torch.nn.Module):
    """Parameters of these names and shapes, all of which its value depends on."""

    def __init__(self, shapes):
        super().__init__()
        for name, shape in shapes:
            module = self
            *path, last = name.split(".")
            for part in path:
                if part not in module._modules:
                    module.add_module(part, torch.nn.Module())
                module = module._modules[part]
            module.register_parameter(last, torch.nn.Parameter(torch.zeros(shape)))

    def forward(self, x):
        return sum((each * x).square().sum() for each in self.parameters())

manifest = json.load(open(f"{folder}/manifest.json"))
shapes = [(t["name"], t["shape"]) for t in manifest["tensors"] if t["state"] == "weight"]
config = {
    "train_batch_size": 1,
    "optimizer": {"type": "AdamW", "params": {"lr": 0.003}},
    "scheduler": {
        "type": "WarmupCosineLR",
        "params": {"warmup_num_steps": 3, "total_num_steps": 8},
    },
    "zero_optimization": {"stage": 2},
    **json.loads(kind),
}
torch.set_num_threads(1)
engine, *_ = penstock.initialize(model=Named(shapes), config=config)
engine.load_checkpoint(folder)
assert engine.global_steps == 2 and len(engine.optimizer.state) == len(shapes)
assert engine.get_lr() != [0.0]
engine.save_checkpoint(into, tag="kept")
engine.backward(engine(torch.ones(())))
engine.step()
assert engine.global_steps == 3
engine.save_checkpoint(into, tag="trained")
'''


def environment():
    foreign = ("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "PENSTOCK_LAUNCH")
    return {name: value for name, value in os.environ.items() if not name.startswith(foreign)}


def penstock(folder, *words):
    done = subprocess.run(
        [str(PENSTOCK), *words],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("kind", [{}, {"bf16": {"enabled": True}}], ids=["fp32", "bf16"])
def test_a_run_goes_on_in_python_and_back(tmp_path, kind):
    (tmp_path / "text").write_text("the wheel turns and the water runs slow. " * 500)
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, **kind}))
    penstock(tmp_path, "train", "config.json", "--run", "whole", "--steps", "4")
    half = tmp_path / "whole" / "checkpoints" / "step-00000002"
    words = [sys.executable, "-c", PROGRAM, str(half), "python", json.dumps(kind)]
    subprocess.run(words, cwd=tmp_path, env=environment(), check=True, timeout=120)
    penstock(tmp_path, "checkpoint", "diff", str(half), "python/kept")
    for tag in ("kept", "trained"):
        penstock(
            *(tmp_path, "train", "config.json", "--run", tag, "--steps", "4"),
            *("--resume", f"python/{tag}"),
        )
    states = [f"{run}/checkpoints/step-00000004" for run in ("whole", "kept")]
    penstock(tmp_path, "checkpoint", "diff", *states)
