"""After a layer that could not be made in zero.Init on one rank, the next engine failed as well.

A rank that was still on the way to its replicas heard of it there, and did not count this attempt:
its next one met what the others had left for this one.
"""

from __future__ import annotations

import time

import pytest
import ranks
import torch
import torch.distributed as dist
from pipe_models import MICROBATCHES, Block, batches, config, engine_of, language_model

import penstock
from penstock._engines.pipeline import pipeline_module
from penstock.pipe import LayerSpec, PipelineModule
from penstock.zero.partition_parameters import Init

WORLD_SIZE = 4


class Wrong(torch.nn.Module):
    def __init__(self):
        super().__init__()
        if dist.get_rank() == WORLD_SIZE - 1:
            raise ValueError("no such layer")


def check_the_next_engine_trains(group):
    del group
    connect = pipeline_module.connect

    def slowly(*arguments):
        communicator = connect(*arguments)
        if dist.get_rank() == 0:
            time.sleep(1)  # A rank that has less of the machine than the others.
        return communicator

    pipeline_module.connect = slowly
    with pytest.raises((ValueError, penstock.CommError), match="no such layer"):
        with Init():
            failed = PipelineModule([LayerSpec(Block), LayerSpec(Wrong)], num_stages=2)
        # Rank 2 has its part, unless it heard of it in time.
        penstock.initialize(model=failed, config=config(zero_optimization={"stage": 3}))
    pipeline_module.connect = connect
    engine = engine_of(language_model())
    assert engine.train_batch(batches(0, [5] * MICROBATCHES)).item() > 0


test_check = ranks.tests_of(__file__, WORLD_SIZE)

if __name__ == "__main__":
    ranks.main(globals())
