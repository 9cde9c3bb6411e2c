"""Keys that can have no effect were taken without a word; a start says them once, on rank 0, by
the words of `config check` (tests/regress/plan/keys_without_effect_test.cpp has the rule).
"""

import json
import os
import subprocess
from pathlib import Path

import torch

import penstock
from penstock.pipe import PipelineModule

CONFIG = {
    "train_batch_size": 2,
    "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
    "schedule": "gpipe",
    "pipeline": {"activation_checkpoint_interval": 1},
    "fp16": {"loss_scale": 8},
}
OF_FP16 = "fp16.loss_scale has no effect: fp16.enabled is false; it needs fp16.enabled = true"


def warnings_of(caplog, model, **arguments):
    caplog.clear()
    penstock.initialize(model=model, config=CONFIG, **arguments)
    return [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]


def test_initialize_of_a_module_says_the_keys_of_pipelines(caplog):
    lines = warnings_of(caplog, torch.nn.Linear(2, 2))
    assert lines == [
        "config: pipeline.activation_checkpoint_interval and schedule.name have no effect: the "
        "model is no PipelineModule; they need a model that is a PipelineModule",
        f"config: {OF_FP16}",
    ]


def test_initialize_of_a_pipeline_does_not(caplog):
    layers = [torch.nn.Linear(2, 2)]
    model = PipelineModule(layers, num_stages=1, loss_fn=torch.nn.functional.mse_loss)
    assert warnings_of(caplog, model) == [f"config: {OF_FP16}"]


def test_layers_that_match_nothing_are_told(caplog):
    def lines_of(**arguments):
        loss = torch.nn.functional.mse_loss
        model = PipelineModule([torch.nn.Linear(2, 2)], num_stages=1, loss_fn=loss, **arguments)
        return [each for each in warnings_of(caplog, model) if "checkpointable" in each]

    assert lines_of(checkpointable_layers=["Linear"]) == []
    assert lines_of(checkpointable_layers=["Block"]) == [
        "checkpointable_layers has no effect: no layer is of Block; it needs one of Linear"
    ]


def test_an_optimizer_that_is_given_takes_the_effect_of_the_section(caplog):
    model = torch.nn.Linear(2, 2)
    lines = warnings_of(caplog, model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    assert any(
        line.startswith("config: optimizer.type and optimizer.params.lr have no effect: initialize")
        for line in lines
    )


def test_penstock_train_says_each_once(tmp_path):
    (tmp_path / "text").write_text("all work and no play " * 200)
    file = tmp_path / "c.json"
    config = {
        "train_batch_size": 8,
        "mesh": {"pipe": 2},
        "model": {"type": "mlp", "layers": 2, "hidden": 8, "sequence_length": 8},
        "data": {"path": str(tmp_path / "text")},
        "fp16": {"loss_scale": 8},
        "zero_optimization": {"offload_optimizer": {"nvme_path": "/no/folder"}},
        "launch": {"transport": "shm"},
        "run": {"steps": 1, "eval_batches": 1, "sample_bytes": 0, "directory": str(tmp_path / "r")},
    }
    file.write_text(json.dumps(config))
    program = Path(os.environ["PENSTOCK_BUILD"], "bin", "penstock")
    command = [program, "train", str(file)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert result.returncode == 0, result.stderr
    lines = [each for each in result.stderr.splitlines() if "warning" in each]
    assert len(lines) == 2, result.stderr
    assert "zero_optimization.offload_optimizer.nvme_path has no effect: " in lines[0]
    assert lines[1].endswith(OF_FP16)
    assert lines[1].startswith(f"penstock: warning: {file}:1:")
