"""The parameters of a module, where the module has them: it may have others by now.

Loading with assign=True, setattr() and wrappers put other objects there, which nobody has divided
over the ranks, and no optimizer updates.  Knows no ranks.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from penstock import _torch
from penstock._engines.parameters.zero_parameter import ZeroParameter, ZeroParamStatus
from penstock.errors import Error

__all__ = ["ParameterSlots"]


class ParameterSlots:
    """The slots of a module that is set up for training; names: its parameters', by their ids."""

    def __init__(self, module: torch.nn.Module, names: Mapping[int, str]) -> None:
        self._module = module
        self._names = names
        self._have_values = _torch.load().have_values
        self._note()

    def check(self) -> None:
        """Has parameters in their slots again, with the values of what took their places.

        Raises Error, by name, for what cannot be trained on.
        """
        if not self._have_values(self._dicts, self._values):
            self._look()
            self._note()

    def _look(self) -> None:
        now = dict(self._module.named_parameters(remove_duplicate=False))
        here = set(map(id, now.values()))
        for name, each in now.items():
            if id(each) in self._names:
                continue
            before = self._parameters.get(name)
            if before is not None and id(before) not in here:
                self._put_back(name, before, each)
            elif each.requires_grad:
                raise Error(
                    f'parameter "{name}" is new since training was set up: no optimizer of this '
                    f"engine updates it",
                    ("make it before penstock.initialize(), or have requires_grad_(False)",),
                )

    def _put_back(self, name: str, before: torch.nn.Parameter, after: torch.nn.Parameter) -> None:
        reason = _why_not(before, after)
        if reason is not None:
            raise Error(
                f'parameter "{name}" is another object than when training was set up, and {reason}',
                ("copy into the parameter that was there, or replace it before that",),
            )
        with torch.no_grad():
            before.copy_(after)
        before.requires_grad_(after.requires_grad)
        owner, _, attribute = name.rpartition(".")
        self._module.get_submodule(owner)._parameters[attribute] = before

    def _note(self) -> None:
        self._parameters = dict(self._module.named_parameters(remove_duplicate=False))
        modules = list(self._module.modules())
        self._dicts = [each for of in modules for each in (of._parameters, of._modules)]
        self._values = [tuple(each.values()) for each in self._dicts]


def _why_not(before: torch.nn.Parameter, after: torch.nn.Parameter) -> str | None:
    """What speaks against its taking the values."""
    for what in ("dtype", "device", "shape"):
        one, other = getattr(before, what), getattr(after, what)
        if one != other:
            one, other = (tuple(each) if what == "shape" else each for each in (one, other))
            return f"its {what} is {other} now, and was {one}"
    if after.grad is not None:
        return "it has a gradient already, which nobody sums over the replicas"
    if isinstance(before, ZeroParameter) and before.ds_status is not ZeroParamStatus.AVAILABLE:
        return "the one before is spread over the ranks"
    return None
