"""Optimizers and courses of the learning rate: those that a configuration names, or a script gives.

Every engine makes its own here, and clips its gradient alike.  Knows no engines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from penstock import lr_schedules
from penstock.configuration import Configuration
from penstock.errors import ConfigError

__all__ = [
    "Course",
    "Given",
    "clip_factor",
    "described",
    "facts_of_optimizer",
    "make_optimizer",
    "make_scheduler",
]

Given = torch.optim.Optimizer | Callable[[list[Any]], torch.optim.Optimizer]
"""An optimizer, or what makes one of parameters or parameter groups."""

Course = Any
"""What has step(): a scheduler of torch's, or of the same form."""


def make_optimizer(
    configuration: Configuration, parameters: Iterable[Any], given: Given | None
) -> torch.optim.Optimizer:
    """The one that was given, or that of the section `optimizer`.

    parameters: or parameter groups.

    Raises ConfigError where there is none, for a type that torch.optim has not, and for arguments
    that the type does not take.
    """
    if isinstance(given, torch.optim.Optimizer):
        return given
    if given is not None:
        return given(list(parameters))
    section = configuration.section("optimizer")
    if "type" not in section:
        raise ConfigError(
            f"{configuration.name}: optimizer.type is needed, or an optimizer as an argument"
        )
    name, params = str(section["type"]), dict(section.get("params", {}))
    kind = _optimizer_class(configuration, name, params)
    arguments = (list(parameters),)
    made: torch.optim.Optimizer = _make(configuration, f"optimizer {name}", kind, arguments, params)
    return made


def facts_of_optimizer(optimizer: torch.optim.Optimizer) -> list[tuple[str, str]]:
    """What replicas must have in common of it: its type, and the options of its groups."""
    facts = [("optimizer", described(type(optimizer).__name__, optimizer.defaults))]
    for number, group in enumerate(optimizer.param_groups):
        options = {key: value for key, value in group.items() if key != "params"}
        facts.append(
            (
                f"optimizer group {number}",
                described(f"of {len(group['params'])} parameters", options),
            )
        )
    return facts


def described(what: str, options: Mapping[str, Any]) -> str:
    """Options that have the same text in every process: numbers, texts, and groups of them."""
    texts = [f"{key} {_text_of(options[key])}" for key in sorted(options)]
    return ", ".join([what, *texts])


def _text_of(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return str(value.tolist())
    if isinstance(value, list | tuple):
        return f"({', '.join(map(_text_of, value))})"
    plain = value is None or isinstance(value, bool | int | float | str)
    return repr(value) if plain else type(value).__name__


def clip_factor(largest: float, norm: float) -> float:
    """What a gradient of this norm is multiplied by, so that it has the norm `largest`; 0: any."""
    return min(1.0, largest / (norm + 1e-6)) if largest else 1.0


def make_scheduler(
    configuration: Configuration,
    optimizer: torch.optim.Optimizer,
    given: Course | Callable[[torch.optim.Optimizer], Course] | None,
) -> Course | None:
    """The one that was given, or that of the section `scheduler`; None where there is neither.

    Raises ConfigError for a type that neither penstock.lr_schedules nor torch has, and for
    arguments that it does not take.
    """
    if given is not None:
        return given if hasattr(given, "step") else given(optimizer)
    section = configuration.section("scheduler")
    if "type" not in section:
        return None
    name, params = str(section["type"]), dict(section.get("params", {}))
    kind = None
    if name in lr_schedules.__all__:
        kind = getattr(lr_schedules, name)
    elif not name.startswith("_"):
        kind = getattr(torch.optim.lr_scheduler, name, None)
    if not isinstance(kind, type):
        raise ConfigError(
            f'{configuration.name}: scheduler.type is "{name}", must be one of '
            f"{', '.join(lr_schedules.__all__)}, or a class of torch.optim.lr_scheduler"
        )
    return _make(configuration, f"scheduler {name}", kind, (optimizer,), params)


def _optimizer_class(configuration: Configuration, name: str, params: dict[str, Any]) -> type[Any]:
    """The class, and `params` as it takes them."""
    params.pop("torch_adam", None)  # It always is.
    is_adam = name.lower() == "adam"
    decoupled = params.pop("adam_w_mode", None) if is_adam else None
    if is_adam and decoupled is None and params.get("weight_decay", 0) != 0:
        raise ConfigError(
            f"{configuration.name}: optimizer Adam with weight_decay is AdamW to DeepSpeed, and "
            f'Adam to torch: say "AdamW", or adam_w_mode false for decay as a part of the gradient'
        )
    name = "AdamW" if is_adam and decoupled else name
    for known in ("Adam", "AdamW", "SGD"):
        if name.lower() == known.lower():
            name = known
    kind = None if name.startswith("_") else getattr(torch.optim, name, None)
    is_kind = isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)
    if not is_kind or kind is torch.optim.Optimizer:
        raise ConfigError(
            f'{configuration.name}: optimizer.type is "{name}", must be Adam, AdamW, SGD or '
            f"another class of torch.optim"
        )
    assert isinstance(kind, type)
    return kind


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
