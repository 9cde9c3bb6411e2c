"""penstock.schedule.search: what it finds verifies, is as fast as it says, and is found again."""

import os
import signal
import threading

import pytest

from penstock.errors import ConfigError, Error
from penstock.schedule import generate, search, simulate, verify

SIZES = {"ranks": 2, "microbatches": 4}
COSTS = {"forward": 1.0, "input": 1.2, "weight": 0.8, "latency": 0.05}


def test_what_is_found_verifies_and_takes_its_makespan():
    found = search(**SIZES, **COSTS, stages_per_rank=[1], rounds=20)
    assert verify(found.schedule)
    simulation = simulate(found.schedule, **COSTS)
    assert simulation.makespan == found.makespan == found.simulation.makespan
    assert found.lower_bound <= found.makespan
    assert found.makespan <= simulate(generate("zb_h1", **SIZES), **COSTS).makespan
    assert found.gap == pytest.approx(found.makespan / found.lower_bound - 1, abs=1e-9)
    assert (found.stages_per_rank, found.placement) == (1, "loop")


def test_the_same_rounds_and_seed_give_the_same_schedule():
    first, second = (search(**SIZES, **COSTS, rounds=5, seed=3) for _ in range(2))
    assert str(first.schedule) == str(second.schedule)
    assert first.rounds <= 5


def test_memory_is_kept():
    found = search(**SIZES, **COSTS, stages_per_rank=[1], memory_max=2, rounds=5)
    assert max(rank.peak_memory for rank in found.simulation.ranks) <= 2
    assert verify(found.schedule, memory_max=2)


def test_too_little_memory_is_an_error_that_says_what_would_do():
    with pytest.raises(Error, match="memory"):
        search(**SIZES, memory_max=0.25, rounds=1)


def test_bad_arguments_are_named():
    with pytest.raises(ConfigError, match="placements has 'ring', must be some of loop, v, any"):
        search(**SIZES, placements=["ring"])
    with pytest.raises(ValueError, match="seconds is -1"):
        search(**SIZES, seconds=-1)
    with pytest.raises(ValueError, match="forward"):
        search(**SIZES, forward=[1.0, 2.0, 3.0], stages_per_rank=[1], rounds=1)


def test_an_interrupt_ends_a_search():
    timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        timer.start()
        # No search finds what is its bound here.
        search(ranks=8, microbatches=16, **COSTS, memory_max=8, seconds=60)
