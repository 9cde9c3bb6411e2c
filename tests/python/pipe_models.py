"""A small language model as a list of layers, an engine of it, and beside it the unsplit model."""

from __future__ import annotations

import functools

import pytest
import torch
import torch.distributed as dist

import penstock
from penstock.pipe import LayerSpec, PipelineModule, TiedLayerSpec

WORDS, WIDTH = 17, 8
MICROBATCHES = 4


class Embedding(torch.nn.Module):
    """Its bias is shared as well, whatever tied_weight_attr says."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(WORDS, WIDTH))
        self.bias = torch.nn.Parameter(torch.zeros(WIDTH))

    def forward(self, tokens):
        return torch.nn.functional.embedding(tokens, self.weight) + self.bias


def to_logits(embedding, x):
    return (x + embedding.bias) @ embedding.weight.T


class Block(torch.nn.Module):
    def __init__(self, width=WIDTH):
        super().__init__()
        self.net1 = torch.nn.Linear(WIDTH, width)
        self.net2 = torch.nn.Linear(width, WIDTH)

    def forward(self, x):
        return x + self.net2(torch.relu(self.net1(x)))


def half(x):
    return x * 0.5


def loss_fn(logits, tokens):
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())


def language_model(blocks=5):
    return [
        TiedLayerSpec("embedding", Embedding),
        *(LayerSpec(Block) for _ in range(blocks)),
        half,
        LayerSpec(torch.nn.LayerNorm, WIDTH),
        TiedLayerSpec("embedding", Embedding, forward_fn=to_logits),
    ]


class Unsplit(torch.nn.Module):
    """The layers in one process, as anybody would write it; names are those of PipelineModule."""

    def __init__(self, layers):
        super().__init__()
        self.tied_modules = torch.nn.ModuleDict()
        self.calls = []
        for index, layer in enumerate(layers):
            if isinstance(layer, TiedLayerSpec):
                if layer.key not in self.tied_modules:
                    self.tied_modules[layer.key] = layer.build()
                module = self.tied_modules[layer.key]
                call = functools.partial(layer.forward_fn, module) if layer.forward_fn else module
            else:
                call = layer.build() if isinstance(layer, LayerSpec) else layer
                if isinstance(call, torch.nn.Module):
                    self.add_module(str(index), call)
            self.calls.append(call)

    def forward(self, x):
        for call in self.calls:
            x = call(x)
        return x


def batches(seed, lengths, samples=2):
    """Microbatches (tokens, tokens), with a length each."""
    generator = torch.Generator().manual_seed(seed)
    for length in lengths:
        tokens = torch.randint(0, WORDS, (samples, length), generator=generator)
        yield tokens, tokens.roll(1, dims=1)


class Reference:
    """The unsplit model in training: on the microbatches of all replicas."""

    def __init__(self, layers, make_optimizer, loss=loss_fn, clipping=0.0):
        self.model = Unsplit(layers)
        self.loss = loss
        self.clipping = clipping
        self.optimizer = make_optimizer(self.model.parameters())
        self.norm = 0.0

    def step(self, microbatches):
        self.optimizer.zero_grad()
        total = 0.0
        for inputs, labels in microbatches:
            loss = self.loss(self.model(inputs), labels) / len(microbatches)
            loss.backward()
            total += loss.item()
        limit = self.clipping or float("inf")
        self.norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), limit).item()
        self.optimizer.step()
        return total

    def evaluate(self, microbatches):
        with torch.no_grad():
            losses = [self.loss(self.model(inputs), labels) for inputs, labels in microbatches]
        return (sum(losses) / len(losses)).item()

    def compare(self, module):
        """Every parameter that `module` has, by name."""
        names = [name for name, _ in module.named_parameters()]
        assert names
        for name in names:
            torch.testing.assert_close(
                module.get_parameter(name), self.model.get_parameter(name), rtol=1e-5, atol=4e-5
            )


def config(**more):
    return {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": MICROBATCHES,
        "optimizer": {"type": "SGD", "params": {"lr": 0.2, "momentum": 0.9}},
        **more,
    }


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.2, momentum=0.9)


def engine_of(layers, more=None, seed=0, **options):
    """An engine, and the unsplit model, made of the same seed."""
    torch.manual_seed(seed)
    module = PipelineModule(layers, num_stages=dist.get_world_size(), loss_fn=loss_fn, **options)
    engine, *_ = penstock.initialize(model=module, config=config(**(more or {})))
    return engine


def reference_of(layers, make=sgd, clipping=0.0, seed=0):
    torch.manual_seed(seed)
    return Reference(layers, make, clipping=clipping)


def compare(engine, reference, steps=10, lengths=(5,) * MICROBATCHES):
    reference.compare(engine.module)  # The same seed gives the same weights.
    for step in range(steps):
        data = list(batches(step, lengths))
        loss = engine.train_batch(iter(data))
        assert loss.item() == pytest.approx(reference.step(data), rel=1e-5)
        reference.compare(engine.module)
    assert engine.global_steps == steps
