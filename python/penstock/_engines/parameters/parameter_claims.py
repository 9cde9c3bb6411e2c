"""Keeps which engine trains a parameter: two must not each move one to memory of their own.

From ZeRO 1 on, on several replicas, parameters lie in memory of the engine that was made last.  One
that has all parameters of an earlier engine takes its place.  One that has some of them would leave
the earlier one with others that it still trains, and is refused.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from penstock.errors import ConfigError, Error

__all__ = ["Claim"]

# Claims of the engines that have a parameter, by parameter, as weak references.
_claims: Any = WeakIdKeyDictionary()


class Claim:
    """The claim of one engine on the parameters of its model.

    names: by a parameter's id.
    moves: whether the engine moves values to memory of its own.
    let_go: is called when another engine has all of the parameters.

    Raises ConfigError, with a name, for a parameter that another engine trains with others.
    """

    def __init__(
        self, parameters: Sequence[torch.nn.Parameter], names: Mapping[int, str], *, moves: bool
    ) -> None:
        self._ids = {id(each) for each in parameters}
        self._moves = moves
        self._taken: str | None = None  # The name of one that another engine has taken.
        self.let_go: Callable[[], None] = lambda: None
        if any(self._shares(former) for former, _ in self._formers(parameters)):
            gc.collect()  # An engine that is gone may be in a circle of references.
        for former, each in self._formers(parameters):
            if self._shares(former):
                raise ConfigError(
                    f'parameter "{names[id(each)]}" is trained by another engine, too, which has '
                    f"others besides: with zero_optimization.stage 1 or more its values can be in "
                    f"one of them alone",
                    (
                        "give one engine a module that has both models in it",
                        "with zero_optimization.stage 0 in both, engines may share parameters",
                    ),
                )
            if former._ids <= self._ids:
                former.let_go()
                if (moves or former._moves) and former._taken is None:
                    former._taken = names[id(each)]
        mine = weakref.ref(self)
        for each in parameters:
            _claims.setdefault(each, []).append(mine)

    def check(self) -> None:
        """Raises Error where another engine has been made of the parameters."""
        if self._taken is not None:
            raise Error(
                f'parameter "{self._taken}" is trained by another engine, which was made later of '
                f"the same model: use that one"
            )

    def _formers(
        self, parameters: Sequence[torch.nn.Parameter]
    ) -> list[tuple[Claim, torch.nn.Parameter]]:
        return [
            (former, each)
            for each in parameters
            for reference in _claims.get(each, ())
            if (former := reference()) is not None and former._taken is None
        ]

    def _shares(self, former: Claim) -> bool:
        return (self._moves or former._moves) and not former._ids <= self._ids
