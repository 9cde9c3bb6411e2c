"""Ctrl-C while ranks train a module under penstock.initialize was a segmentation fault.

While a forward runs, SIGINT is watched for; what C++ does inside it watched once more, took the
first watch's handler for the one before, and so called itself for ever.
"""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest
import ranks
import torch
import torch.distributed as dist

import penstock

WORLD_SIZE = 2


class Slow(torch.nn.Module):
    """Sleeps in its forward where it is told to, after a parameter has been used."""

    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
        self.seconds = 0.0

    def forward(self, x):
        x = self.first(x)
        time.sleep(self.seconds)
        return self.second(x)


def engine_of(module):
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
        "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
    }
    return penstock.initialize(model=module, config=config)[0]


def check_ctrl_c_in_a_forward(group):
    torch.manual_seed(0)
    engine = engine_of(Slow())
    x = torch.ones(2, 4)
    engine(x)
    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Rank 1 waits for a parameter of rank 0, inside its own forward.
    if dist.get_rank(group) == 0:
        engine.module.seconds = 5.0
    else:
        threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
    start = time.monotonic()
    with pytest.raises((KeyboardInterrupt, penstock.CommError)) as caught:
        for _ in range(100):
            engine.backward(engine(x).sum())
            engine.step()
    assert time.monotonic() - start < 20
    if dist.get_rank(group) == 1:
        assert isinstance(caught.value, KeyboardInterrupt)
    else:
        assert "rank 1 was interrupted" in str(caught.value)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, before)
    # What handled the signal before handles it again: a rank is interrupted, and no more.
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


test_check = ranks.tests_of(__file__, WORLD_SIZE)

if __name__ == "__main__":
    ranks.main(globals())
