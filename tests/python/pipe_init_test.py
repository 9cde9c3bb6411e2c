"""A PipelineModule that is made in zero.Init: its layers are spread one by one, and train alike."""

from __future__ import annotations

import contextlib
import time
import weakref
from typing import ClassVar
from unittest import mock

import pytest
import ranks
import torch
import torch.distributed as dist
from pipe_models import WIDTH, WORDS, Block, Embedding, batches, half, loss_fn

import penstock
from penstock._engines.parameters.replicas import Replicas
from penstock.pipe import LayerSpec, PipelineModule, TiedLayerSpec
from penstock.zero.partition_parameters import GatheredParameters, Init, ZeroParamStatus

MICROBATCHES, STEPS = 4, 5
AWAY = ZeroParamStatus.NOT_AVAILABLE
SCHEDULES = [
    {"name": "1f1b"},
    {"name": "interleaved_1f1b", "stages_per_rank": 2},
    {"name": "zbv"},
]


class Head(torch.nn.Module):
    """Of another class than the embedding, whose weight it has."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(WORDS, WIDTH))
        self.bias = torch.nn.Parameter(torch.zeros(WORDS))
        self.apply(self.fill)

    @staticmethod
    def fill(module):
        torch.nn.init.constant_(module.bias, 0.1)

    def forward(self, x):
        return torch.nn.functional.linear(x, self.weight, self.bias)


class Frozen(Block):
    def __init__(self):
        super().__init__(32)
        self.requires_grad_(False)
        self.register_buffer("factor", torch.rand(1) + 0.5)

    def forward(self, x):
        return super().forward(x) * self.factor


def layers_of():
    """Tied ends of two classes, a module that is made, and in the list twice, and blocks."""
    again = Block(16)
    return [
        TiedLayerSpec("embedding", Embedding),
        again,
        LayerSpec(Block, 64),
        LayerSpec(Frozen),
        again,
        TiedLayerSpec("embedding", Embedding, forward_fn=lambda embedding, x: x + embedding.bias),
        half,
        LayerSpec(torch.nn.LayerNorm, WIDTH),
        TiedLayerSpec("embedding", Head),
    ]


def config_of(zero, schedule, more=None):
    return {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": MICROBATCHES,
        "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
        "schedule": schedule,
        "zero_optimization": {
            "stage": zero,
            "reduce_bucket_size": 300,
            "stage3_param_persistence_threshold": WIDTH,
            "stage3_max_live_parameters": 900,
        },
        **(more or {}),
    }


def module_of(layers=layers_of, init=None, **options):
    """Replicas draw other numbers; those of the first count."""
    torch.manual_seed(dist.get_rank() % 2)
    specs = layers()
    options = {"partition_method": "uniform", "loss_fn": loss_fn, **options}
    with init or contextlib.nullcontext():
        return PipelineModule(specs, num_stages=max(1, dist.get_world_size() // 2), **options)


def train(module, config, steps=STEPS):
    """Losses and norms, and then the weights."""
    engine = penstock.initialize(model=module, config=config)[0]
    found = []
    for step in range(steps):
        data = batches(10 * step + engine.dp_rank, [5, 4, 6, 5])
        found.append((engine.train_batch(data).item(), engine.get_global_grad_norm()))
    with GatheredParameters(module.parameters()):
        return found, {name: each.tolist() for name, each in module.state_dict().items()}


def check_it_trains_as_without(group):
    """The configuration's schedule has other layers on the ranks than the module was made with."""
    del group
    for schedule in SCHEDULES:
        for options in ({}, {"seed_layers": True}):
            expected = train(module_of(**options), config_of(0, schedule))
            assert expected[0][-1][0] < expected[0][0][0]
            for zero in (1, 3):
                config = config_of(zero, schedule)
                module = module_of(init=Init(config_dict_or_path=config), **options)
                assert train(module, config) == expected, (schedule, zero)


def check_it_casts(group):
    del group
    config = config_of(3, SCHEDULES[1], {"bf16": {"enabled": True}})
    expected = train(module_of(), config)
    module = module_of(init=Init(config_dict_or_path=config))
    assert all(each.dtype == torch.bfloat16 for each in [*module.parameters(), *module.buffers()])
    assert train(module, config) == expected


class Counted(torch.nn.Linear):
    """Knows what of all that were made has memory when one is made."""

    made: ClassVar = weakref.WeakSet()
    seen: ClassVar = []
    SIZE = 4 * 64 * 64

    def __init__(self):
        super().__init__(64, 64, bias=False)
        Counted.made.add(self)
        with torch._C.DisableTorchFunctionSubclass():
            Counted.seen.append(
                sum(each.weight.untyped_storage().nbytes() for each in Counted.made)
            )


def check_no_rank_ever_has_its_stages(group):
    stages = max(1, group.size() // 2)

    def layers():
        return [LayerSpec(torch.nn.Linear, 1, 64), *(LayerSpec(Counted) for _ in range(11))]

    for options in ({}, {"seed_layers": True}):
        Counted.seen.clear()
        module = module_of(layers, init=Init(), **options)
        parameters = list(module.parameters())
        assert len(Counted.seen) >= 11 // stages
        assert max(Counted.seen) <= 2 * Counted.SIZE  # One that is made, and one that goes.
        assert all(each.ds_status is AWAY for each in parameters)
        whole = sum(4 * each.numel() for each in parameters)
        assert sum(each.ds_tensor.nbytes for each in parameters) <= 0.6 * whole
        Counted.seen.clear()  # For other stages initialize() makes layers anew.
        penstock.initialize(model=module, config=config_of(3, SCHEDULES[1]))
        assert len(Counted.seen) >= 11 // stages
        assert max(Counted.seen) <= 2 * Counted.SIZE


def check_parameters_before_initialize(group):
    module = module_of(init=Init())
    read = {name: each.tolist() for name, each in module.named_parameters()}
    with GatheredParameters(module.parameters()):
        found = {name: each.tolist() for name, each in module.named_parameters()}
    assert read == found
    everybody = [None] * group.size()
    dist.all_gather_object(everybody, found, group=group)
    first = dist.get_rank() - dist.get_rank() % 2  # The first replica of these stages.
    assert found == everybody[first]
    expected = module_of()
    if dist.get_rank() == first:
        assert found == {name: each.tolist() for name, each in expected.named_parameters()}


def check_modules_that_were_spread_before(group):
    del group
    with Init():
        again = Block(16)
        with pytest.raises(penstock.ConfigError, match=r"layers\[1\] is a Block that zero"):
            module_of(lambda: [LayerSpec(Embedding), again, half, LayerSpec(Head)])
        with pytest.raises(penstock.ConfigError, match="loss_fn is a Block that zero"):
            module_of(lambda: [LayerSpec(Embedding), half, LayerSpec(Head)], loss_fn=again)


def check_a_layer_that_cannot_be_made_on_one_rank(group):
    class Wrong(torch.nn.Module):
        def __init__(self):
            super().__init__()
            if dist.get_rank() == group.size() - 1:
                raise ValueError("no such layer")

    def layers():
        return [LayerSpec(Embedding), LayerSpec(Block), LayerSpec(Wrong), *4 * [LayerSpec(Block)]]

    is_wrong = dist.get_rank() == group.size() - 1
    expected = ValueError if is_wrong else penstock.CommError

    def late(*words):
        time.sleep(0.3 if dist.get_rank() == 0 else 0)  # It hears of it before it has begun.
        return Replicas(*words)

    for replicas in (Replicas, late):
        with (
            mock.patch("penstock._engines.pipeline.pipeline_module.Replicas", replicas),
            pytest.raises(expected, match="no such layer"),
        ):
            module = module_of(layers, init=Init())
            penstock.initialize(model=module, config=config_of(3, SCHEDULES[0]))
    train(module_of(), config_of(0, SCHEDULES[0]), steps=1)  # Who heard when, they meet again.


def check_other_modules_stay_when_layers_move(group):
    del group

    class Loss(torch.nn.Module):
        def forward(self, logits, tokens):
            return loss_fn(logits, tokens)

    for schedule in SCHEDULES:
        module = module_of(loss_fn=Loss())
        train(module, config_of(0, schedule), steps=1)
        assert isinstance(module.loss_fn, Loss)


test_two = ranks.tests_of(__file__, 2, is_long=True)
test_four = ranks.tests_of(__file__, 4)

if __name__ == "__main__":
    ranks.main(globals())
