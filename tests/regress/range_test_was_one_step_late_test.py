"""LRRangeTest.step(batch_iteration) gave the rate of that batch, DeepSpeed that of the next one.

0.0010005 for 0.001001 with the defaults.  The other schedules have the rate of that number in both.
"""

from __future__ import annotations

import math
import warnings

import pytest
import torch

from penstock.lr_schedules import LRRangeTest, WarmupCosineLR, WarmupDecayLR, WarmupLR


def optimizer_of(lr=0.1):
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=lr)


def log_rise(step, steps):
    return math.log(step + 1) / math.log(steps) if step < steps else 1.0


FORMULAS = {  # Of DeepSpeed 0.19: the rate after step(i), with the optimizer's own at 0.1.
    LRRangeTest: (
        {"lr_range_test_step_size": 5, "lr_range_test_step_rate": 2.0},
        lambda i: 0.001 * (1 + 2.0 * (i + 1) / 5),
    ),
    WarmupLR: ({"warmup_num_steps": 5}, lambda i: 0.1 * log_rise(i, 5)),
    WarmupDecayLR: (
        {"warmup_num_steps": 5, "warmup_max_lr": 0.1, "total_num_steps": 9},
        lambda i: 0.1 * (log_rise(i, 5) if i < 5 else max(0.0, (9 - i) / 4)),
    ),
    WarmupCosineLR: (
        {"warmup_num_steps": 5, "total_num_steps": 9, "cos_min_ratio": 0.1},
        lambda i: (
            0.1
            * (
                log_rise(i, 5)
                if i < 5
                else 0.1 + 0.9 * (1 + math.cos(math.pi * min(1, (i - 4) / 4))) / 2
            )
        ),
    ),
}


def test_of_the_issue():
    scheduler = LRRangeTest(optimizer_of())
    assert scheduler.get_last_lr() == [0.001]
    scheduler.step(1)
    assert scheduler.get_last_lr() == pytest.approx([0.001001], rel=1e-12)


@pytest.mark.parametrize("kind", FORMULAS)
def test_step_of_a_batch_iteration(kind):
    options, rate = FORMULAS[kind]
    optimizer = optimizer_of()
    scheduler = kind(optimizer, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for iteration in (0, 1, 7, 3, 4, 5, 12):
            scheduler.step(iteration)
            assert optimizer.param_groups[0]["lr"] == pytest.approx(rate(iteration), rel=1e-12)
            assert scheduler.last_batch_iteration == iteration
            following = kind(optimizer_of(), **options)
            following.step(iteration)
            following.optimizer.step()
            following.step()
            assert following.get_last_lr() == pytest.approx([rate(iteration + 1)], rel=1e-12)
    resumed = kind(optimizer_of(), **options, last_batch_iteration=3)
    resumed.optimizer.step()
    resumed.step()
    assert resumed.get_last_lr() == pytest.approx([rate(4)], rel=1e-12)
