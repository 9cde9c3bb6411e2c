"""A thousand steps of everything that trains: they leave nothing behind.

Something that happens once, after many steps, may stay: a table that grows, a huge page.  A leak
comes again in the next thousand steps.
"""

from __future__ import annotations

import collections
import ctypes
import gc
import os
import sys
from pathlib import Path

import pipe_models
import ranks
import torch.distributed as dist
import zero_models
from models import Reference

from penstock.pipelining.schedules import Schedule1F1B, ScheduleZBVZeroBubble

WORLD_SIZE = 2
WARM_UP, STEPS, ROUNDS = 100, 1000, 5

# Of one type, one object in fifty steps is a leak already.
OBJECTS_MAX = STEPS // 50
MORE_MAX = {
    **dict.fromkeys(("Tensor", "Parameter", "ZeroParameter"), 0),
    # Of Python's memory: an object for each step would be 1,000; what comes once, 500.
    "blocks": STEPS // 2,
    # What Python does not know: the smallest tensor takes some 0.4 KiB, so one for each step would
    # be 400.
    "resident KiB": STEPS // 4,
}


def check_pipelining(group):
    for name, kind in (("1F1B", Schedule1F1B), ("ZBVZeroBubble", ScheduleZBVZeroBubble)):
        reference = Reference(group, name, d_hid=8, batch=8)
        schedule = reference.schedule(kind, n_microbatches=4)
        x, y = reference.data(0)
        _leaves_nothing(group, lambda r=reference, s=schedule, x=x, y=y: r.step(s, x, y))


def check_the_engine_of_pipelines(group):
    # With the rate of the other tests, the model diverges within these thousands of steps.
    slow = {"optimizer": {"type": "SGD", "params": {"lr": 0.001}}}
    engine = pipe_models.engine_of(pipe_models.language_model(), slow)
    data = list(pipe_models.batches(0, (5,) * pipe_models.MICROBATCHES))

    def step():
        engine.train_batch(iter(data))
        engine.eval_batch(iter(data))

    _leaves_nothing(group, step)


def check_the_engine_of_replicas(group):
    for stage in (0, 2, 3):
        engine, _ = zero_models.initialize(zero_models.mixed(), stage)
        _leaves_nothing(group, lambda e=engine: zero_models.train(e, 1))


def _leaves_nothing(group, step):
    _growth(step, WARM_UP)
    for _ in range(ROUNDS):
        growth = _growth(step, STEPS)
        leaks = {
            name: more for name, more in growth.items() if more > MORE_MAX.get(name, OBJECTS_MAX)
        }
        all_leaks = [None] * dist.get_world_size(group)
        dist.all_gather_object(all_leaks, leaks, group=group)  # All go on, or none.
        if not any(all_leaks):
            return
    raise AssertionError(all_leaks)


def _growth(step, count):
    """What there is more of after so many steps; to count objects takes memory, too."""
    gc.collect()
    objects = _objects()
    memory = _memory()
    for _ in range(count):
        step()
    gc.collect()
    more = _memory()
    more.subtract(memory)
    more.update(_objects())
    more.subtract(objects)
    return more


def _objects():
    """By the name of their type."""
    return collections.Counter(type(each).__name__ for each in gc.get_objects())


def _memory():
    ctypes.CDLL(None).malloc_trim(0)  # Gives back what is free, which would hide a leak.
    resident_pages = int(Path("/proc/self/statm").read_text().split()[1])
    kib = resident_pages * os.sysconf("SC_PAGE_SIZE") // 1024
    return collections.Counter({"blocks": sys.getallocatedblocks(), "resident KiB": kib})


test_check = ranks.tests_of(__file__, WORLD_SIZE, is_long=True)

if __name__ == "__main__":
    ranks.main(globals())
