"""Optimizers and courses of the learning rate: those that a configuration names, or a script gives.

Every engine makes its own here, and clips its gradient alike.  Which types and arguments there are,
the reader has judged (penstock/config/classes.h).  Knows no engines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from penstock import lr_schedules
from penstock.configuration import Configuration
from penstock.errors import ConfigError

__all__ = ["Course", "Given", "NoOptimizer", "clip_factor", "make_optimizer", "make_scheduler"]

Given = torch.optim.Optimizer | Callable[[list[Any]], torch.optim.Optimizer]
"""An optimizer, or what makes one of parameters or parameter groups."""

Course = Any
"""What has step(): a scheduler of torch's, or of the same form."""


class NoOptimizer(torch.optim.Optimizer):
    """Of an engine that evaluates only: it updates nothing, and does not step."""

    def __init__(self) -> None:
        super().__init__([{"params": []}], {"lr": 0.0})

    def step(self, closure: Any = None) -> Any:
        """Raises ConfigError."""
        raise ConfigError(
            "this engine has no optimizer, so it can evaluate only: give optimizer.type in the "
            "configuration, or an optimizer as an argument of initialize()"
        )


def make_optimizer(
    configuration: Configuration, parameters: Iterable[Any], given: Given | None
) -> torch.optim.Optimizer:
    """The one that was given, or that of the section `optimizer`, or a NoOptimizer.

    parameters: or parameter groups.

    Raises ConfigError for what the type does not take: parameters, or a value that looked right.
    """
    if isinstance(given, torch.optim.Optimizer):
        return given
    if given is not None:
        return given(list(parameters))
    section = configuration.section("optimizer")
    if "type" not in section:
        return NoOptimizer()
    name, params = str(section["type"]), dict(section.get("params", {}))
    kind = _optimizer_class(name, params)
    arguments = (list(parameters),)
    made: torch.optim.Optimizer = _make(configuration, f"optimizer {name}", kind, arguments, params)
    return made


def clip_factor(largest: float, norm: float) -> float:
    """What a gradient of this norm is multiplied by, so that it has the norm `largest`; 0: any."""
    return min(1.0, largest / (norm + 1e-6)) if largest else 1.0


def make_scheduler(
    configuration: Configuration,
    optimizer: torch.optim.Optimizer,
    given: Course | Callable[[torch.optim.Optimizer], Course] | None,
) -> Course | None:
    """The one that was given, or that of the section `scheduler`; None where there is neither.

    Raises ConfigError for what the type does not take: a value that looked right.
    """
    if given is not None:
        return given if hasattr(given, "step") else given(optimizer)
    section = configuration.section("scheduler")
    if "type" not in section or isinstance(optimizer, NoOptimizer):
        return None
    name, params = str(section["type"]), dict(section.get("params", {}))
    of_penstock = name in lr_schedules.__all__
    kind = getattr(lr_schedules if of_penstock else torch.optim.lr_scheduler, name)
    return _make(configuration, f"scheduler {name}", kind, (optimizer,), params)


def _optimizer_class(name: str, params: dict[str, Any]) -> type[Any]:
    """The class of that name, in any case, and `params` as it takes them.

    Adam is AdamW unless adam_w_mode is False, with a weight_decay of 0 where none is given: as in
    DeepSpeed.
    """
    params.pop("bias_correction", None)  # It is True.
    if name.lower() in ("adam", "adamw"):
        is_decoupled = params.pop("adam_w_mode", True) or name.lower() == "adamw"
        params.pop("torch_adam", None)  # It always is.
        if name.lower() == "adam":
            params.setdefault("weight_decay", 0.0)
        name = "AdamW" if is_decoupled else "Adam"
    classes = {each.__name__.lower(): each for each in _classes_of(torch.optim)}
    return classes[name.lower()]


def _classes_of(module: Any) -> list[type[Any]]:
    return [
        each
        for each in vars(module).values()
        if isinstance(each, type) and issubclass(each, torch.optim.Optimizer)
    ]


def _make(
    configuration: Configuration,
    what: str,
    kind: type[Any],
    arguments: tuple[Any, ...],
    params: Mapping[str, Any],
) -> Any:
    try:
        return kind(*arguments, **params)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{configuration.name}: {what}: {error}") from error
