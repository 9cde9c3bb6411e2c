"""Parameters that a module uses and another one has.

Nothing needs to be said about them: whatever an operator reads, it gets.  This module keeps the
books that code written for DeepSpeed reads: `module._external_params`, by id, filled by
register_external_parameter() and, while an engine runs a model, for parameters that a submodule
returns: these are registered with the module around it, and move outward as they are returned on.
The same hooks see a script call the model, or a part of it, by itself: its engine runs that, too.
Knows no ranks.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from penstock._compatibility import published_as
from penstock._engines.parameters.parameter_home import EnginesModel, home_of
from penstock._engines.parameters.zero_parameter import (
    ZeroParameter,
    ZeroParamStatus,
    is_away,
    place_of,
)

__all__ = ["Forwards", "register_external_parameter", "unregister_external_parameter"]


def register_external_parameter(module: torch.nn.Module, parameter: torch.nn.Parameter) -> None:
    """Notes that `module` uses `parameter`, which another module has."""
    _check(parameter)
    external_of(module)[id(parameter)] = parameter


def unregister_external_parameter(module: torch.nn.Module, parameter: torch.nn.Parameter) -> None:
    """Takes that back.

    Raises RuntimeError where it was not noted.
    """
    _check(parameter)
    if external_of(module).pop(id(parameter), None) is None:
        name = f'"{place_of(parameter).name}" ' if isinstance(parameter, ZeroParameter) else ""
        raise RuntimeError(
            f"parameter {name}of shape {tuple(parameter.shape)} is not registered with this "
            f"{type(module).__name__}"
        )


def external_of(module: torch.nn.Module) -> dict[int, torch.nn.Parameter]:
    """What is noted for a module, by id."""
    if "_external_params" not in module.__dict__:
        module.__dict__["_external_params"] = {}
    found: dict[int, torch.nn.Parameter] = module.__dict__["_external_params"]
    return found


def _check(parameter: object) -> None:
    if not isinstance(parameter, torch.nn.Parameter):
        raise RuntimeError(f"{type(parameter).__name__} is not a torch.nn.Parameter")


_WhenOver = Callable[[object, BaseException | None], None]


class Forwards:
    """The modules of a model whose forwards run, outermost first; those that an engine runs.

    Parameters that have been returned are held: they can be read wherever they went.
    """

    _running: Forwards | None = None  # The innermost one, which hooks tell.

    def __init__(self, model: torch.nn.Module) -> None:
        self._stack: list[torch.nn.Module] = []
        self._held: list[ZeroParameter] = []
        self._around: Forwards | None = None  # The forward that runs this one's.
        self._when_over: _WhenOver | None = None
        self._error_before: BaseException | None = None
        for module in model.modules():
            external_of(module)
            if _enter not in module._forward_pre_hooks.values():
                module.register_forward_pre_hook(_enter, prepend=True)
                module.register_forward_hook(_leave, always_call=True)

    def begin(self, when_over: _WhenOver | None = None) -> None:
        """The outermost forward begins.

        when_over: is called with what it returns, and with the error that has ended it.
        """
        self._stack = []
        self._when_over, self._error_before = when_over, sys.exc_info()[1]
        self._around, Forwards._running = Forwards._running, self

    def end(self) -> None:
        """It is over, or has failed: what it has returned stays held until let_go()."""
        Forwards._running = self._around

    def let_go(self) -> None:
        """Whatever was returned may go."""
        held, self._held = self._held, []
        for parameter in held:
            place = place_of(parameter)
            assert place.number is not None
            place.home.release([place.number])

    def enter(self, module: torch.nn.Module) -> None:
        """Its forward begins."""
        self._stack.append(module)

    def leave(self, module: torch.nn.Module, output: object) -> None:
        """Its forward returns `output`."""
        while self._stack and self._stack.pop() is not module:
            pass  # A forward that was left by an exception, which somebody has caught.
        error = sys.exc_info()[1]
        error = None if error is self._error_before else error
        self._note(module, output)
        if not self._stack and self._when_over is not None:
            self._when_over(output, error)

    def _note(self, module: torch.nn.Module, output: object) -> None:
        for parameter in parameters_in(output):
            external_of(module).pop(id(parameter), None)
            if self._stack and not _owns(self._stack[-1], parameter):
                register_external_parameter(self._stack[-1], parameter)
            self._hold(parameter)

    def _hold(self, parameter: ZeroParameter) -> None:
        place = place_of(parameter)
        if place.number is None or any(parameter is each for each in self._held):
            return
        if parameter.ds_status is not ZeroParamStatus.AVAILABLE:
            parameter.detach()  # An operator, which brings it.
        place.home.hold([place.number])
        self._held.append(parameter)


def _model_of(module: torch.nn.Module) -> EnginesModel | None:
    """The model of the engine whose parameters it reads, if they have to come."""
    for parameter in module.parameters():
        if not (isinstance(parameter, ZeroParameter) and is_away(parameter)):
            continue
        if (model := home_of(parameter).model) is not None:
            return model
    return None


def parameters_in(value: object) -> Iterator[ZeroParameter]:
    """The parameters in what a forward returns."""
    if type(value) is torch.Tensor or value is None:
        return
    for each in tensors_in(value):
        if isinstance(each, ZeroParameter):
            yield each


def tensors_in(value: object) -> Iterator[torch.Tensor]:
    """The tensors in what a forward returns: in tuples, lists, dicts and objects, however deep."""
    if isinstance(value, torch.Tensor):
        yield value
        return
    seen: set[int] = set()
    todo: list[Any] = [value]
    while todo:
        each = todo.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, torch.Tensor):
            yield each
        elif isinstance(each, Mapping):
            todo.extend(each.values())
        elif isinstance(each, (tuple, list)):
            todo.extend(each)
        elif not isinstance(each, (torch.nn.Module, type)):
            todo.extend(getattr(each, "__dict__", {}).values())


def _owns(module: torch.nn.Module, parameter: torch.nn.Parameter) -> bool:
    return any(parameter is each for each in module._parameters.values())


# Functions of their own, so that a copied or a loaded module has them, and tells nobody.
def _enter(module: torch.nn.Module, args: Any) -> None:
    if Forwards._running is None and (model := _model_of(module)) is not None:
        model.begin_part()
    if Forwards._running is not None:
        Forwards._running.enter(module)


def _leave(module: torch.nn.Module, args: Any, output: Any) -> None:
    if Forwards._running is not None:
        Forwards._running.leave(module, output)


published_as("penstock.zero.partition_parameters", globals())
