"""Optimizers that an engine steps: what scripts ask of them by DeepSpeed's names.

Knows no engines: an Update (update.py) has the facts.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    import torch

    from penstock._runtime import GradientScale

__all__ = ["OfEngine", "tell"]


def tell(optimizer: torch.optim.Optimizer, update: Any) -> None:
    """Makes it answer as DeepSpeed's wrappers of optimizers do; it stays what it is."""
    if not isinstance(optimizer, _Told):
        optimizer.__class__ = _telling(cast(Any, type(optimizer)))
    optimizer.__dict__["_update_of"] = weakref.ref(update)


class _Told:
    """What DeepSpeed's wrappers of optimizers say besides, for an optimizer that an engine steps.

    Its class has this as its last base, so that what it has of its own stays.
    optimizer: itself.  loss_scale, cur_scale: that of losses; loss_scaler: has them, too.
    overflow: whether the last step was skipped.  clip_grad: the largest norm; 0: any.
    averaged_gradients: by parameter group, of this rank's parts, as long as they are there.
    fp32_partitioned_groups_flat: masters of this rank's parts, which `state` is by; fp16_groups: of
    each, those parts.
    needs_scaler(): whether a backward of the script's own has to begin with a scaled loss.
    _global_grad_norm: the last step's, before clipping; 0 before any.
    fp32_groups: by parameter group, the masters; fp32_groups_flat, or, under ZeRO 1 and 2,
    single_partition_of_fp32_groups: of each group a flat copy.
    """

    _plain_class: type

    def __getattr__(self, name: str) -> Any:
        update = self.__dict__.get("_update_of", _none)()
        if update is None or name not in _TOLD:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return _TOLD[name](self, update)

    def __reduce_ex__(self, protocol: Any) -> Any:
        state = self.__getstate__()
        return _plain, (self._plain_class,), state


def _plain(kind: Any) -> Any:
    """An optimizer of a script's class, to be filled."""
    return kind.__new__(kind)


class OfEngine(type):
    """The type of classes that an optimizer is an instance of when an engine steps it: nobody
    makes one.

    stages: of ZeRO, that the engine is of.
    """

    _stages: tuple[int, ...]

    def __new__(
        cls, name: str, bases: tuple[type, ...], names: dict[str, Any], stages: tuple[int, ...]
    ) -> OfEngine:
        made = super().__new__(cls, name, bases, names)
        made._stages = stages
        return made

    def __init__(cls, *made: Any, stages: tuple[int, ...]) -> None:
        super().__init__(*made)

    def __instancecheck__(cls, value: object) -> bool:
        update = value.__dict__.get("_update_of", _none)() if isinstance(value, _Told) else None
        return update is not None and update.stage in cls._stages and cls._holds(value, update)

    def _holds(cls, optimizer: Any, update: Any) -> bool:
        """What else must be true; classes may have their own."""
        return True


def _none() -> None:
    """Stands for what no engine steps."""


class _LossScaler:
    """What losses are multiplied by.  cur_hysteresis: overflows that are left until it falls.

    As loss_scale_config it also has cur_iter: steps so far, and what the section fp16 says:
    scale_window, min_loss_scale; None where the scale is fixed.
    """

    def __init__(self, scale: GradientScale) -> None:
        state = scale.state()
        self.loss_scale = self.cur_scale = scale.value
        self.dynamic = state is not None
        self.cur_hysteresis = None if state is None else state["lives"]

    def with_config(self, update: Any) -> _LossScaler:
        """The same, as loss_scale_config."""
        said = update.fp16 if self.dynamic else {}
        self.dynamic_loss_scale = self.dynamic
        self.use_grad_scaling = update.needs_scale
        self.cur_iter = update.steps
        self.scale_factor = 2.0 if self.dynamic else None
        self.scale_window = said.get("loss_scale_window")
        self.min_loss_scale = said.get("min_loss_scale")
        return self


def _masters(optimizer: Any) -> list[list[torch.Tensor]]:
    return [[each.detach() for each in group["params"]] for group in optimizer.param_groups]


def _flat_masters(optimizer: Any) -> list[torch.Tensor]:
    import torch

    groups = [[each.flatten() for each in group] for group in _masters(optimizer)]
    return [torch.cat(group) if group else torch.empty(0) for group in groups]


_TOLD: dict[str, Callable[[Any, Any], Any]] = {
    "optimizer": lambda optimizer, _: optimizer,
    "loss_scale": lambda _, update: update.scale.value,
    "cur_scale": lambda _, update: update.scale.value,
    "dynamic_loss_scale": lambda _, update: update.scale.state() is not None,
    "loss_scaler": lambda _, update: _LossScaler(update.scale),
    "loss_scale_config": lambda _, update: _LossScaler(update.scale).with_config(update),
    "low_precision_dtype": lambda _, update: update.short_type,
    "overflow": lambda _, update: update.has_overflowed,
    "clip_grad": lambda _, update: update.clipping,
    "averaged_gradients": lambda _, update: update.gradients(),
    "fp32_partitioned_groups_flat": lambda _, update: list(update.masters),
    "fp32_groups": lambda optimizer, _: _masters(optimizer),
    "fp32_groups_flat": lambda optimizer, _: _flat_masters(optimizer),
    "single_partition_of_fp32_groups": lambda optimizer, _: _flat_masters(optimizer),
    "fp16_groups": lambda _, update: [[part] for part in update.parts()],
    "needs_scaler": lambda _, update: lambda: update.needs_scale,
    "_global_grad_norm": lambda _, update: update.norm,
}


@cache
def _telling(plain: Any) -> type:
    return types.new_class(
        plain.__name__,
        (plain, _Told),
        exec_body=lambda body: body.update(
            _plain_class=plain, __module__=plain.__module__, __qualname__=plain.__qualname__
        ),
    )
