"""Modules with sparse=True in engines: gradients become dense, and weights those of plain torch."""

from __future__ import annotations

import copy

import pytest
import ranks
import torch
import torch.distributed as dist
import zero_models

import penstock
from penstock.errors import ConfigError
from penstock.pipe import LayerSpec, PipelineModule

WORLD_SIZE, WORDS, WIDTH = 2, 11, 6


class Model(torch.nn.Module):
    def __init__(self, tied=False):
        super().__init__()
        self.table = torch.nn.Embedding(WORDS, WIDTH, sparse=True)
        self.bag = torch.nn.EmbeddingBag(WORDS, WIDTH, mode="sum", sparse=True)
        self.out = torch.nn.Linear(WIDTH, WORDS)
        if tied:
            self.out.weight = self.table.weight

    def forward(self, words):
        return self.out(torch.tanh(self.table(words).sum(1) + self.bag(words)))


def weights_after(stage, steps, *, gas, tied, is_own, fp16=False):
    """Of an engine, and of plain torch on the whole batch, which has all that gradients are of."""
    torch.manual_seed(1)
    model = Model(tied)
    plain = copy.deepcopy(model)
    for each in plain.modules():
        if hasattr(each, "sparse"):
            each.sparse = False
    optimizer = torch.optim.SGD(plain.parameters(), 0.1, momentum=0.9)
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": gas,
        "gradient_clipping": 0.5,
        "bf16": {"enabled": fp16},
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
    }
    engine = penstock.initialize(
        model=model, config=config, optimizer=torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    )[0]
    for _ in range(steps):
        words = torch.randint(0, WORDS, (gas, WORLD_SIZE, 4, 5))
        for each in words:
            (plain(each.flatten(0, 1)).square().mean() / gas).backward()
            loss = engine(each[dist.get_rank()]).float().square().mean()
            loss.backward() if is_own else engine.backward(loss)
            engine.step()
        torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
    with penstock.zero.GatheredParameters(engine.module.parameters()):
        return [each.detach().float().clone() for each in model.parameters()], list(
            plain.parameters()
        )


def check_weights_are_those_of_plain_torch(group):
    del group
    for stage in range(4):
        for gas, tied, is_own in [(1, False, False), (2, True, True)]:
            ours, plain = weights_after(stage, 3, gas=gas, tied=tied, is_own=is_own)
            for mine, want in zip(ours, plain, strict=True):
                torch.testing.assert_close(mine, want.detach(), rtol=1e-5, atol=1e-6)


def check_sums_of_short_types(group):
    """Those of several microbatches are in 32 bits: sparse ones are no exception."""
    del group
    for stage in (0, 2):
        weights_after(stage, 2, gas=2, tied=False, is_own=False, fp16=True)


def plain_layers(model):
    """All layers of a pipeline, with the values that its ranks have."""
    here = {tuple(each.shape): each.detach() for each in model.parameters()}
    all_of_them = [None] * WORLD_SIZE
    dist.all_gather_object(all_of_them, here)
    plain = torch.nn.Sequential(torch.nn.Embedding(WORDS, WIDTH), torch.nn.Linear(WIDTH, WIDTH))
    with torch.no_grad():
        for each in plain.parameters():
            each.copy_(next(of[tuple(each.shape)] for of in all_of_them if tuple(each.shape) in of))
    return plain


def check_stages_of_a_pipeline(group):
    """Whose gradients come in buffers, which are used again in a step."""
    del group
    for stage in (0, 1):
        torch.manual_seed(2)
        layers = [
            LayerSpec(torch.nn.Embedding, WORDS, WIDTH, sparse=True),
            LayerSpec(torch.nn.Linear, WIDTH, WIDTH),
        ]
        model = PipelineModule(layers, num_stages=2, loss_fn=torch.nn.MSELoss())
        config = {
            "train_micro_batch_size_per_gpu": 2,
            "gradient_accumulation_steps": 5,
            "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
            "zero_optimization": {"stage": stage},
        }
        engine = penstock.initialize(model=model, config=config)[0]
        plain = plain_layers(model)
        optimizer = torch.optim.SGD(plain.parameters(), 0.1)
        for _ in range(2):
            words, goals = torch.randint(0, WORDS, (5, 2)), torch.randn(5, 2, WIDTH)
            engine.train_batch(iter(zip(words, goals, strict=True)))
            torch.nn.functional.mse_loss(plain(words), goals).backward()
            optimizer.step()
            optimizer.zero_grad()
        for mine in model.parameters():
            want = next(each for each in plain.parameters() if each.shape == mine.shape)
            torch.testing.assert_close(mine.detach(), want.detach(), rtol=1e-5, atol=1e-6)


def check_an_optimizer_of_sparse_gradients(group):
    del group
    model = Model()
    with pytest.raises(ConfigError, match="optimizer SparseAdam needs sparse gradients"):
        penstock.initialize(
            model=model,
            config=zero_models.config(0),
            optimizer=torch.optim.SparseAdam(list(model.table.parameters())),
        )


test_check = ranks.tests_of(__file__, WORLD_SIZE)

if __name__ == "__main__":
    ranks.main(globals())
