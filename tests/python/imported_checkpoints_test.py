"""Checkpoints that DeepSpeed and torch.distributed.checkpoint have written, taken up by engines."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict

import penstock
from penstock.checkpoint.importing import main
from penstock.utils.zero_to_fp32 import (
    convert_zero_checkpoint_to_fp32_state_dict,
    get_fp32_state_dict_from_zero_checkpoint,
    load_state_dict_from_zero_checkpoint,
)

TESTS = Path(__file__).parents[1]
RECORDED = TESTS / "parity/deepspeed_checkpoints.tar.xz"
KINDS = ["zero1", "zero3", "pipe0", "pipe1"]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("deepspeed")
    with tarfile.open(RECORDED) as archive:
        archive.extractall(folder)  # Which this project has written.
    return folder


def test_deepspeeds_runs_go_on_to_the_same_losses(recorded, tmp_path):
    """All of them by the same two ranks, one after another."""
    ranks = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--rdzv-backend", "c10d"]
    program = ["--rdzv-endpoint", "127.0.0.1:0", str(TESTS / "parity/trains.py"), "penstock"]
    words = []
    for kind in KINDS:
        assert main([str(recorded / kind), str(tmp_path / kind)]) == 0
        words += [kind, str(recorded / kind), str(tmp_path / kind)]
    done = subprocess.run(
        [sys.executable, *ranks, *program, *words],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for kind in KINDS:
        for rank in (0, 1):
            different = float((tmp_path / kind / f"different{rank}").read_text())
            assert different <= 1e-6, kind


def test_masters_and_moments_are_deepspeeds(recorded, tmp_path):
    """Of ZeRO 3, by hand: replicas have equal shares of each parameter, the last one filled up."""
    main([str(recorded / "zero3"), str(tmp_path / "imported")])
    found = get_fp32_state_dict_from_zero_checkpoint(tmp_path / "imported")
    names = {f"deepspeed.runtime.{each}" for each in ("fp16.loss_scaler.LossScaler",)}
    names.add("deepspeed.runtime.zero.config.ZeroStageEnum")
    stand_ins = [(type("StandIn", (), {"__init__": lambda *_: None}), each) for each in names]
    flats = []
    for rank in (0, 1):
        path = recorded / f"zero3/global_step3/zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"
        with torch.serialization.safe_globals(stand_ins):
            state = torch.load(path, weights_only=True)["optimizer_state_dict"]
        flats.append(state["fp32_flat_groups"][0])
    first = (11 * 16 + 1) // 2  # emb.weight is the first parameter.
    expected = torch.cat([each[:first] for each in flats])[: 11 * 16].view(11, 16)
    assert torch.equal(found["emb.weight"], expected)
    assert torch.equal(found["head.weight"], expected)
    assert found["norm.running_mean"].shape == (16,)


@pytest.mark.parametrize(
    ("kind", "file"),
    [
        ("pipe1", "zero_pp_rank_0_mp_rank_00_optim_states.pt"),
        ("pipe1", "zero_pp_rank_0_mp_rank_01_optim_states.pt"),
        ("zero1", "zero_pp_rank_1_mp_rank_00_optim_states.pt"),
        ("zero3", "zero_pp_rank_1_mp_rank_00_model_states.pt"),
        ("pipe0", "mp_rank_01_model_states.pt"),
        ("pipe0", "mp_rank_00_model_states.pt"),
    ],
)
def test_a_file_that_is_missing_is_named(recorded, tmp_path, capsys, kind, file):
    shutil.copytree(recorded / kind, tmp_path / kind)
    (tmp_path / kind / "global_step3" / file).unlink()
    assert main([str(tmp_path / kind), str(tmp_path / "into")]) == 3
    said = capsys.readouterr().err
    assert file in said or "model states of" in said
    assert not (tmp_path / "into").exists()


def test_experts_and_tensor_parallel_parts_are_refused(recorded, tmp_path, capsys):
    for name in (
        "layer_0_expert_0_mp_rank_00_model_states.pt",
        "layer_00-model_00-model_states.pt",
    ):
        folder = tmp_path / name
        shutil.copytree(recorded / "pipe1/global_step3", folder)
        (folder / name).write_bytes(b"")
        assert main([str(folder), str(tmp_path / "into")]) == 3
        assert "which are not read" in capsys.readouterr().err
    mine = tmp_path / "mine"
    mine.mkdir()
    assert main([str(recorded / "zero1"), str(mine)]) == 2
    assert "is there already" in capsys.readouterr().err


def test_metadata_cannot_reach_other_modules(tmp_path, capsys):
    """A dotted name behind an allowed module: it ran any command."""
    module = "torch.distributed.checkpoint.filesystem"
    folder = tmp_path / "dcp"
    folder.mkdir()
    victim = tmp_path / "victim"
    victim.write_text("precious")
    texts = [text.encode() for text in (module, "io.FileIO", str(victim), "w")]
    short = [b"\x8c" + bytes([len(text)]) + text for text in texts]
    # STACK_GLOBAL of module and name, a tuple of two, REDUCE, STOP.
    program = b"\x80\x04" + short[0] + short[1] + b"\x93" + short[2] + short[3] + b"\x86R."
    (folder / ".metadata").write_bytes(program)
    assert main([str(folder), str(tmp_path / "into")]) == 3
    assert "io.FileIO, which is not loaded" in capsys.readouterr().err
    short = [b"\x8c" + bytes([len(text)]) + text for text in (b"builtins", b"getattr", b"str")]
    # getattr(str, "format"), of which Python 3.11.2 makes members of enums.
    program = b"\x80\x04" + short[0] + short[1] + b"\x93" + short[0] + short[2] + b"\x93"
    (folder / ".metadata").write_bytes(program + b"\x8c\x06format\x86R.")
    assert main([str(folder), str(tmp_path / "into")]) == 3
    assert "asks for the attribute 'format'" in capsys.readouterr().err
    assert victim.read_text() == "precious"


def test_damaged_and_foreign_ones_are_refused(recorded, tmp_path, capsys):
    assert main([str(tmp_path / "none"), str(tmp_path / "into")]) == 2
    assert main([str(tmp_path), str(tmp_path / "into")]) == 2
    assert "is no checkpoint of DeepSpeed" in capsys.readouterr().err

    class Harmful:
        def __reduce__(self):
            return os.system, (f"touch {tmp_path / 'harm'}",)

    folder = tmp_path / "harmful"
    folder.mkdir()
    torch.save({"module": Harmful()}, folder / "mp_rank_00_model_states.pt")
    assert main([str(folder), str(tmp_path / "into")]) == 3
    assert "asks for posix.system, which is not loaded" in capsys.readouterr().err
    (folder / "mp_rank_00_model_states.pt").unlink()
    (folder / ".metadata").write_bytes(pickle.dumps(Harmful()))
    assert main([str(folder), str(tmp_path / "into")]) == 3
    assert "asks for posix.system, which is not loaded" in capsys.readouterr().err
    (folder / ".metadata").unlink()
    cut = recorded / "zero1/global_step3/mp_rank_00_model_states.pt"
    (folder / cut.name).write_bytes(cut.read_bytes()[:1000])
    assert main([str(folder), str(tmp_path / "into")]) == 3
    assert "cannot be read" in capsys.readouterr().err
    assert not (tmp_path / "harm").exists() and not (tmp_path / "into").exists()


def trained():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 7), torch.nn.Tanh(), torch.nn.Linear(7, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(3):
        model(torch.randn(8, 6)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


@pytest.mark.parametrize("is_flat", [False, True])
def test_folders_of_torch_distributed_checkpoint(tmp_path, is_flat):
    model, optimizer = trained()
    options = StateDictOptions(flatten_optimizer_state_dict=is_flat)
    weights, states = get_state_dict(model, optimizer, options=options)
    state = {"model": weights, "optimizer": states, "step": 3, "note": "mine"}
    dcp.save(state, checkpoint_id=tmp_path / "dcp", no_dist=True)
    assert main([str(tmp_path / "dcp"), str(tmp_path / "tags" / "imported")]) == 0
    config = {
        "train_batch_size": 8,
        "optimizer": {"type": "AdamW", "params": {"lr": 0.5}},
        "zero_optimization": {"stage": 2},
    }
    fresh, _ = trained()
    engine, *_ = penstock.initialize(model=fresh, config=config)
    _, client_state = engine.load_checkpoint(tmp_path / "tags", tag="imported")
    assert client_state == {"step": 3, "note": "mine"} and engine.global_steps == 3
    assert engine.get_lr() == [0.01]
    for name, each in fresh.named_parameters():
        assert torch.equal(each, model.get_parameter(name))
    x = torch.randn(8, 6)
    engine.backward(engine(x).square().mean())
    engine.step()
    model(x).square().mean().backward()
    optimizer.step()
    for name, each in fresh.named_parameters():
        assert torch.equal(each, model.get_parameter(name)), name


def test_whole_weights_of_an_engine(tmp_path):
    model, _ = trained()
    model.append(torch.nn.Linear(3, 3, bias=False))
    model.append(torch.nn.Linear(3, 3, bias=False))
    model[4].weight = model[3].weight
    config = {"train_batch_size": 1, "bf16": {"enabled": True}, "zero_optimization": {"stage": 2}}
    config["optimizer"] = {"type": "Adam", "params": {"lr": 1e-4}}
    engine, *_ = penstock.initialize(model=model, config=config)
    engine.backward(engine(torch.randn(4, 6).bfloat16()).float().square().mean())
    engine.step()
    engine.save_checkpoint(tmp_path)
    found = get_fp32_state_dict_from_zero_checkpoint(tmp_path)
    assert found.keys() == model.state_dict().keys()
    masters = dict(zip(dict(model.named_parameters()), engine._update.masters, strict=True))
    for name, master in masters.items():
        assert torch.equal(found[name].flatten(), master.flatten()), name
    convert_zero_checkpoint_to_fp32_state_dict(tmp_path, tmp_path / "out", max_shard_size=150)
    files = sorted(each.name for each in (tmp_path / "out").iterdir())
    assert files[-1] == "model.safetensors.index.json" and len(files) > 2
    shards = {}
    for each in files[:-1]:
        shards.update(load_file(tmp_path / "out" / each))
    assert shards.keys() == found.keys() - {"4.weight"}  # It is 3.weight.
    assert all(torch.equal(shards[name], found[name]) for name in shards)
    convert_zero_checkpoint_to_fp32_state_dict(tmp_path, tmp_path / "one.bin")
    assert torch.load(tmp_path / "one.bin").keys() == found.keys()
    other, _ = trained()
    load_state_dict_from_zero_checkpoint(other, tmp_path)
    assert torch.equal(other[0].weight, found["0.weight"])
