"""`steps_per_print: float("inf")`, which accelerate puts into its dict, was an error that named no
key, and so was NaN; numpy's numbers, enums and paths became their repr().  Where a string belongs,
lists, numbers and dicts became their JSON.

Each value of a dict is taken as what it stands for, or refused with its key.
"""

import enum
import os
import subprocess
from pathlib import Path
from types import MappingProxyType, SimpleNamespace

import numpy as np
import pytest
import torch

import penstock
from penstock.configuration import read

INF = float("inf")


class Kind(enum.Enum):
    ADAM = "AdamW"
    STAGE = 2


class Word(str, enum.Enum):
    CPU = "cpu"


def value_of(path, value):
    values = {"train_batch_size": 4}
    *sections, key = path.split(".")
    inner = values
    for section in sections:
        inner = inner.setdefault(section, {})
    inner[key] = value
    found = read(values)
    for each in path.split("."):
        found = found[each]
    return found


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("steps_per_print", INF, "Infinity"),
        ("steps_per_print", np.float32("inf"), "Infinity"),
        ("steps_per_print", 10**400, "Infinity"),
        ("steps_per_print", np.int64(7), 7),
        ("train_batch_size", np.int32(8), 8),
        ("train_batch_size", 8.0, 8.0),
        ("train_batch_size", torch.tensor(8), 8),
        ("gradient_clipping", np.float64(0.5), 0.5),
        ("gradient_clipping", np.array(0.5), 0.5),
        ("gradient_clipping", torch.tensor(0.5), 0.5),
        ("bf16.enabled", np.bool_(True), True),
        ("zero_optimization.stage", Kind.STAGE, 2),
        ("zero_optimization.reduce_bucket_size", np.float64(5e8), 5e8),
        ("zero_optimization.stage3_max_live_parameters", (1 << 50), 1 << 50),
        ("zero_optimization.offload_optimizer.device", Word.CPU, "cpu"),
        ("zero_optimization.offload_optimizer.device", torch.device("cpu"), "cpu"),
        ("zero_optimization.offload_param.nvme_path", Path("/fast"), "/fast"),
        ("data_types.param_dtype", torch.float32, "fp32"),
        ("torch_autocast.dtype", torch.bfloat16, "bf16"),
        ("zero_optimization.leaf_module.classes", [torch.nn.Linear],
         ["torch.nn.modules.linear.Linear"]),
        ("optimizer.type", Kind.ADAM, "AdamW"),
        ("optimizer", MappingProxyType({"type": "SGD", "params": {"lr": np.float32(0.5)}}),
         {"type": "SGD", "params": {"lr": 0.5}}),
        ("optimizer", {"type": "AdamW", "params": {"betas": (0.5, 0.75)}},
         {"type": "AdamW", "params": {"betas": [0.5, 0.75]}}),
        ("optimizer", {"type": "AdamW", "params": {"betas": np.array([0.5, 0.75])}},
         {"type": "AdamW", "params": {"betas": [0.5, 0.75]}}),
    ],
)  # fmt: skip
def test_is_taken_as_what_it_stands_for(path, value, expected):
    found = value_of(path, value)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("steps_per_print", float("nan"), 'steps_per_print: expected "Infinity" or an integer'),
        ("steps_per_print", -INF, 'steps_per_print: expected "Infinity" or an integer'),
        ("gradient_clipping", INF, 'gradient_clipping: expected a number, found "Infinity"'),
        ("gradient_clipping", np.float64("nan"),
         'gradient_clipping: expected a number, found "NaN"'),
        ("fp16.loss_scale", float("nan"), 'fp16.loss_scale: expected a number, found "NaN"'),
        ("train_batch_size", True, "train_batch_size: expected an integer, found true"),
        ("train_batch_size", 10**30, "train_batch_size = 1e+30: must be in [1, 1073741824]"),
        ("bf16.enabled", 1, "bf16.enabled: expected true or false, found 1"),
        ("bf16.enabled", "true", 'bf16.enabled: expected true or false, found "true"'),
        ("csv_monitor.job_name", {"a": 1},
         "csv_monitor.job_name: expected a string, found an object"),
        ("wandb.project", [3], "wandb.project: expected a string, found a list"),
        ("tensorboard.output_path", 3, "tensorboard.output_path: expected a string, found 3"),
        ("schedule.name", ["1f1b"], "schedule.name: expected a string"),
        ("zero_optimization.stage", torch.ones(2), "zero_optimization.stage: expected an integer"),
        ("zero_optimization.stage", SimpleNamespace(),
         "zero_optimization.stage: a SimpleNamespace"),
        ("data_types.param_dtype", torch.bfloat16, 'data_types.param_dtype = "bf16": a model is'),
        ("optimizer", {"type": "SGD", "params": {"lr": object()}}, "optimizer.params.lr: a object"),
        ("optimizer", {"type": "SGD", "params": {3: 1}}, "optimizer.params: the key 3 is no text"),
        ("optimizer", {"type": "LambdaLR", "params": {"f": lambda step: 1}},
         "optimizer.params.f: a function stands for no value of JSON"),
        ("optimizer.params", [("lr", 1)], "optimizer.params: expected an object, found a list"),
        ("zero_optimization.leaf_module.names", [b"x"],
         "zero_optimization.leaf_module.names[0]: a bytes"),
    ],
)  # fmt: skip
def test_is_refused_with_its_key(path, value, words):
    with pytest.raises(penstock.ConfigError) as caught:
        value_of(path, value)
    assert str(caught.value).startswith(f"config: {words}"), caught.value


def test_all_that_stand_for_nothing_are_said():
    with pytest.raises(penstock.ConfigError) as caught:
        read({"bf16": object(), "fp16": {"enabled": object()}})
    assert [line.split(":")[1:2] for line in str(caught.value).splitlines()] == [
        [" bf16"],
        [" config"],
    ]
    assert "fp16.enabled" in str(caught.value)


def test_a_dict_within_itself_ends():
    endless = {}
    endless["aio"] = endless
    with pytest.raises(penstock.ConfigError, match="nested deeper than"):
        read(endless)


def test_infinitely_many_steps_print_nothing_in_a_run(caplog):
    caplog.set_level("INFO", logger="penstock")
    for every, lines in ((INF, 0), (2, 1)):
        caplog.clear()
        engine = penstock.initialize(
            model=torch.nn.Linear(2, 2),
            config={
                "train_batch_size": 2,
                "steps_per_print": every,
                "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
            },
        )[0]
        for _ in range(3):
            engine.backward(engine(torch.ones(2, 2)).sum())
            engine.step()
        assert len([each for each in caplog.messages if each.startswith("step ")]) == lines


def test_penstock_train_takes_infinity_by_its_name(tmp_path):
    file = tmp_path / "c.json"
    file.write_text('{"train_batch_size": 4, "steps_per_print": "Infinity"}')
    program = Path(os.environ["PENSTOCK_BUILD"], "bin", "penstock")
    command = [program, "config", "check", "--for", "train", str(file)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
