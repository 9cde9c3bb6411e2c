"""Scripts copy and save an engine's module, or a part of it, as they do with a plain module."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import ranks
import torch
import torch.distributed as dist
import zero_models
from safetensors.torch import load, save

import penstock

WORLD_SIZE = 2
HEAD_BYTES = 130 * 4


def model_of():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(64, 256), torch.nn.Tanh(), torch.nn.Linear(256, 64), torch.nn.Linear(64, 2)
    )


def engine_of(stage, **options):
    config = zero_models.config(stage, **options)
    config["zero_optimization"]["reduce_bucket_size"] = 100_000
    return penstock.initialize(model=model_of(), config=config)[0]


def step(engine):
    inputs = torch.ones(4, 64, dtype=next(engine.module.parameters()).dtype)
    engine.backward(engine(inputs).float().square().mean())
    engine.step()


def bytes_of(value):
    file = io.BytesIO()
    torch.save(value, file)
    return file.getbuffer().nbytes


def values_of(module):
    return [each.detach().clone() for each in module.parameters()]


def expect_equal(module, values):
    for mine, want in zip(module.parameters(), values, strict=True):
        assert torch.equal(mine, want)


def engines():
    for stage in (0, 1, 2):
        yield engine_of(stage)
    yield engine_of(2, bf16={"enabled": True})


def check_files_are_no_larger_than_what_is_in_them(group):
    del group
    for engine in engines():
        step(engine)
        head = engine.module[3]
        most = bytes_of(model_of()[3].state_dict())
        assert bytes_of(head.state_dict()) <= most
        assert bytes_of(head) <= bytes_of(model_of()[3]) + 200
        assert bytes_of(head.weight) <= bytes_of(model_of()[3].weight)
        assert len(pickle.dumps(head)) < 4 * HEAD_BYTES + 1000
        for each in engine.module.parameters():
            assert each.untyped_storage().nbytes() == each.numel() * each.element_size()


def check_values_come_back(group):
    rank = dist.get_rank(group)
    for engine in engines():
        step(engine)
        values = values_of(engine.module)
        if rank == 0:  # Nothing here is for all ranks.
            expect_equal(pickle.loads(pickle.dumps(engine.module)), values)
            file = io.BytesIO()
            torch.save(engine.module.state_dict(), file)
            file.seek(0)
            state = engine.module.state_dict()
            for read in (torch.load(file), load(save(state))):
                assert read.keys() == state.keys()
                assert all(torch.equal(each, state[name]) for name, each in read.items())


def check_copies_are_apart(group):
    del group
    for engine in engines():
        average = torch.optim.swa_utils.AveragedModel(engine.module)
        for _ in range(2):
            step(engine)
            average.update_parameters(engine.module)
        values, twin = values_of(engine.module), copy.deepcopy(engine.module)
        with torch.no_grad():
            for each in twin.parameters():
                each.add_(1)
        expect_equal(engine.module, values)
        step(engine)
        with pytest.raises(AssertionError):
            expect_equal(engine.module, values)
        assert int(average.n_averaged) == 2


def check_a_state_dict_is_still_the_module(group):
    """As of a plain module: its tensors are views of the parameters, which follow the steps."""
    del group
    for engine in engines():
        state = engine.module.state_dict()
        step(engine)
        expect_equal(engine.module, state.values())


test_check = ranks.tests_of(__file__, WORLD_SIZE)

if __name__ == "__main__":
    ranks.main(globals())
