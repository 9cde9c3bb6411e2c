"""Names around ZeRO that scripts for DeepSpeed import: classes, builders, marks, the timer."""

import importlib
import json

import pytest
import torch

import penstock
from penstock import configuration
from penstock.moe.layer import MoE
from penstock.ops.op_builder import AsyncIOBuilder, CPUAdamBuilder
from penstock.runtime.base_optimizer import DeepSpeedOptimizer, ZeROOptimizer
from penstock.runtime.zero.config import DeepSpeedZeroConfig
from penstock.runtime.zero.leaf_module_config import (
    DEFAULT_LEAF_MODULE_CLASSES,
    DeepSpeedZeroLeafModuleConfig,
)
from penstock.runtime.zero.offload_config import OffloadStateTypeEnum
from penstock.runtime.zero.offload_states import get_state_devices
from penstock.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3
from penstock.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer
from penstock.utils import get_z3_leaf_modules

# By stage of ZeRO, the classes that an engine's optimizer is of.
CLASSES = {
    0: {DeepSpeedOptimizer},
    1: {DeepSpeedOptimizer, ZeROOptimizer, DeepSpeedZeroOptimizer},
    2: {DeepSpeedOptimizer, ZeROOptimizer, DeepSpeedZeroOptimizer},
    3: {DeepSpeedOptimizer, ZeROOptimizer, DeepSpeedZeroOptimizer_Stage3},
}


def start(model=None, stage=3, **keys):
    zero = {"stage": stage, **keys.pop("zero", {})}
    config = {
        "train_batch_size": 1,
        "optimizer": {"type": "Adam"},
        "zero_optimization": zero,
        **keys,
    }
    return penstock.initialize(model=model or torch.nn.Linear(2, 2), config=config)[:2]


@pytest.mark.parametrize("stage", range(4))
def test_an_engines_optimizer_is_of_deepspeeds_class_for_its_stage(stage):
    _, optimizer = start(stage=stage)
    everything = set().union(*CLASSES.values())
    assert {each for each in everything if isinstance(optimizer, each)} == CLASSES[stage]
    assert isinstance(optimizer, torch.optim.AdamW)


def test_no_other_optimizer_is():
    plain = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    assert not any(isinstance(each, DeepSpeedOptimizer) for each in (plain, None, 3, MoE))


def test_an_optimizer_says_whether_losses_have_to_be_scaled():
    assert start(fp16={"enabled": True})[1].needs_scaler()
    engine, optimizer = start(bf16={"enabled": True})
    assert not optimizer.needs_scaler()
    assert optimizer._global_grad_norm == 0.0
    engine.backward(engine(torch.ones(1, 2, dtype=torch.bfloat16)).sum())
    engine.step()
    assert optimizer._global_grad_norm == engine.get_global_grad_norm() > 0


def test_an_optimizer_has_masters_by_which_its_states_are():
    engine, optimizer = start(bf16={"enabled": True})
    engine.backward(engine(torch.ones(1, 2, dtype=torch.bfloat16)).sum())
    engine.step()
    masters = optimizer.fp32_partitioned_groups_flat
    assert [optimizer.state[each]["step"].item() for each in masters] == [1.0] * 2
    for master, parts in zip(masters, optimizer.fp16_groups, strict=True):
        assert torch.equal(
            torch.cat([each.flatten() for each in parts]), master.bfloat16().flatten()
        )


def test_what_is_no_loss_is_said_to_be_none():
    engine, _ = start()
    for kind in (TypeError, AssertionError):
        with pytest.raises(kind, match=r"loss is \(2,\), must be a scalar tensor"):
            engine.scale(torch.ones(2))


def test_what_builds_operators_has_something_in_its_place():
    assert penstock.ops.__compatible_ops__[AsyncIOBuilder.NAME]
    builder = CPUAdamBuilder()
    assert builder.is_compatible() and builder.builder() is builder
    assert builder.load() is importlib.import_module("penstock.ops.adam")


def test_a_class_that_is_lacking_can_be_mentioned_and_not_called():
    class Mine(MoE):
        pass

    assert not isinstance(torch.nn.Linear(1, 1), MoE)
    for kind in (MoE, Mine):
        with pytest.raises(penstock.ConfigError, match="penstock has no MoE: there is no expert"):
            kind(8, num_experts=2)


def test_marks_of_a_configuration_are_texts_each_once():
    config = DeepSpeedZeroLeafModuleConfig(names="a", name_suffixes=("b", "b", "c"))
    assert (config.names, config.name_suffixes) == (["a"], ["b", "c"])
    assert config.classes == DEFAULT_LEAF_MODULE_CLASSES
    assert len(config.classes) == 3


def test_a_configuration_marks_modules():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Tanh(), torch.nn.Linear(2, 2))
    marks = {"classes": ["Tanh", "Nowhere"], "names": ["2"], "name_suffixes": ["nowhere"]}
    engine, _ = start(model, zero={"leaf_module": marks})
    assert get_z3_leaf_modules(engine.module) == [model[1], model[2]]


def test_states_are_where_they_are_asked_to_be():
    engine, _ = start()
    engine.offload_states(include=[OffloadStateTypeEnum.optim_states], pin_memory=False)
    assert get_state_devices(engine, "lp_params") == {torch.device("cpu")}
    engine.reload_states()
    with pytest.raises(ValueError, match="no_state"):
        engine.offload_states(include=["no_state"])
    with pytest.raises(penstock.ConfigError, match="say what is in files"):
        engine.offload_states(device="nvme")


@pytest.mark.parametrize("in_a_file", [False, True])
def test_keys_of_stage_3_may_be_short(tmp_path, in_a_file):
    zero = {"stage": 3, "param_persistence_threshold": 3, "stage3_prefetch_bucket_size": 9}
    config = {"train_batch_size": 1, "zero_optimization": zero}
    if in_a_file:
        (tmp_path / "config.json").write_text(json.dumps(config))
    read = configuration.read(tmp_path / "config.json" if in_a_file else config)
    found = read.settings["zero_optimization"]
    assert found["stage3_param_persistence_threshold"] == 3
    assert found["stage3_prefetch_bucket_size"] == 9
    assert DeepSpeedZeroConfig(**zero).param_persistence_threshold == 3
    zero["stage3_param_persistence_threshold"] = 4  # Both are there.
    with pytest.raises(penstock.ConfigError, match='unknown key "param_persistence_threshold"'):
        configuration.read(config)


def test_nothing_is_said_of_cuda():
    info = penstock.git_version_info.torch_info
    assert info["cuda_version"] == "0.0"
    assert torch.__version__.startswith(info["version"])
