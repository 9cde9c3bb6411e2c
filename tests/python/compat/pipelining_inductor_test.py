"""Stages that torch's inductor has compiled, with whole and with split backwards.

It takes a C++ compiler and half a minute for its first graph, so all of this is the long tier's.
Fused kernels round in another order; the bound is that of wrapped_models.py.
"""

from __future__ import annotations

import functools
import shutil
import warnings

import pytest
import ranks
import torch
from wrapped_models import TWICE, all_together, trains_as_the_unsplit_model

WORLD_SIZE = 4
pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs g++")


def _compiled(block, mesh):
    return torch.compile(block)


def check_compiled_by_inductor(group):
    """1F1B has whole backwards, the others have halves: I runs all of a compiled graph."""
    del group
    names = ["1F1B", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*compiled graph cannot be split")
        trains_as_the_unsplit_model(_compiled, [TWICE], names)


def check_all_together_by_inductor(group):
    """As torchtitan has it."""
    del group
    wrap = functools.partial(all_together, backend="inductor")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*cannot be split")
        trains_as_the_unsplit_model(wrap, [TWICE, (2, 2, 1)], ["1F1B", "ZBVZeroBubble"])


test_every_schedule = ranks.tests_of(__file__, WORLD_SIZE, is_long=True)

if __name__ == "__main__":
    ranks.main(globals())
