"""Optimizers and courses of the learning rate: those that a configuration names, or a script gives.

Every engine makes its own here.  Which types and arguments there are,
the reader has judged (penstock/plan/config/classes.h).  Knows no engines.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from penstock._engines.update import lr_schedules
from penstock._engines.update.lamb import Lamb
from penstock._engines.update.lion import Lion
from penstock.configuration import Configuration
from penstock.errors import AssertedError, ConfigError

if TYPE_CHECKING:
    from penstock._engines.parameters.zero_settings import ZeroSettings

__all__ = [
    "Given",
    "NoOptimizer",
    "Scheduler",
    "check_parameters",
    "check_scheduler",
    "check_takes_slices",
    "described",
    "facts_of_optimizer",
    "facts_of_options",
    "make_optimizer",
    "make_scheduler",
    "name_of_function",
]

Given = torch.optim.Optimizer | Callable[[list[Any]], torch.optim.Optimizer]
"""An optimizer, or what makes one of parameters or parameter groups."""

Scheduler = Any
"""What has step(): a scheduler of torch's, or of the same form."""


class NoOptimizer(torch.optim.Optimizer):
    """The optimizer of an engine that evaluates only: it updates nothing, and does not step."""

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
    is_named = name.lower() in ("adam", "adamw") and not params.get("torch_adam", False)
    kind = _optimizer_class(name, params)
    arguments = (list(parameters),)
    made: torch.optim.Optimizer = _make(configuration, f"optimizer {name}", kind, arguments, params)
    if is_named:  # What isinstance() knows it by (ops/adam.py).
        is_kept = configuration.settings["zero_optimization"]["offload_optimizer"]["device"]
        vars(made)["_stands_for"] = "FusedAdam" if is_kept == "none" else "DeepSpeedCPUAdam"
    return made


def facts_of_optimizer(optimizer: torch.optim.Optimizer) -> list[tuple[str, str]]:
    """What replicas must have in common of it: its type, and its groups' sizes and options."""
    sizes = [len(group["params"]) for group in optimizer.param_groups]
    return [
        ("optimizer", described(type(optimizer).__name__, optimizer.defaults)),
        *(
            (name, f"of {size} parameters, {options}")
            for size, (name, options) in zip(sizes, facts_of_options(optimizer), strict=True)
        ),
    ]


def facts_of_options(optimizer: torch.optim.Optimizer) -> list[tuple[str, str]]:
    """The options of its groups, which schedulers and scripts change between steps."""
    return [
        (
            f"optimizer group {number}",
            _texts_of({key: value for key, value in group.items() if key != "params"}),
        )
        for number, group in enumerate(optimizer.param_groups)
    ]


def name_of_function(function: Any) -> str:
    """The same in every process, of a function or an object that is called; "none" of None."""
    return "none" if function is None else str(_name_in(function))


def _name_in(function: Any) -> Any:
    return getattr(function, "__qualname__", type(function).__qualname__)


def described(what: str, options: Mapping[str, Any]) -> str:
    """Options that have the same text in every process: numbers, texts, and groups of them."""
    return f"{what}, {_texts_of(options)}"


def _texts_of(options: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {_text_of(options[key])}" for key in sorted(options))


def _text_of(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return str(value.tolist())
    if isinstance(value, list | tuple):
        return f"({', '.join(map(_text_of, value))})"
    plain = value is None or isinstance(value, bool | int | float | str)
    return repr(value) if plain else type(value).__name__


def check_parameters(
    optimizer: torch.optim.Optimizer, known: Iterable[torch.nn.Parameter], where: str, repair: str
) -> None:
    """Raises ConfigError for one with a parameter that nothing trains: it would never change.

    known: those that are in the engine's model, as `where` says it.
    """
    here = {id(each) for each in known}
    for number, group in enumerate(optimizer.param_groups):
        for parameter in group["params"]:
            if id(parameter) in here or not parameter.requires_grad:
                continue
            raise ConfigError(
                f"optimizer {type(optimizer).__name__}: its parameter group {number} has a "
                f"parameter of shape {tuple(parameter.shape)} that is not in {where}: {repair}"
            )


def check_takes_slices(
    configuration: Configuration,
    optimizer: torch.optim.Optimizer,
    settings: ZeroSettings,
    replicas: int,
) -> None:
    """Raises ConfigError for one that may look at more than it gets at one time.

    From ZeRO 1 on replicas update flat slices, and nobody has whole parameters.  With states or
    parameters in files, some parameters are updated after others.  Known are torch's own; of all
    others the configuration says it.
    """
    is_cut = settings.are_cut(replicas)
    if isinstance(optimizer, NoOptimizer) or not (is_cut or settings.has_files):
        return
    kind = type(optimizer)
    if inspect.unwrap(kind.step) in _STEPS_BY_ELEMENT:
        return
    if is_cut:
        what = "whole parameters"
        why = (
            f"zero_optimization.stage {settings.stage} gives each of {replicas} replicas flat "
            "slices: use stage 0"
        )
    elif isinstance(optimizer, _BY_PARAMETER):
        return
    else:
        what = "all parameters together"
        why = "states in a file are updated some parameters at a time: keep them in memory"
    if isinstance(optimizer, (*_BY_PARAMETER, torch.optim.LBFGS)):
        raise ConfigError(
            f"{configuration.name}: optimizer {kind.__name__} looks at {what}, and {why}"
        )
    if not configuration.get("zero_allow_untested_optimizer", False):
        raise AssertedError(
            f"{configuration.name}: optimizer {kind.__name__} may look at {what}, as LAMB does, "
            f"and {why}",
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
        Lion,
    )
}
_BY_PARAMETER = (torch.optim.Adafactor, torch.optim.Muon, Lamb)


def check_scheduler(
    optimizer: torch.optim.Optimizer,
    given: Scheduler | Callable[[torch.optim.Optimizer], Scheduler] | None,
) -> None:
    """Raises ConfigError for a scheduler of torch's that sets none of the optimizer's rates."""
    if not isinstance(given, torch.optim.lr_scheduler.LRScheduler):
        return
    own = {id(each) for each in optimizer.param_groups}
    if own.isdisjoint(id(each) for each in given.optimizer.param_groups):
        raise AssertedError(
            f"lr_scheduler {type(given).__name__} sets the rates of another optimizer than the "
            f"engine's: give that optimizer, too, or a function that makes the scheduler"
        )


def make_scheduler(
    configuration: Configuration,
    optimizer: torch.optim.Optimizer,
    given: Scheduler | Callable[[torch.optim.Optimizer], Scheduler] | None,
) -> Scheduler | None:
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

    Adam is AdamW unless adam_w_mode is False, with a weight_decay of 0 where none is given, unless
    torch_adam is True: as in DeepSpeed.
    """
    params.pop("bias_correction", None)  # It is True.
    if name.lower() in ("adam", "adamw"):
        is_decoupled = params.pop("adam_w_mode", True) or name.lower() == "adamw"
        has_own = params.pop("torch_adam", False)  # The class always is torch's.
        if name.lower() == "adam" and not has_own:
            params.setdefault("weight_decay", 0.0)
        name = "AdamW" if is_decoupled else "Adam"
    classes = {each.__name__.lower(): each for each in (*_classes_of(torch.optim), Lamb, Lion)}
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
