"""Libraries set a schedule's loss between steps; it went on with the one of the first step.

They also replace the stage of a schedule that has one, take the loss away for a while, and clear
what stages keep, which is nothing.
"""

from __future__ import annotations

import ranks
import torch
from models import Reference

from penstock.pipelining.schedules import Schedule1F1B, ScheduleInterleaved1F1B

WORLD_SIZE = 2
MICROBATCHES = 4


def check_a_loss_may_be_replaced(group):
    for name, kind in (("1F1B", Schedule1F1B), ("Interleaved1F1B", ScheduleInterleaved1F1B)):
        reference = Reference(group, name)
        schedule = reference.schedule(kind, MICROBATCHES)
        for reduction in ("sum", "mean", "sum"):
            reference.drop_gradients()
            reference.loss = torch.nn.MSELoss(reduction=reduction)
            schedule._loss_fn = reference.loss
            x, y = reference.data(0)
            _, losses = reference.step(schedule, x, y)
            _, expected = reference.plain_step(x, y)
            reference.compare_gradients()
            if reference.is_last:
                total = torch.stack(losses).sum() / (1 if reduction == "sum" else MICROBATCHES)
                torch.testing.assert_close(total, expected)


def check_a_loss_may_be_away(group):
    reference = Reference(group, "1F1B")
    schedule = reference.schedule(Schedule1F1B, MICROBATCHES)
    x, y = reference.data(0)
    reference.step(schedule, x, y)
    loss_fn, has_backward = schedule._loss_fn, schedule._has_backward
    schedule._loss_fn, schedule._has_backward = None, False
    output = schedule.step(*reference.inputs(x))
    schedule._loss_fn, schedule._has_backward = loss_fn, has_backward
    plain, _ = reference.plain_step(x, y)
    if reference.is_last:
        torch.testing.assert_close(output, plain)
    schedule._stage.clear_runtime_states()
    reference.drop_gradients()
    reference.step(schedule, x, y)
    reference.plain_step(x, y)
    reference.compare_gradients()


def check_a_stage_may_be_replaced(group):
    reference, other = Reference(group, "1F1B"), Reference(group, "1F1B")
    schedule = reference.schedule(Schedule1F1B, MICROBATCHES)
    (schedule._stage,) = other.stages()
    x, y = other.data(0)
    other.step(schedule, x, y)
    other.plain_step(x, y)
    other.compare_gradients()
    assert all(mine.grad is None for mine, _ in reference.parameters())


test_check = ranks.tests_of(__file__, WORLD_SIZE)

if __name__ == "__main__":
    ranks.main(globals())
