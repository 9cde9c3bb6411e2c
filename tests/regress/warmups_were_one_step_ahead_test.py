"""WarmupLR and its relatives gave step i the rate that DeepSpeed gives step i + 1.

With one configuration the losses differed from the third step on.  A schedule that was imported
from DeepSpeed's checkpoint was one step behind.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from penstock._engines.importing import deepspeed_checkpoint as _deepspeed
from penstock.lr_schedules import OneCycle, WarmupCosineLR, WarmupDecayLR, WarmupLR

RECORDED = {  # By DeepSpeed 0.19.8: the optimizer's rate of 0.1 at each of its steps.
    WarmupLR: (
        {"warmup_num_steps": 4, "warmup_min_lr": 0.02},
        [0.02, 0.02, 0.06, 0.0833985, 0.1, 0.1, 0.1, 0.1],
    ),
    WarmupDecayLR: (
        {
            "warmup_num_steps": 3,
            "total_num_steps": 6,
            "warmup_max_lr": 0.1,
            "warmup_type": "linear",
        },
        [0.0, 0.0, 0.033333333, 0.066666667, 0.1, 0.066666667, 0.033333333, 0.0],
    ),
    WarmupCosineLR: (
        {
            "warmup_num_steps": 3,
            "total_num_steps": 6,
            "warmup_min_ratio": 0.2,
            "cos_min_ratio": 0.1,
        },
        [0.0, 0.02, 0.07047438, 0.1, 0.0775, 0.0325, 0.01, 0.01],
    ),
}


def stepped(kind, options, steps):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    scheduler = kind(optimizer, **options)
    rates = []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return scheduler, rates


@pytest.mark.parametrize("kind", RECORDED)
def test_rates_are_those_of_deepspeed(kind):
    options, recorded = RECORDED[kind]
    assert stepped(kind, options, len(recorded))[1] == pytest.approx(recorded, rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("kind", [*RECORDED, OneCycle])
def test_an_imported_schedule_goes_on_where_it_was(kind):
    options = {"cycle_min_lr": 0.1, "cycle_max_lr": 0.3, "cycle_first_step_size": 5}
    if kind in RECORDED:
        options = RECORDED[kind][0]
    found = SimpleNamespace(counters={}, texts={}, client_state={}, lr_scheduler=None)
    saved = {"lr_scheduler": {"last_batch_iteration": 2}}  # Of DeepSpeed, behind three steps.
    _deepspeed._take_common(saved, found)
    behind_three = stepped(kind, options, 3)[0]
    imported = stepped(kind, options, 0)[0]
    imported.load_state_dict(found.lr_scheduler["state"])
    assert imported.last_batch_iteration == behind_three.last_batch_iteration == 2
    assert imported.get_lr() == behind_three.get_lr()
