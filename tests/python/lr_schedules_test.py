"""penstock.lr_schedules: courses of the learning rate."""

import math

import pytest
import torch

from penstock.lr_schedules import LRRangeTest, OneCycle, WarmupCosineLR, WarmupDecayLR, WarmupLR


def course(kind, steps, lr=0.1, **options):
    """The rates of the first steps, with an optimizer that really steps."""
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=lr)
    scheduler = kind(optimizer, **options)
    rates = []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        assert scheduler.get_last_lr() == rates[-1:]
        optimizer.step()
        scheduler.step()
    return rates


def test_warmup():
    linear = course(
        WarmupLR, 6, warmup_min_lr=1, warmup_max_lr=5, warmup_num_steps=4, warmup_type="linear"
    )
    assert linear == pytest.approx([1, 1, 2, 3, 4, 5])
    logarithmic = course(WarmupLR, 10, warmup_num_steps=8)  # To the optimizer's own.
    assert logarithmic[1:9] == pytest.approx([0.1 * math.log(i + 1, 8) for i in range(8)])
    assert logarithmic[8:] == pytest.approx([0.1] * 2)


def test_decay():
    rates = course(
        WarmupDecayLR,
        12,
        total_num_steps=10,
        warmup_max_lr=0.1,
        warmup_num_steps=5,
        warmup_type="linear",
    )
    assert rates == pytest.approx([0.02 * i for i in [0, 0, 1, 2, 3, 4, 5, 4, 3, 2, 1, 0]])


def test_cosine():
    rates = course(
        WarmupCosineLR,
        15,
        lr=2.0,
        total_num_steps=12,
        warmup_num_steps=4,
        warmup_type="linear",
        warmup_min_ratio=0.2,
        cos_min_ratio=0.1,
    )
    assert rates[:5] == pytest.approx([0.0, 0.4, 0.8, 1.2, 1.6])
    falling = [2 * (0.1 + 0.9 * (1 + math.cos(math.pi * i / 8)) / 2) for i in range(1, 9)]
    assert rates[5:13] == pytest.approx(falling)
    recorded = [1.931492, 1.736396, 1.444415, 1.1, 0.755585, 0.463604, 0.268508, 0.2, 0.2]
    assert rates[5:14] == pytest.approx(recorded, abs=1e-6)  # From DeepSpeed 0.19.8.
    assert rates[12:] == pytest.approx([0.2] * 3)


def test_range():
    options = {"lr_range_test_min_lr": 0.1, "lr_range_test_step_size": 2}
    assert course(LRRangeTest, 5, **options) == pytest.approx([0.1, 0.15, 0.2, 0.25, 0.3])
    stairs = course(LRRangeTest, 4, lr_range_test_staircase=True, **options)
    assert stairs == pytest.approx([0.1, 0.1, 0.2, 0.2])


def test_momenta_of_each_group():
    groups = [{"params": [torch.nn.Parameter(torch.zeros(1))]} for _ in range(2)]
    optimizer = torch.optim.Adam(groups, lr=0.1)
    moms = {"cycle_min_mom": [0.5, 0.6], "cycle_max_mom": [0.9, 0.8]}
    options = {"cycle_min_lr": 0.1, "cycle_max_lr": 0.2, "cycle_first_step_size": 2}
    cycle = OneCycle(optimizer, **options, **moms)
    assert cycle.get_mom() == [(0.9, 0.99), (0.8, 0.99)]
    for at_both in ([0.7, 0.7], [0.5, 0.6], [0.7, 0.7], [0.9, 0.8]):
        optimizer.step()
        cycle.step()
        assert [first for first, _ in cycle.get_mom()] == pytest.approx(at_both)
        assert [group["betas"] for group in optimizer.param_groups] == cycle.get_mom()
    assert OneCycle(optimizer, **options, cycle_momentum=False).get_mom() is None
    with pytest.raises(ValueError, match="cycle_max_mom has 3 rates"):
        OneCycle(optimizer, **options, cycle_max_mom=[0.9] * 3)


def test_each_group_has_its_own():
    groups = [{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": lr} for lr in (1.0, 2.0)]
    optimizer = torch.optim.SGD(groups, lr=0.5)
    scheduler = WarmupLR(optimizer, warmup_min_lr=[0.5, 1.0], warmup_num_steps=2)
    assert scheduler.get_last_lr() == [0.5, 1.0]
    for _ in range(3):
        optimizer.step()
        scheduler.step()
    assert scheduler.get_last_lr() == [1.0, 2.0]
    with pytest.raises(ValueError, match="warmup_min_lr has 3 rates, the optimizer has 2 groups"):
        WarmupLR(optimizer, warmup_min_lr=[1, 2, 3])


def test_it_goes_on_from_a_state():
    parameter = torch.nn.Parameter(torch.zeros(1))
    first = WarmupLR(torch.optim.SGD([parameter], lr=1.0), warmup_num_steps=10)
    for _ in range(4):
        first.optimizer.step()
        first.step()
    second = WarmupLR(torch.optim.SGD([parameter], lr=1.0), warmup_num_steps=10)
    second.load_state_dict(first.state_dict())
    for each in (first, second):
        each.optimizer.step()
        each.step()
    assert first.get_last_lr() == second.get_last_lr()


def test_bad_arguments():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    for kind, options, words in [
        (WarmupLR, {"warmup_type": "cosine"}, 'must be "log" or "linear"'),
        (WarmupLR, {"warmup_num_steps": -1}, "warmup_num_steps is -1"),
        (WarmupLR, {"warmup_num_steps": None}, "warmup_num_steps is None, must be an integer"),
        (LRRangeTest, {"lr_range_test_step_size": 0}, "must be at least 1"),
    ]:
        with pytest.raises(ValueError) as caught:
            kind(optimizer, **options)
        assert words in str(caught.value)
