"""The gradient norm has the bits of `penstock train`, and the same ones in every layout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import ranks
import torch
import torch.distributed as dist
from pipe_models import batches, config

import penstock
from penstock.pipe import LayerSpec, PipelineModule

sys.path.insert(0, str(Path(__file__).parents[1] / "parity"))
from gpt import read_weights

WORLD_SIZE = 2
WIDTH, LENGTH, BLOCKS, MICROBATCHES = 16, 8, 4, 4
LETTER = "a"  # All of the text, so every sample is the same.
SKIPPED, STEPS = 2, 14
CONFIG = {
    "train_batch_size": 8,
    "gradient_accumulation_steps": MICROBATCHES,
    "gradient_clipping": 0.25,
    "optimizer": {"type": "SGD", "params": {"lr": 0.5}},
}
OF_TRAIN = {
    "model": {"type": "mlp", "layers": BLOCKS, "hidden": WIDTH, "sequence_length": LENGTH},
    "mesh": {"pipe": 2, "data": 1},
    "data": {"path": "text"},
    "run": {"sample_bytes": 0, "eval_batches": 1},
}


class Embedding(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = torch.nn.Embedding(256, WIDTH)
        self.wpe = torch.nn.Embedding(LENGTH, WIDTH)

    def forward(self, tokens):
        return self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1]))


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net1 = torch.nn.Linear(WIDTH, WIDTH)
        self.net2 = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return x + self.net2(torch.relu(self.net1(x)))


class Head(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_f = torch.nn.LayerNorm(WIDTH)
        self.lm_head = torch.nn.Linear(WIDTH, 256, bias=False)

    def forward(self, x):
        return self.lm_head(self.ln_f(x))


def loss_fn(logits, targets):
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def module_of(num_stages):
    layers = [LayerSpec(Embedding), *[LayerSpec(Block)] * BLOCKS, LayerSpec(Head)]
    return PipelineModule(layers, num_stages=num_stages, loss_fn=loss_fn)


def train(folder, *words):
    foreign = ("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "PENSTOCK_LAUNCH")
    done = subprocess.run(
        [os.environ["PENSTOCK_BUILD"] + "/bin/penstock", "train", "config.json", *words],
        cwd=folder,
        env={name: value for name, value in os.environ.items() if not name.startswith(foreign)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def of_penstock_train(folder):
    """Weights after SKIPPED steps, and loss and norm of each step after them."""
    (folder / "text").write_text(LETTER * 4000)
    (folder / "config.json").write_text(json.dumps({**CONFIG, **OF_TRAIN}))
    train(folder, "--steps", str(SKIPPED), "--save", "weights", "--run", "some")
    train(folder, "--steps", str(STEPS), "--run", "all")
    lines = map(json.loads, (folder / "all/metrics.jsonl").read_text().splitlines())
    steps = [(line["loss"], line["grad_norm"]) for line in lines if "grad_norm" in line]
    return read_weights(folder / "weights"), steps[SKIPPED:]


def check_it_is_that_of_penstock_train(group):
    given = [None]
    if dist.get_rank() == 0:
        with tempfile.TemporaryDirectory() as folder:
            given = [of_penstock_train(Path(folder))]
    dist.broadcast_object_list(given, 0, group)
    weights, expected = given[0]
    module = module_of(2)
    names = ["transformer", *(f"transformer.h.{i}" for i in range(BLOCKS)), "head"]
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            index, rest = name.split(".", 1)
            found = [
                each
                for key, each in weights.items()
                if key in (f"{names[int(index)]}.{rest}", rest)
            ]
            assert len(found) == 1, (name, list(weights))
            parameter.copy_(found[0])
    engine, *_ = penstock.initialize(model=module, config=CONFIG)
    tokens = torch.full((2, LENGTH), ord(LETTER))
    steps = []
    for _ in expected:
        loss = engine.train_batch(iter([(tokens, tokens)] * MICROBATCHES))
        steps.append((loss.item(), engine.get_global_grad_norm()))
    assert [norm for _, norm in steps] == [norm for _, norm in expected], (steps, expected)


def norms_of(schedule, num_stages, zero):
    """Of some steps in which all replicas have the same samples."""
    torch.manual_seed(0)
    sharing = {"stage": zero, "stage3_param_persistence_threshold": 0}
    values = config(schedule=schedule, gradient_clipping=0.3, zero_optimization=sharing)
    engine, *_ = penstock.initialize(model=module_of(num_stages), config=values)
    norms = []
    for step in range(12):
        engine.train_batch(batches(step, [5] * MICROBATCHES))
        norms.append(engine.get_global_grad_norm())
    return norms


def check_every_layout_has_the_same_one(group):
    expected = norms_of({"name": "1f1b"}, 2, 0)
    for schedule in (
        {"name": "gpipe"},
        {"name": "interleaved_1f1b", "stages_per_rank": 2},
        {"name": "zbv"},
    ):
        assert norms_of(schedule, 2, 0) == expected, schedule
    # Two equal gradients, added and halved, are the same gradient.
    for zero in range(4):
        assert norms_of({"name": "1f1b"}, 1, zero) == expected, zero


def check_parameters_stand_in_the_models_order(group):
    for schedule in ({"name": "1f1b"}, {"name": "zbv"}):
        engine, *_ = penstock.initialize(model=module_of(2), config=config(schedule=schedule))
        parameters = engine._replicated.parameters
        sizes = [each.numel() for each in parameters]
        placed = torch.tensor(engine._places.place(sizes, range(len(parameters))))
        dist.all_reduce(placed, group=group)
        layers = [Embedding(), *[Block()] * BLOCKS, Head()]
        assert placed.tolist() == [p.numel() for each in layers for p in each.parameters()]


test_check = ranks.tests_of(__file__, WORLD_SIZE)

if __name__ == "__main__":
    ranks.main(globals())
