"""The modules and names around engines that scripts for DeepSpeed import."""

import logging
import os
import subprocess
import sys
from itertools import pairwise

import pytest
import torch

import penstock
from penstock.accelerator import get_accelerator, is_current_accelerator_supported
from penstock.runtime import lr_schedules
from penstock.runtime.config import DeepSpeedConfig, DeepSpeedConfigError
from penstock.utils import (
    get_z3_leaf_modules,
    log_dist,
    logger,
    set_z3_leaf_modules,
    set_z3_leaf_modules_by_name,
    set_z3_leaf_modules_by_suffix,
    unset_z3_leaf_modules,
    z3_leaf_module,
    z3_leaf_parameter,
)

SCRIPT = """
import deepspeed
import deepspeed.comm as dist
from deepspeed import DeepSpeedEngine, PipelineModule, get_accelerator, logger
from deepspeed.accelerator import get_accelerator as again
from deepspeed.ops.adam import DeepSpeedCPUAdam, FusedAdam
from deepspeed.ops.lion import FusedLion
from deepspeed.runtime.activation_checkpointing import checkpointing
from deepspeed.runtime.config import DeepSpeedConfig
from deepspeed.runtime.engine import DeepSpeedEngine as the_same
from deepspeed.runtime.lr_schedules import ONE_CYCLE, WARMUP_NUM_STEPS, OneCycle
from deepspeed.runtime.pipe.topology import ProcessTopology
from deepspeed.runtime.zero.partition_parameters import ZeroParamStatus
from deepspeed.utils import RepeatingLoader, groups, safe_get_full_grad, set_z3_leaf_modules
from deepspeed.utils.zero_to_fp32 import load_state_dict_from_zero_checkpoint
from deepspeed.zero import GatheredParameters, Init, TiledLinear, unwrap_model_for_generation
import torch

assert deepspeed.__name__ == "penstock" and DeepSpeedEngine is the_same
assert (ONE_CYCLE, WARMUP_NUM_STEPS) == ("OneCycle", "warmup_num_steps")
assert deepspeed.checkpointing is checkpointing
deepspeed.init_distributed()
assert (dist.get_rank(), dist.get_world_size(), dist.get_local_rank()) == (0, 1, 0)
value = torch.ones(2)
dist.all_reduce(value, op=dist.ReduceOp.SUM, group=dist.get_world_group())
dist.barrier()
assert groups._get_data_parallel_world_size() == groups.get_model_parallel_world_size() == 1
engine, *_ = deepspeed.initialize(
    model=torch.nn.Linear(2, 2), config={"train_batch_size": 1, "optimizer": {"type": "Adam"}}
)
assert isinstance(engine, DeepSpeedEngine)
engine.backward(engine(value).sum())
print(safe_get_full_grad(engine.module.bias).tolist())
try:
    import deepspeed.inference
except ModuleNotFoundError as error:
    print(error)
try:
    deepspeed.init_inference
except AttributeError as error:
    print(error)
"""


def test_a_script_imports_what_it_is_used_to(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(
        [sys.executable, "-m", "penstock.swap", str(script)],
        capture_output=True, text=True, timeout=240, env=environment, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    gradient, absent, refused = ran.stdout.splitlines()
    assert gradient == "[1.0, 1.0]"
    assert absent.startswith("deepspeed.inference is not in penstock: engines train")
    assert refused.startswith("penstock has no init_inference: engines train")


def test_the_version_has_three_numbers():
    numbers = [penstock.__version_major__, penstock.__version_minor__, penstock.__version_patch__]
    assert penstock.__version__.split("+")[0] == ".".join(map(str, numbers))


def test_the_accelerator_is_the_cpu():
    cpu = get_accelerator()
    assert is_current_accelerator_supported()
    assert (cpu.device_name(), cpu.current_device_name(), cpu.device_count()) == ("cpu", "cpu", 1)
    cpu.set_device(0)
    cpu.synchronize()
    cpu.empty_cache()
    cpu.reset_peak_memory_stats()
    cpu.manual_seed(3)
    state = cpu.get_rng_state()
    first = torch.rand(2)
    cpu.set_rng_state(state)
    assert torch.equal(torch.rand(2), first)
    assert cpu.initial_seed() == 3
    assert 2**20 < cpu.memory_allocated() <= cpu.max_memory_allocated() < cpu.total_memory()
    assert 0 < cpu.available_memory() <= cpu.total_memory()
    assert torch.bfloat16 in cpu.supported_dtypes()
    assert (torch.half in cpu.supported_dtypes()) is cpu.is_fp16_supported()
    assert cpu.on_accelerator(first)
    assert not cpu.is_pinned(cpu.pin_memory(first))


def test_keys_of_courses_have_their_names_in_capitals():
    assert lr_schedules.CYCLE_FIRST_STEP_SIZE == "cycle_first_step_size"
    assert lr_schedules.WARMUP_LOG_RATE == "log"
    for name in lr_schedules.VALID_LR_SCHEDULES:
        assert getattr(lr_schedules, name).__name__ == name


def test_a_configuration_is_an_object():
    config = DeepSpeedConfig({"train_batch_size": 8, "gradient_accumulation_steps": 4})
    assert (config.train_batch_size, config.train_micro_batch_size_per_gpu) == (8, 2)
    assert config.gradient_accumulation_steps == 4
    with pytest.raises(AttributeError, match="has no 'fp16'"):
        config.fp16  # noqa: B018
    for wrong in ({"train_batch_size": 8, "gradient_accumulation_steps": 3}, {"optimizer": {}}):
        with pytest.raises(DeepSpeedConfigError):
            DeepSpeedConfig(wrong)


def test_log_dist_writes_to_the_log(caplog):
    with caplog.at_level(logging.INFO, logger="penstock"):
        log_dist("here", ranks=[0])
        log_dist("not here", ranks=[1])
        log_dist("everywhere", ranks=[-1], level=logging.WARNING)
    assert [each.message for each in caplog.records] == ["rank 0: here", "rank 0: everywhere"]
    assert logger.name == "penstock"


def test_leaf_modules_are_marked_by_class_and_name():
    model = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.Sequential(torch.nn.Tanh()))
    assert set_z3_leaf_modules(model, [torch.nn.Tanh]) == [model[1][0]]
    assert z3_leaf_module(model[1][0])
    assert not z3_leaf_module(model[0])
    assert not z3_leaf_parameter(model[0].weight)
    assert set_z3_leaf_modules(model, ["Linear", "torch.nn.modules.activation.Tanh"]) == [
        model[0], model[1][0],
    ]  # fmt: skip
    assert unset_z3_leaf_modules(model, ["Tanh"]) == [model[1][0]]
    assert get_z3_leaf_modules(model) == [model[0]]
    assert set_z3_leaf_modules_by_name(model, ["1.0", "2"]) == ([model[1][0]], ["2"])
    assert set_z3_leaf_modules_by_suffix(model, ["0"])[0] == [model[0], model[1][0]]
    with pytest.raises(ValueError, match="no module of class"):
        set_z3_leaf_modules(model, [torch.nn.ReLU])
    assert set_z3_leaf_modules(model, ["ReLU"], raise_if_not_found=False) == []
    with pytest.raises(ValueError, match="no module of name"):
        set_z3_leaf_modules_by_name(model, ["nowhere"])
    with pytest.raises(TypeError, match="neither a class"):
        set_z3_leaf_modules(model, [3])


def test_activations_are_computed_again():
    calls = []

    def layer(x, scale=1):
        calls.append(scale)
        return (x * scale).tanh()

    inputs = torch.ones(3, requires_grad=True)
    from penstock import checkpointing

    assert not checkpointing.is_configured()
    checkpointing.configure(None, partition_activations=True, contiguous_checkpointing=True)
    assert checkpointing.is_configured()
    checkpointing.checkpoint(layer, inputs, scale=2).sum().backward()
    assert calls == [2, 2]
    expected = torch.ones(3, requires_grad=True)
    layer(expected, 2).sum().backward()
    assert torch.equal(inputs.grad, expected.grad)
    checkpointing.reset()
    with pytest.raises(penstock.ConfigError, match="checkpoint_in_cpu must be False"):
        checkpointing.configure(None, checkpoint_in_cpu=True)


def test_groups_of_experts_are_refused():
    from penstock.utils import groups

    with pytest.raises(AttributeError, match="no expert parallelism"):
        groups._get_expert_parallel_group("ep_size_2")
    with pytest.raises(AttributeError):
        groups.nothing  # noqa: B018


def test_ranks_of_this_machine_are_counted_as_devices(monkeypatch):
    monkeypatch.setenv("LOCAL_SIZE", "4")
    assert get_accelerator().device_count() == 4


@pytest.mark.parametrize(("ins", "outs"), [(1, 1), (2, 3), (3, 2)])
def test_a_linear_layer_in_tiles_is_the_whole_one(ins, outs):
    torch.manual_seed(1)
    whole = torch.nn.Linear(7, 5)
    tiled = penstock.zero.TiledLinear(7, 5, in_splits=ins, out_splits=outs, init_linear=whole)
    x = torch.randn(4, 7)
    torch.testing.assert_close(tiled(x), whole(x))
    assert sum(each.numel() for each in tiled.parameters()) == 40
    for i, (first, end) in enumerate(pairwise(tiled.out_parts)):
        for j, (left, right) in enumerate(pairwise(tiled.in_parts)):
            assert torch.equal(tiled.linears[i][j].weight, whole.weight[first:end, left:right])
    apart = penstock.zero.TiledLinear(
        7, 5, in_splits=ins, out_splits=outs, init_linear=whole, combine_out_splits=False,
        input_is_already_split=True,
    )  # fmt: skip
    shares = apart(tiled._split(x))
    assert len(shares) == outs
    torch.testing.assert_close(torch.cat(shares, -1), whole(x))
    with pytest.raises(RuntimeError, match="in_splits is 8"):
        penstock.zero.TiledLinear(7, 5, in_splits=8)
