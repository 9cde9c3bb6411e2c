"""`config check` took Adam with a weight decay, and initialize() refused it; penstock train had no
Adam.  DeepSpeed's Adam is AdamW unless adam_w_mode is false, and without weight_decay has none:
here the numbers are those.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch

import penstock

STEPS = 5


def model_of():
    torch.manual_seed(3)
    return torch.nn.Linear(4, 3)


def after_steps(make):
    model = model_of()
    optimizer = make(model.parameters())
    for step in range(STEPS):
        optimizer.zero_grad()
        (model(torch.ones(2, 4)) * (step + 1)).square().mean().backward()
        optimizer.step()
    return torch.cat([each.detach().flatten() for each in model.parameters()])


def after_steps_of_initialize(section, stage):
    model = model_of()
    engine = penstock.initialize(
        model=model,
        config={
            "train_batch_size": 2,
            "optimizer": section,
            "zero_optimization": {"stage": stage},
        },
    )[0]
    for step in range(STEPS):
        engine.backward((engine(torch.ones(2, 4)) * (step + 1)).square().mean())
        engine.step()
    state = engine.module_state_dict()
    return torch.cat([state[name].flatten() for name in ("weight", "bias")])


@pytest.mark.parametrize("stage", [0, 1, 3])
@pytest.mark.parametrize(
    ("kind", "given", "expected", "decay"),
    [
        ("Adam", {"weight_decay": 0.3}, torch.optim.AdamW, 0.3),
        ("adam", {"weight_decay": 0.3, "adam_w_mode": True}, torch.optim.AdamW, 0.3),
        ("Adam", {"weight_decay": 0.3, "adam_w_mode": False}, torch.optim.Adam, 0.3),
        ("AdamW", {"weight_decay": 0.3, "adam_w_mode": False}, torch.optim.AdamW, 0.3),
        ("Adam", {}, torch.optim.AdamW, 0.0),
        ("AdamW", {"torch_adam": True}, torch.optim.AdamW, 0.01),
        ("Adam", {"bias_correction": True, "weight_decay": 0.3}, torch.optim.AdamW, 0.3),
    ],
)
def test_initialize_gives_the_numbers_of_deepspeed(kind, given, expected, decay, stage):
    section = {"type": kind, "params": {"lr": 0.1, **given}}
    ours = after_steps_of_initialize(section, stage)
    theirs = after_steps(lambda all: expected(all, lr=0.1, weight_decay=decay))
    assert torch.equal(ours, theirs)


def losses_of_train(folder, name, optimizer):
    config = {
        "train_batch_size": 8,
        "model": {"type": "mlp", "layers": 1, "hidden": 16, "sequence_length": 8},
        "data": {"path": str(folder / "text")},
        "optimizer": optimizer,
        "run": {"steps": STEPS, "eval_batches": 1, "sample_bytes": 0},
    }
    (folder / "text").write_text("all work and no play " * 200)
    (folder / f"{name}.json").write_text(json.dumps(config))
    program = Path(os.environ["PENSTOCK_BUILD"], "bin", "penstock")
    command = [program, "train", folder / f"{name}.json", "--run", folder / name]
    result = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert result.returncode == 0, result.stderr
    lines = (folder / name / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["loss"] for line in lines if "loss" in json.loads(line)]


def test_penstock_train_tells_decoupled_from_l2(tmp_path):
    def losses(name, kind, **params):
        section = {"type": kind, "params": {"lr": 0.01, **params}}
        return losses_of_train(tmp_path, name, section)

    decoupled = losses("adamw", "AdamW", weight_decay=0.3)
    assert len(decoupled) >= STEPS
    assert losses("adam", "Adam", weight_decay=0.3) == decoupled
    l2 = losses("l2", "Adam", weight_decay=0.3, adam_w_mode=False)
    assert l2 != decoupled
    none = losses("none", "AdamW", weight_decay=0.0)
    assert losses("none-l2", "Adam", weight_decay=0.0, adam_w_mode=False) == none
    assert l2 != none


def test_an_engine_without_an_optimizer_evaluates_and_says_why_it_does_not_step():
    model = model_of()
    engine, optimizer, _, scheduler = penstock.initialize(
        model=model,
        config={
            "train_batch_size": 2,
            "zero_optimization": {"stage": 3},
            "scheduler": {"type": "WarmupLR"},
        },
    )
    assert optimizer is None
    assert scheduler is None
    with torch.no_grad():
        assert torch.equal(engine(torch.ones(2, 4)), model_of()(torch.ones(2, 4)))
    engine.backward(engine(torch.ones(2, 4)).sum())
    with pytest.raises(penstock.ConfigError, match="no optimizer, so it can evaluate only"):
        engine.step()
