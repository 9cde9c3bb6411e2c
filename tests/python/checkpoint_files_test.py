"""The shards of a checkpoint by the safetensors package, and by what the manifest says of them."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

PENSTOCK = Path(os.environ["PENSTOCK_BUILD"]) / "bin" / "penstock"
CONFIG = {
    "train_batch_size": 8,
    "seed": 7,
    "model": {"layers": 2, "hidden": 32, "heads": 2, "sequence_length": 16},
    "mesh": {"pipe": 2, "data": 2},
    "zero_optimization": {"stage": 1},
    "bf16": {"enabled": True},
    "run": {"steps": 2, "sample_bytes": 0, "eval_batches": 1, "save": "weights"},
    "checkpoint": {"save_interval": 2},
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    (folder / "text").write_text("the wheel turns and the water runs slow. " * 500)
    config = {**CONFIG, "data": {"path": "text"}}
    (folder / "config.json").write_text(json.dumps(config))
    words = [str(PENSTOCK), "train", "config.json", "--run", "run"]
    foreign = ("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "PENSTOCK_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    subprocess.run(words, cwd=folder, env=kept, check=True, capture_output=True, timeout=120)
    return folder


def pieces_of(checkpoint):
    """The tensors of the run, put together from the shards by the keys of their pieces."""
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    count = len(manifest["shards"])
    shards = [
        load_file(checkpoint / f"shard-{i:05}-of-{count:05}.safetensors") for i in range(count)
    ]
    for tensor in manifest["tensors"]:
        flat = []
        key = tensor["name"] + ("" if tensor["state"] == "weight" else "/" + tensor["state"])
        for first, number, shard, _ in tensor["pieces"]:
            whole = len(tensor["pieces"]) == 1
            name = key if whole else f"{key}[{first}:{first + number}]"
            flat.append(shards[shard].pop(name).flatten())
        yield tensor, torch.cat(flat).view(tensor["shape"])
    assert all(not shard for shard in shards), "a shard has what the manifest does not"


def test_other_readers_find_every_tensor(run):
    weights = {}
    for shard in (run / "weights").glob("*.safetensors"):
        weights.update(load_file(shard))
    states = {}
    masters = {}
    for tensor, value in pieces_of(run / "run" / "checkpoints" / "step-00000002"):
        if tensor["state"] == "weight":
            masters[tensor["name"]] = value
        else:
            states.setdefault(tensor["name"], {})[tensor["state"]] = value
    assert masters.keys() == weights.keys()
    for name, master in masters.items():
        assert master.dtype == torch.float32
        assert torch.equal(master.to(torch.bfloat16), weights[name]), name
        assert states[name].keys() == {"step", "exp_avg", "exp_avg_sq"}
        assert states[name]["step"].item() == 2
        assert states[name]["exp_avg"].shape == master.shape
