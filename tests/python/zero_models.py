"""Models whose parameters are used in all ways, and the training loops of the ZeRO tests."""

from __future__ import annotations

from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import penstock

WORDS, WIDTH, LENGTH = 11, 8, 5


class Mixed(torch.nn.Module):
    """Parameters: tied, external, re-used, recomputed, used sometimes, returned, and never used."""

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(WIDTH))
        self.embedding = torch.nn.Embedding(WORDS, WIDTH)
        self.first = torch.nn.Linear(WIDTH, 3 * WIDTH)
        self.twice = torch.nn.Linear(WIDTH, WIDTH)
        self.sometimes = torch.nn.Linear(WIDTH, WIDTH)
        self.never = torch.nn.Linear(WIDTH, WIDTH)
        self.bias = ReturnsItsBias(WIDTH, WIDTH)
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.head = torch.nn.Linear(WIDTH, WORDS)
        self.head.weight = self.embedding.weight

    def forward(self, words, step):
        x = self.embedding(words) * self.scale
        x = functional.linear(self.first(x).tanh(), self.first.weight.t())  # External.
        x = checkpoint(self.twice, x, use_reentrant=False)
        x = checkpoint(self.twice, x, use_reentrant=True)
        if step % 2 == 0:
            x = x + self.sometimes(x)
        x, bias = self.bias(x)
        return self.head(self.norm(x + bias))


class ReturnsItsBias(torch.nn.Linear):
    def forward(self, x):
        return super().forward(x), self.bias


def config(stage, micro=4, accumulation=1, **options):
    """A configuration that has some parameters whole, and few at a time of the others."""
    return {
        "train_micro_batch_size_per_gpu": micro,
        "gradient_accumulation_steps": accumulation,
        "optimizer": {"type": "AdamW", "params": {"lr": 0.02}},
        "zero_optimization": {
            "stage": stage,
            "reduce_bucket_size": 100,
            "stage3_param_persistence_threshold": WIDTH,
            "stage3_max_live_parameters": 200,
            "stage3_prefetch_bucket_size": 100,
        },
        **options,
    }


def initialize(model, stage, *, options=None, **arguments):
    """The engine alone, and its optimizer."""
    engine, optimizer, _, _ = penstock.initialize(
        args=SimpleNamespace(local_rank=0),
        model=model,
        model_parameters=arguments.pop("model_parameters", model.parameters()),
        config=config(stage, **(options or {})),
        **arguments,
    )
    return engine, optimizer


def words_of(seed, rank, batch=4):
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    return torch.randint(WORDS, (2, batch, LENGTH), generator=generator).unbind()


def loss_of(outputs, labels):
    return functional.cross_entropy(outputs.flatten(0, -2), labels.flatten())


def train(engine, steps, first=0):
    """Losses of this rank, and norms."""
    losses, norms = [], []
    for step in range(first, first + steps):
        for micro in range(engine.gradient_accumulation_steps()):
            inputs, labels = words_of(10 * step + micro, dist.get_rank())
            loss = loss_of(engine(inputs, step), labels)
            engine.backward(loss)
            engine.step()
            losses.append(loss.item())
        norms.append(engine.get_global_grad_norm())
    return losses, norms


def mixed(seed=0):
    torch.manual_seed(seed)
    return Mixed()


def same_state(a, b):
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name], b[name]), name
