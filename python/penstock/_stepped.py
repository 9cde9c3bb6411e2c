"""Optimizers that an engine steps: what scripts ask of them by DeepSpeed's names.

Knows no engines: an Update (_update.py) has the facts.
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
    from penstock._update import Update

__all__ = ["tell"]


def tell(optimizer: torch.optim.Optimizer, update: Update) -> None:
    """From now on it answers as DeepSpeed's wrappers of optimizers do; it stays what it is."""
    if not isinstance(optimizer, _Told):
        optimizer.__class__ = _telling(cast(Any, type(optimizer)))
    optimizer.__dict__["_update_of"] = weakref.ref(update)


class _Told:
    """Of an optimizer that an engine steps: what DeepSpeed's wrappers of optimizers say besides.

    Its class has this as its last base, so that what it has of its own stays.
    optimizer: itself.  loss_scale, cur_scale: that of losses; loss_scaler: has them, too.
    overflow: whether the last step was skipped.  clip_grad: the largest norm; 0: any.
    averaged_gradients: by parameter group, of this rank's parts, as long as they are there.
    """

    _plain_class: type

    def __getattr__(self, name: str) -> Any:
        update = self.__dict__.get("_update_of", lambda: None)()
        if update is None or name not in _TOLD:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return _TOLD[name](self, update)

    def __reduce_ex__(self, protocol: Any) -> Any:
        state = self.__getstate__()
        return _plain, (self._plain_class,), state


def _plain(kind: Any) -> Any:
    """An optimizer of a script's class, to be filled."""
    return kind.__new__(kind)


class _LossScaler:
    """What losses are multiplied by.  cur_hysteresis: overflows that are left until it falls."""

    def __init__(self, scale: GradientScale) -> None:
        state = scale.state()
        self.loss_scale = self.cur_scale = scale.value
        self.dynamic = state is not None
        self.cur_hysteresis = None if state is None else state["lives"]


_TOLD: dict[str, Callable[[Any, Any], Any]] = {
    "optimizer": lambda optimizer, _: optimizer,
    "loss_scale": lambda _, update: update.scale.value,
    "cur_scale": lambda _, update: update.scale.value,
    "dynamic_loss_scale": lambda _, update: update.scale.state() is not None,
    "loss_scaler": lambda _, update: _LossScaler(update.scale),
    "overflow": lambda _, update: update.has_overflowed,
    "clip_grad": lambda _, update: update.clipping,
    "averaged_gradients": lambda _, update: update.gradients(),
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
