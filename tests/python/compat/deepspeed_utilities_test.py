"""What scripts for DeepSpeed import around engines: versions, seeds, groups, and its classes."""

from __future__ import annotations

import logging
import random

import pytest
import torch

import penstock
from penstock.moe.utils import split_params_into_different_moe_groups_for_optimizer
from penstock.ops.adam import DeepSpeedCPUAdam, FusedAdam
from penstock.runtime.fp16.fused_optimizer import FP16_Optimizer
from penstock.runtime.fp16.unfused_optimizer import FP16_UnfusedOptimizer
from penstock.runtime.utils import see_memory_usage, set_random_seed
from penstock.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer
from penstock.utils.torch import register_grad_hook, required_torch_version


def test_versions_of_torch():
    assert required_torch_version(min_version=1.8) and required_torch_version(min_version="2.10")
    assert not required_torch_version(max_version=2.1)
    assert required_torch_version(min_version="2.0", max_version="99.0")
    with pytest.raises(ValueError, match="min_version, max_version or both"):
        required_torch_version()


def test_seeds_and_memory(caplog):
    drawn = []
    for _ in range(2):
        set_random_seed(11)
        drawn.append((random.random(), torch.rand(1).item()))
    assert drawn[0] == drawn[1]
    with caplog.at_level(logging.INFO, "penstock"):
        see_memory_usage("here")
        assert not caplog.messages
        see_memory_usage("there", force=True)
    assert "there: the process has" in caplog.messages[0]


def test_hooks_of_gradients_come_when_they_have_grown():
    seen = []
    weight = torch.nn.Parameter(torch.ones(2))
    hook = register_grad_hook(weight, lambda each: seen.append(each.grad.tolist()))
    (weight * 3).sum().backward()
    hook.remove()
    (weight * 3).sum().backward()
    assert seen == [[3.0, 3.0]]


def test_groups_without_experts_are_as_they_were():
    group = {"params": [torch.nn.Parameter(torch.ones(2))], "name": "all", "lr": 0.5}
    assert split_params_into_different_moe_groups_for_optimizer(group) == [group]
    assert split_params_into_different_moe_groups_for_optimizer((group, group)) == [group, group]
    with pytest.raises(ValueError, match="param_groups is a int"):
        split_params_into_different_moe_groups_for_optimizer(7)


@pytest.fixture
def stepped():
    """Makes an optimizer that an engine steps; engines live as long as the case."""
    engines = []

    def make(section, **options):
        config = {"train_batch_size": 1, "optimizer": section, **options}
        engines.append(penstock.initialize(model=torch.nn.Linear(2, 2), config=config)[0])
        return engines[-1].optimizer

    return make


def test_an_adam_of_a_configuration_is_a_fused_one(stepped):
    adam = stepped({"type": "Adam"})
    assert isinstance(adam, FusedAdam) and not isinstance(adam, DeepSpeedCPUAdam)
    own = stepped({"type": "Adam", "params": {"torch_adam": True}})
    assert not isinstance(own, FusedAdam)
    assert not isinstance(stepped({"type": "SGD", "params": {"lr": 0.1}}), FusedAdam)
    zero = {"stage": 2, "offload_optimizer": {"device": "cpu"}}
    kept = stepped({"type": "AdamW"}, zero_optimization=zero)
    assert isinstance(kept, DeepSpeedCPUAdam)
    assert not isinstance(torch.optim.AdamW([torch.ones(1)]), FusedAdam)
    assert isinstance(FusedAdam([torch.ones(1)]), FusedAdam)


def test_optimizers_in_16_bits_are_known_by_class(stepped):
    bf16, fp16 = {"bf16": {"enabled": True}}, {"fp16": {"enabled": True, "loss_scale_window": 7}}
    fused = stepped({"type": "Adam"}, **fp16)
    assert isinstance(fused, FP16_Optimizer) and not isinstance(fused, FP16_UnfusedOptimizer)
    sgd = {"type": "SGD", "params": {"lr": 0.1}}
    unfused = stepped(sgd, **bf16)
    assert isinstance(unfused, FP16_UnfusedOptimizer) and not isinstance(unfused, FP16_Optimizer)
    assert unfused.low_precision_dtype == torch.bfloat16
    assert not unfused.loss_scale_config.dynamic_loss_scale
    assert unfused.loss_scale_config.cur_scale == 1
    assert fused.loss_scale_config.dynamic_loss_scale
    assert (fused.loss_scale_config.scale_window, fused.loss_scale_config.cur_iter) == (7, 0)
    shared = stepped(sgd, **bf16, zero_optimization={"stage": 1})
    assert isinstance(shared, DeepSpeedZeroOptimizer)
    assert not isinstance(shared, FP16_UnfusedOptimizer)
    assert not isinstance(stepped(sgd), FP16_UnfusedOptimizer)


def test_loss_scale_config_counts_steps_that_are_skipped():
    config = {
        "train_batch_size": 1,
        "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
        "fp16": {"enabled": True, "initial_scale_power": 4, "hysteresis": 1},
    }
    engine, optimizer, _, _ = penstock.initialize(model=torch.nn.Linear(2, 2), config=config)
    for value in (1.0, float("inf")):
        engine.backward(engine(torch.full((1, 2), value, dtype=torch.half)).float().sum())
        engine.step()
    told = optimizer.loss_scale_config
    assert (told.cur_iter, told.cur_scale, engine.skipped_steps) == (2, 8.0, 1)


def test_masters_by_parameter_group(stepped):
    bf16 = {"bf16": {"enabled": True}}
    for optimizer in (stepped({"type": "Adam"}, **bf16), stepped({"type": "Adam"})):
        assert [each.dtype for each in optimizer.fp32_groups[0]] == [torch.float] * 2
        (flat,) = optimizer.fp32_groups_flat
        assert torch.equal(flat, torch.cat([each.flatten() for each in optimizer.fp32_groups[0]]))
    shared = stepped({"type": "Adam"}, **bf16, zero_optimization={"stage": 1})
    assert [each.numel() for each in shared.single_partition_of_fp32_groups] == [6]
