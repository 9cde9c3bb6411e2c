"""A stage, or its module, that was replaced between steps was not run; nobody was told."""

from __future__ import annotations

import copy

import pytest
import ranks
from models import Reference

import penstock
from penstock.pipelining.schedules import Schedule1F1B

WORLD_SIZE = 2
MICROBATCHES = 4


def _replaced_module(reference, schedule):
    schedule._stage.submod = copy.deepcopy(schedule._stage.submod)


def _replaced_stage(reference, schedule):
    (schedule._stage,) = reference.stages()
    _replaced_module(reference, schedule)


def check_one_that_is_replaced_is_told(group):
    for replaced in (_replaced_module, _replaced_stage):
        reference = Reference(group, "1F1B")
        schedule = reference.schedule(Schedule1F1B, MICROBATCHES)
        x, y = reference.data(0)
        reference.step(schedule, x, y)
        if group.rank() == 1:
            replaced(reference, schedule)
        with pytest.raises(penstock.Error, match="stage 1 has another module than in the first"):
            reference.step(schedule, x, y)


test_check = ranks.tests_of(__file__, WORLD_SIZE)

if __name__ == "__main__":
    ranks.main(globals())
