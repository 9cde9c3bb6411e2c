"""Courses of the learning rate, by DeepSpeed's names; torch.optim.lr_scheduler's own work as well.

    scheduler = WarmupCosineLR(optimizer, total_num_steps=1000, warmup_num_steps=100)

Each is a scheduler of torch: `step()` after every step of the optimizer.  Step i of the optimizer,
from 0, has the rate that it has in DeepSpeed.  A warmup is there one step behind its formula: step
i has the rate of i - 1, and step 0 warmup_min_lr, or 0 of WarmupCosineLR.
`step(batch_iteration)` goes to the rate that DeepSpeed has behind that step of the optimizer.
last_batch_iteration: where to begin; the next step() goes to the one behind it.  -1: at step 0.
Units: steps of the optimizer.

Source: deepspeed.runtime.lr_schedules.
"""

from __future__ import annotations

from penstock import _torch  # noqa: F401  (Says what to install.)
from penstock._compatibility import published_as

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

__all__ = ["LRRangeTest", "OneCycle", "WarmupCosineLR", "WarmupDecayLR", "WarmupLR"]

Rate = float | Sequence[float]
"""For all parameter groups, or one for each."""


class _Course(LRScheduler):
    """Learning rates as a function of the step's number and the group's."""

    def __init__(self, optimizer: Optimizer, last_batch_iteration: int) -> None:
        super().__init__(optimizer)
        if last_batch_iteration >= 0:
            self.step(last_batch_iteration)

    @property
    def last_batch_iteration(self) -> int:
        """The step of the optimizer behind which this is; -1: before the first."""
        return self.last_epoch - 1

    def step(self, batch_iteration: int | None = None) -> None:
        """Goes to the next step, or to the one of a batch iteration."""
        if batch_iteration is None:
            super().step()
            return
        self.last_epoch = batch_iteration + 1
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
    if not isinstance(warmup_num_steps, int) or warmup_num_steps < 0:
        raise ValueError(
            f"warmup_num_steps is {warmup_num_steps!r}, must be an integer, at least 0"
        )
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
        return low + (high - low) * self._share(max(0, step - 1))

    def _share(self, step: int) -> float:
        return _planning.warmup_share(self.warmup_type, step, self.warmup_num_steps)


class WarmupDecayLR(WarmupLR):
    """WarmupLR, which then falls in a line to warmup_min_lr at total_num_steps, and stays there."""

    def __init__(
        self,
        optimizer: Optimizer,
        total_num_steps: int,
        warmup_min_lr: Rate = 0.0,
        warmup_max_lr: Rate | None = 1e-3,
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

    warmup_min_ratio, cos_min_ratio: where the rise begins and the fall ends, as shares of the
        optimizer's rate.
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

    def get_lr_ratio(self) -> float:
        """The rates of the next step, as a share of the optimizer's own."""
        return self._share(self.last_epoch)

    def _share(self, step: int) -> float:
        if step == 0:
            return 0.0
        return _planning.warmup_cosine_share(
            step - 1,
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


class OneCycle(_Course):
    """Rises from cycle_min_lr to cycle_max_lr, falls back, and then decays.

    cycle_first_step_size, cycle_second_step_size: steps up, and down; None: as many.
    cycle_first_stair_count, cycle_second_stair_count: jumps in which it goes; 0: at every step.
    decay_step_size: steps in which the divisor of cycle_min_lr grows by decay_lr_rate; 0: no decay.
    cycle_momentum: betas[0] goes from cycle_max_mom to cycle_min_mom and back, betas[1] is 0.99;
        then it grows by decay_mom_rate.  Step 0 has cycle_min_mom, as in DeepSpeed.  Of an
        optimizer without betas nothing is set.
    cycle_min_mom, cycle_max_mom: for all parameter groups, or one for each.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        cycle_min_lr: Rate,
        cycle_max_lr: Rate,
        decay_lr_rate: float = 0.0,
        cycle_first_step_size: int = 2000,
        cycle_second_step_size: int | None = None,
        cycle_first_stair_count: int = 0,
        cycle_second_stair_count: int | None = None,
        decay_step_size: int = 0,
        cycle_momentum: bool = True,
        cycle_min_mom: Rate = 0.8,
        cycle_max_mom: Rate = 0.9,
        decay_mom_rate: float = 0.0,
        last_batch_iteration: int = -1,
    ) -> None:
        groups = len(optimizer.param_groups)
        self.min_lrs = _per_group("cycle_min_lr", cycle_min_lr, groups)
        self.max_lrs = _per_group("cycle_max_lr", cycle_max_lr, groups)
        first, second = cycle_first_step_size, cycle_second_step_size
        self.first_step_size = first
        self.second_step_size = first if second is None else second
        if self.first_step_size < 1 or self.second_step_size < 0:
            raise ValueError(
                f"cycle_first_step_size is {self.first_step_size}, must be at least 1, and "
                f"cycle_second_step_size {self.second_step_size}, must be at least 0"
            )
        self.total_size = self.first_step_size + self.second_step_size
        self.step_ratio = self.first_step_size / self.total_size
        first, second = cycle_first_stair_count, cycle_second_stair_count
        self.first_stair_count = first
        self.second_stair_count = first if second is None else second
        self.decay_step_size = decay_step_size
        self.decay_rates = (decay_lr_rate, decay_mom_rate)
        self.min_moms = _per_group("cycle_min_mom", cycle_min_mom, groups)
        self.max_moms = _per_group("cycle_max_mom", cycle_max_mom, groups)
        self.cycle_momentum = cycle_momentum and "betas" in optimizer.defaults
        super().__init__(optimizer, last_batch_iteration)

    def step(self, batch_iteration: int | None = None) -> None:
        """Steps, and sets the momentum, too."""
        super().step(batch_iteration)
        if not self.cycle_momentum:
            return
        first = [(low, 0.99) for low in self.min_moms]
        betas = self._betas(self.last_epoch) if self.last_epoch else first
        for group, each in zip(self.optimizer.param_groups, betas, strict=True):
            group["betas"] = each

    def get_mom(self) -> list[tuple[float, float]] | None:
        """The betas of where the cycle is, by parameter group; None where none are set."""
        return self._betas(self.last_epoch) if self.cycle_momentum else None

    def _rate(self, group: int, step: int) -> float:
        low, high = self.min_lrs[group], self.max_lrs[group]
        if step <= self.total_size:
            return low + (high - low) * self._height(step)
        return low / self._decay(0, step)

    def _betas(self, step: int) -> list[tuple[float, float]]:
        both = zip(self.min_moms, self.max_moms, strict=True)
        if step <= self.total_size:
            return [(high - (high - low) * self._height(step), 0.99) for low, high in both]
        return [(high * self._decay(1, step), 0.99) for _, high in both]

    def _height(self, step: int) -> float:
        """The height of the cycle at a step: 1 at its peak."""
        whole, up, down = self.total_size, self.first_step_size, self.second_step_size
        now = 1.0 + step / whole - math.floor(1 + step / whole)
        peak, at = self.step_ratio, step % whole
        rises = now <= peak
        stairs = self.first_stair_count if rises else self.second_stair_count
        if stairs:
            done = at * stairs / up if at <= up else (whole - at) * stairs / down
            return math.floor(done) / stairs
        return now / peak if rises else (now - 1) / (peak - 1)

    def _decay(self, which: int, step: int) -> float:
        if not self.decay_step_size:
            return 1.0
        return 1 + self.decay_rates[which] * (step - self.total_size) / self.decay_step_size


def _per_group(name: str, rate: Rate, groups: int) -> list[float]:
    if not isinstance(rate, Sequence):
        return [float(rate)] * groups
    if len(rate) != groups:
        raise ValueError(f"{name} has {len(rate)} rates, the optimizer has {groups} groups")
    return [float(each) for each in rate]


published_as("penstock.lr_schedules", globals())
