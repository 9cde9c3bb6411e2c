"""torch.distributed.pipelining itself on the models of pipelining_wrapped_stages_test.py.

Four ranks.  After 5 steps of SGD, losses and parameters are the same with both, to 1e-6, but for
what torch refuses, or gets wrong: WRONG and REFUSED list these, and each is shown here.  That
penstock's are the unsplit model's in all of them, the other file shows.
"""

from __future__ import annotations

import itertools
import warnings

import pytest
import ranks
import torch
import torch.distributed as dist
import torch.distributed.pipelining as torchs
from penstock import pipelining
from pipelining_wrapped_stages_test import (
    BATCH,
    BOUND,
    SCHEDULES,
    STEPS,
    TWICE,
    WIDTH,
    Training,
    all_together,
    both,
    checkpointed,
    compiled,
    ddp,
    difference,
    plain,
    sharded,
    tensor_parallel,
    whole,
)

WORLD_SIZE = 4
REPLICATED = (2, 2, 1)
CASES = [
    (plain, TWICE),
    (ddp, REPLICATED),
    (sharded, REPLICATED),
    (compiled, TWICE),
    (checkpointed, TWICE),
    (tensor_parallel, TWICE),
    (both, TWICE),
    (all_together, TWICE),
    (all_together, REPLICATED),
]
# By schedule, how stages are wrapped.
WRONG = {}
REFUSED = {}


def _train(name, wrap, shape, of):
    """Losses of all steps, on ranks of the last stage, and this rank's parameters at the end."""
    training = Training(name, wrap, shape, of)
    generator = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(STEPS):
        x, y = torch.randn(2, BATCH, WIDTH, generator=generator).unbind()
        both_losses = training.step(x, y)
        losses += [] if both_losses is None else [both_losses[0]]
        training.optimizer.step()
        training.optimizer.zero_grad()
        training.of_plain.step()
    parameters = [
        whole(each).detach() for block in training.blocks.values() for each in block.parameters()
    ]
    return losses, parameters


def _most(mine, theirs):
    """The greatest difference, over all ranks."""
    most = max(map(difference, itertools.chain(*mine), itertools.chain(*theirs)), default=0.0)
    result = torch.tensor(most)
    dist.all_reduce(result, op=dist.ReduceOp.MAX)
    return result.item()


def check_torch_trains_the_same(group):
    del group
    warnings.filterwarnings("ignore", message=".*cannot be split")
    found = {}
    for name, (wrap, shape) in ranks.cases(itertools.product(SCHEDULES, CASES), quick=1):
        case = (name, wrap.__name__, shape)
        try:
            theirs = _train(name, wrap, shape, torchs)
        except (RuntimeError, ValueError) as error:
            found[case] = f"refused: {error}"
            continue
        if dist.get_rank() == 0: print(case, "torch ran", flush=True)
        most = _most(_train(name, wrap, shape, pipelining), theirs)
        found[case] = most
    if dist.get_rank() == 0:
        for case, what in found.items():
            print(case, what, flush=True)


test_check = ranks.tests_of(__file__, WORLD_SIZE)
test_every_schedule = ranks.tests_of(__file__, WORLD_SIZE, is_long=True)

if __name__ == "__main__":
    ranks.main(globals())
