"""Optimizers and courses of the learning rate: those that a configuration names, or a script gives.

Every engine makes its own here, and clips its gradient alike.  Knows no engines.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from penstock import lr_schedules
from penstock.configuration import Configuration
from penstock.errors import ConfigError

__all__ = [
    "Course",
    "Given",
    "check_takes_slices",
    "clip_factor",
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


def check_takes_slices(
    configuration: Configuration, optimizer: torch.optim.Optimizer, *, stage: int, replicas: int
) -> None:
    """Raises ConfigError for one that may look at more than an element, where it gets flat slices.

    From ZeRO 1 on replicas update slices, and nobody has whole parameters.  Known are torch's own;
    of all others the configuration says it.
    """
    if stage == 0 or replicas == 1:
        return
    kind = type(optimizer)
    if inspect.unwrap(kind.step) in _STEPS_BY_ELEMENT:
        return
    slices = f"zero_optimization.stage {stage} gives each of {replicas} replicas flat slices"
    if isinstance(optimizer, _BY_PARAMETER):
        raise ConfigError(
            f"{configuration.name}: optimizer {kind.__name__} looks at whole parameters, and "
            f"{slices}: use stage 0"
        )
    if not configuration.flag("zero_allow_untested_optimizer", False):
        raise ConfigError(
            f"{configuration.name}: optimizer {kind.__name__} may look at whole parameters, as "
            f"LAMB does, and {slices}: use stage 0",
            (
                "if each element's update depends on that element alone, as Adam's does, say "
                '"zero_allow_untested_optimizer": true',
            ),
        )


_STEPS_BY_ELEMENT = {
    inspect.unwrap(each.step)
    for each in (
        torch.optim.ASGD,
        torch.optim.Adadelta,
        torch.optim.Adagrad,
        torch.optim.Adam,
        torch.optim.AdamW,
        torch.optim.Adamax,
        torch.optim.NAdam,
        torch.optim.RAdam,
        torch.optim.RMSprop,
        torch.optim.Rprop,
        torch.optim.SGD,
    )
}
_BY_PARAMETER = (torch.optim.Adafactor, torch.optim.LBFGS, torch.optim.Muon)


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
