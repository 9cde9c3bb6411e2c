"""penstock.checkpoint.save() and load(): stages, whole models and FSDP2's shards, each to each."""

from __future__ import annotations

import copy
import os
from pathlib import Path

import pytest
import ranks
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

import penstock
from penstock import checkpoint
from penstock.pipelining import PipelineStage

WORLD_SIZE = 2
WIDTH = 6


class Net(torch.nn.Module):
    def __init__(self, layers=4):
        super().__init__()
        kinds = [torch.nn.Linear(WIDTH, WIDTH), torch.nn.BatchNorm1d(WIDTH)] * (layers // 2)
        self.layers = torch.nn.ModuleDict(
            {str(i): copy.deepcopy(each) for i, each in enumerate(kinds)}
        )

    def forward(self, x):
        for each in self.layers.values():
            x = each(x).tanh()
        return x


def place(name):
    return Path(os.environ["STORE"]).with_name(name)


def trained(seed=0, make=torch.optim.AdamW):
    """A model, the same on all ranks, an optimizer of it, and what does a step."""
    torch.manual_seed(seed)
    model = Net()
    optimizer = make(model.parameters(), lr=0.05)

    def step(number):
        x = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(number))
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return model, optimizer, step


def stage_of(model, optimizer, rank):
    """This rank's half as a stage, with an optimizer that has its part of the states."""
    half = copy.copy(model)
    half._modules = {"layers": torch.nn.ModuleDict()}
    for name, each in model.layers.items():
        if int(name) // 2 == rank:
            half.layers[name] = each
    own = type(optimizer)(half.parameters(), lr=0.05)
    for each in half.parameters():
        if each in optimizer.state:
            own.state[each] = optimizer.state[each]
    return PipelineStage(half, rank, WORLD_SIZE, torch.device("cpu")), own


def state_of(model, optimizer):
    return (
        {name: each.tolist() for name, each in model.state_dict().items()},
        [{key: value.tolist() for key, value in of.items()} for of in optimizer.state.values()],
        [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups],
    )


def check_stages_and_whole_models(group):
    rank = group.rank()
    for number, make in enumerate([torch.optim.AdamW, torch.optim.NAdam]):
        model, optimizer, step = trained(make=make)
        for i in range(3):
            step(i)
        optimizer.param_groups[0]["lr"] = 0.03
        stage, own = stage_of(model, optimizer, rank)
        own.param_groups[0]["lr"] = 0.03
        folder = place(f"stages-{number}")
        assert checkpoint.save(folder, stage, own, step=3, values={"epoch": 2}) == folder
        sizes = [each.stat().st_size for each in sorted(folder.glob("shard-*"))]
        assert min(sizes) > max(sizes) / 3  # Each rank writes its own.
        other, of_other, step_other = trained(seed=5, make=make)
        found = checkpoint.load(folder, other, of_other)
        assert found == checkpoint.Loaded(3, {"epoch": 2})
        assert state_of(other, of_other) == state_of(model, optimizer)
        checkpoint.save(place(f"whole-{number}"), other, of_other, step=3)
        expected = state_of(stage.submod, own)
        step(3)
        step_other(3)
        assert state_of(other, of_other) == state_of(model, optimizer)
        again, of_again, _ = trained(seed=7, make=make)
        part, of_part = stage_of(again, of_again, rank)
        checkpoint.load(place(f"whole-{number}"), part, of_part)
        assert state_of(part.submod, of_part) == expected


def check_shards_of_fsdp(group):
    model, optimizer, step = trained()
    for i in range(3):
        step(i)
    checkpoint.save(place("for-fsdp"), model, optimizer, step=3)
    torch.manual_seed(9)
    sharded = Net()
    for each in sharded.layers.values():
        fully_shard(each)
    fully_shard(sharded)
    of_shards = torch.optim.AdamW(sharded.parameters(), lr=0.5)
    checkpoint.load(place("for-fsdp"), sharded, of_shards)
    for name, each in sharded.named_parameters():
        whole = model.get_parameter(name)
        assert torch.equal(each.full_tensor(), whole)
        for key in ("exp_avg", "exp_avg_sq"):
            average = of_shards.state[each][key].full_tensor()
            assert torch.equal(average, optimizer.state[whole][key])
    assert of_shards.param_groups[0]["lr"] == 0.05
    checkpoint.save(place("of-fsdp"), sharded, of_shards, step=3)
    again, of_again, _ = trained(seed=5)
    checkpoint.load(place("of-fsdp"), again, of_again)
    assert state_of(again, of_again) == state_of(model, optimizer)
    dist.barrier(group)


def check_what_does_not_fit(group):
    rank = group.rank()
    same_names = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH))
    stage = PipelineStage(same_names, rank, WORLD_SIZE, torch.device("cpu"))
    with pytest.raises(penstock.ConfigError, match='stages 0 and 1 have a tensor called "0'):
        checkpoint.save(place("same"), stage)
    assert not place("same").exists()
    checkpoint.save(place("prefix"), {f"stage{rank}.": stage})
    before = same_names[0].weight.tolist()
    with pytest.raises(penstock.Error, match=r"0.weight is missing"):
        checkpoint.load(place("prefix"), stage)
    with torch.no_grad():
        same_names[0].weight.zero_()
    checkpoint.load(place("prefix"), {f"stage{rank}.": stage})
    assert same_names[0].weight.tolist() == before
    model, _, _ = trained()
    optimizer = torch.optim.SGD(same_names.parameters(), lr=0.1)
    with pytest.raises(penstock.Error, match="that is in no stage of this rank"):
        checkpoint.save(place("foreign"), model, optimizer)
    with pytest.raises(penstock.Error, match="folder"):
        checkpoint.save(place(f"folder-{rank}"), model)


test_check = ranks.tests_of(__file__, WORLD_SIZE)

if __name__ == "__main__":
    ranks.main(globals())
