"""A subclass of PipelineModule has attributes of its own: num_layers, stages, schedule, topology.

The engine called methods of these names, which the subclass had hidden: making it crashed.
"""

from __future__ import annotations

import os
from pathlib import Path

import ranks
import torch
from torch.nn import functional

import penstock
from penstock.pipe import LayerSpec, PipelineModule, TiedLayerSpec

WORLD_SIZE = 2
WIDTH = 8
OWN = [
    *("num_layers", "stages", "tied_parameters", "tied_stages", "counted_parameters"),
    *("written_layers", "saved_layers", "layer_specs", "use_schedule", "schedule", "handlers"),
    *("stages_per_rank", "rank_of_stage", "partition_method", "topology"),
]


class Mine(PipelineModule):
    def __init__(self, *, names):
        for name in names[::2]:
            setattr(self, name, f"before {name}")
        tied = TiedLayerSpec("tied", torch.nn.Linear, WIDTH, WIDTH)
        specs = [tied, *(LayerSpec(torch.nn.Linear, WIDTH, WIDTH) for _ in range(3)), tied]
        super().__init__(specs, num_stages=2, loss_fn=functional.mse_loss)
        for name in names[1::2]:
            setattr(self, name, f"after {name}")


def losses_of(names, folder):
    torch.manual_seed(0)
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 2,
        "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
        "schedule": "zbv",
    }
    engine, _, _, _ = penstock.initialize(model=Mine(names=names), config=config)
    data = list(torch.randn(2, 2, 4, WIDTH, generator=torch.Generator().manual_seed(1)))
    losses = [engine.train_batch(iter([tuple(each) for each in data])).item() for _ in range(3)]
    engine.save_checkpoint(folder)
    engine.load_checkpoint(folder)
    losses.append(engine.train_batch(iter([tuple(each) for each in data])).item())
    return losses, engine.module


def check_names_of_a_subclass_are_its_own(group):
    del group
    folder = Path(os.environ["STORE"]).parent
    expected, _ = losses_of([], folder / "plain")
    for names in (OWN, OWN[1:]):
        found, module = losses_of(names, folder / f"named-{len(names)}")
        assert found == expected
        assert all(str(getattr(module, name)).endswith(name) for name in names)


test_check = ranks.tests_of(__file__, WORLD_SIZE)

if __name__ == "__main__":
    ranks.main(globals())
