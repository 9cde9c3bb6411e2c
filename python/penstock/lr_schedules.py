"""Courses of the learning rate, by DeepSpeed's names; torch.optim.lr_scheduler's own work as well.

    scheduler = WarmupCosineLR(optimizer, total_num_steps=1000, warmup_num_steps=100)

Each is a scheduler of torch: `step()` after every step of the optimizer.  The step with number i,
from 0, is taken with the rate of i.  `step(batch_iteration)` goes to what DeepSpeed has there: the
rate of that number, but of LRRangeTest that of the next one.
last_batch_iteration: where to begin; the next step() goes to the one behind it.  -1: at step 0.
Units: steps of the optimizer.

Source: deepspeed.runtime.lr_schedules, whose warmups take step i with the rate of i - 1, and step 0
with warmup_min_lr or 0.
"""

from __future__ import annotations

from penstock import _torch  # noqa: F401  (Says what to install.)

# isort: split
import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import torch
from torch.optim.lr_scheduler import LRScheduler

from penstock import _planning

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer

__all__ = ["LRRangeTest", "WarmupCosineLR", "WarmupDecayLR", "WarmupLR"]

Rate = float | Sequence[float]
"""For all parameter groups, or one for each."""


class _Course(LRScheduler):
    """Learning rates as a function of the step's number and the group's."""

    _ahead = 0  # The number of a step is that of DeepSpeed's batch iteration, and this.

    def __init__(self, optimizer: Optimizer, last_batch_iteration: int) -> None:
        super().__init__(optimizer)
        if last_batch_iteration >= 0:
            self.step(last_batch_iteration)

    @property
    def last_batch_iteration(self) -> int:
        """What step() without an argument counts up."""
        return self.last_epoch - self._ahead

    def step(self, batch_iteration: int | None = None) -> None:
        """Goes to the next step, or to the one of a batch iteration."""
        if batch_iteration is None:
            super().step()
            return
        self.last_epoch = batch_iteration + self._ahead
        for group, rate in zip(self.optimizer.param_groups, self.get_lr(), strict=True):
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate
        self._last_lr = [group["lr"] for group in self.optimizer.param_groups]

    def get_lr(self) -> list[float | Tensor]:
        """The rates of the next step, by parameter group."""
        return [self._rate(group, self.last_epoch) for group in range(len(self.base_lrs))]

    @abstractmethod
    def _rate(self, group: int, step: int) -> float: ...


def _check(warmup_num_steps: int, warmup_type: str) -> int:
    if warmup_type not in ("log", "linear"):
        raise ValueError(f'warmup_type is {warmup_type!r}, must be "log" or "linear"')
    if warmup_num_steps < 0:
        raise ValueError(f"warmup_num_steps is {warmup_num_steps}, must be at least 0")
    return max(_planning.WARMUP_STEPS_MIN, warmup_num_steps)


class WarmupLR(_Course):
    """Rises from warmup_min_lr to warmup_max_lr, and stays there.

    warmup_max_lr: None: the optimizer's own rate.
    warmup_num_steps: until then; at least 2.
    warmup_type: "log" or "linear".
    """

    def __init__(
        self,
        optimizer: Optimizer,
        warmup_min_lr: Rate = 0.0,
        warmup_max_lr: Rate | None = None,
        warmup_num_steps: int = 1000,
        warmup_type: Literal["log", "linear"] = "log",
        last_batch_iteration: int = -1,
    ) -> None:
        groups = len(optimizer.param_groups)
        own = [float(group["lr"]) for group in optimizer.param_groups]
        self.min_lrs = _per_group("warmup_min_lr", warmup_min_lr, groups)
        self.max_lrs = (
            own if warmup_max_lr is None else _per_group("warmup_max_lr", warmup_max_lr, groups)
        )
        self.warmup_num_steps = _check(warmup_num_steps, warmup_type)
        self.warmup_type = warmup_type
        super().__init__(optimizer, last_batch_iteration)

    def _rate(self, group: int, step: int) -> float:
        low, high = self.min_lrs[group], self.max_lrs[group]
        return low + (high - low) * self._share(step)

    def _share(self, step: int) -> float:
        return _planning.warmup_share(self.warmup_type, step, self.warmup_num_steps)


class WarmupDecayLR(WarmupLR):
    """WarmupLR, which then falls in a line to warmup_min_lr at total_num_steps, and stays there."""

    def __init__(
        self,
        optimizer: Optimizer,
        total_num_steps: int,
        warmup_min_lr: Rate = 0.0,
        warmup_max_lr: Rate | None = None,
        warmup_num_steps: int = 1000,
        warmup_type: Literal["log", "linear"] = "log",
        last_batch_iteration: int = -1,
    ) -> None:
        self.total_num_steps = total_num_steps
        super().__init__(
            optimizer,
            warmup_min_lr,
            warmup_max_lr,
            warmup_num_steps,
            warmup_type,
            last_batch_iteration,
        )

    def _share(self, step: int) -> float:
        if step < self.warmup_num_steps:
            return super()._share(step)
        falling = max(1, self.total_num_steps - self.warmup_num_steps)
        return max(0.0, (self.total_num_steps - step) / falling)


class WarmupCosineLR(_Course):
    """Rises to the optimizer's own rate, and falls along half a cosine until total_num_steps.

    warmup_min_ratio, cos_min_ratio: the first and the last rate, as shares of the optimizer's.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        total_num_steps: int,
        warmup_min_ratio: float = 0.0,
        warmup_num_steps: int = 1000,
        cos_min_ratio: float = 1e-4,
        warmup_type: Literal["log", "linear"] = "log",
        last_batch_iteration: int = -1,
    ) -> None:
        self.total_num_steps = total_num_steps
        self.warmup_min_ratio = warmup_min_ratio
        self.cos_min_ratio = cos_min_ratio
        self.warmup_num_steps = _check(warmup_num_steps, warmup_type)
        self.warmup_type = warmup_type
        super().__init__(optimizer, last_batch_iteration)

    def _rate(self, group: int, step: int) -> float:
        return float(self.base_lrs[group]) * self._share(step)

    def _share(self, step: int) -> float:
        return _planning.warmup_cosine_share(
            step,
            self.total_num_steps,
            self.warmup_min_ratio,
            self.warmup_num_steps,
            self.cos_min_ratio,
            self.warmup_type,
        )


class LRRangeTest(_Course):
    """Rises for ever, to find the rate at which training breaks.

    lr_range_test_step_size: steps in which it grows by lr_range_test_step_rate of the first rate;
    lr_range_test_staircase: in one jump at their end.
    """

    _ahead = 1

    def __init__(
        self,
        optimizer: Optimizer,
        lr_range_test_min_lr: Rate = 1e-3,
        lr_range_test_step_size: int = 2000,
        lr_range_test_step_rate: float = 1.0,
        lr_range_test_staircase: bool = False,
        last_batch_iteration: int = -1,
    ) -> None:
        groups = len(optimizer.param_groups)
        self.min_lrs = _per_group("lr_range_test_min_lr", lr_range_test_min_lr, groups)
        if lr_range_test_step_size < 1:
            raise ValueError(
                f"lr_range_test_step_size is {lr_range_test_step_size}, must be at least 1"
            )
        self.step_size = lr_range_test_step_size
        self.step_rate = lr_range_test_step_rate
        self.staircase = lr_range_test_staircase
        super().__init__(optimizer, last_batch_iteration)

    def _rate(self, group: int, step: int) -> float:
        steps = step / self.step_size
        return self.min_lrs[group] * (
            1.0 + self.step_rate * (math.floor(steps) if self.staircase else steps)
        )


def _per_group(name: str, rate: Rate, groups: int) -> list[float]:
    if not isinstance(rate, Sequence):
        return [float(rate)] * groups
    if len(rate) != groups:
        raise ValueError(f"{name} has {len(rate)} rates, the optimizer has {groups} groups")
    return [float(each) for each in rate]
