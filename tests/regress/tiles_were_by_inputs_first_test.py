"""TiledLinear had linears[input][output]: names in a state_dict() were not DeepSpeed's."""

import torch

import penstock


def test_tiles_are_by_outputs_first():
    tiled = penstock.zero.TiledLinear(6, 4, in_splits=3, out_splits=2)
    shapes = {name: tuple(each.shape) for name, each in tiled.state_dict().items()}
    assert shapes == {
        **{f"linears.{i}.{j}.weight": (2, 2) for i in range(2) for j in range(3)},
        **{f"linears.{i}.2.bias": (2,) for i in range(2)},
    }
    assert isinstance(tiled.linears[1][2], torch.nn.Linear)
