"""Who has the values of parameters under ZeRO 3: ZeroInitParameters, and the parameters in Python.

An engine has one for what it trains, and zero.Init one for every module that it spreads.
Knows no forward and no optimizer.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import torch

from penstock._engines.parameters.zero_parameter import (
    ZeroParameter,
    ZeroParamStatus,
    place_of,
    show,
)
from penstock.errors import Error, first_of

if TYPE_CHECKING:
    from penstock._engines.parameters.replicas import Replicas
    from penstock._runtime import ZeroInitParameters

__all__ = ["EnginesModel", "ParameterHome", "home_of", "spread_of"]

_NAMES_MAX = 3  # Parameters that an error names.


class EnginesModel(Protocol):
    """A model that an engine trains (replicated_model.py)."""

    def begin_part(self) -> None: ...
    def outside(self) -> AbstractContextManager[None]: ...
    def watch(self, output: Any) -> None: ...


class ParameterHome:
    """Parameters, some of which come and go.

    Nothing comes or goes in a home without a ZeroInitParameters: all ranks have all of it.
    """

    def __init__(self, replicas: Replicas) -> None:
        self.replicas = replicas
        self.spread: ZeroInitParameters | None = None
        self.parameters: list[ZeroParameter] = []  # Parameters by number.
        self._held: Counter[int] = Counter()  # How often, by number.
        self._modifier: dict[int, int] = {}  # Ranks whose changes will count, by number.
        self._is_open = False
        self._model: weakref.ref[EnginesModel] | None = None

    @property
    def model(self) -> EnginesModel | None:
        """The model of an engine, which brings what operators read; None: it is of zero.Init."""
        return None if self._model is None else self._model()

    def belongs_to(self, model: EnginesModel) -> None:
        """Makes that its model from now on."""
        self._model = weakref.ref(model)

    @property
    def ranks(self) -> int:
        """The number of ranks that share its parameters."""
        return self.replicas.size

    def settle(self, spread: ZeroInitParameters, parameters: list[ZeroParameter]) -> None:
        """Makes `parameters` those of `spread` from now on, and away."""
        self.spread = spread
        self.parameters = parameters
        self.close()

    def status(self, number: int) -> ZeroParamStatus:
        """The status of one that comes and goes."""
        return ZeroParamStatus(self._module.status(number))

    def shard(self, number: int) -> torch.Tensor:
        """This rank's part of one."""
        return self._module.shard(number)

    def open(self) -> None:
        """Lets operators bring what they read, until close()."""
        self._is_open = True
        for parameter in self.parameters:
            show(parameter, is_away=False)

    def close(self) -> None:
        """What nobody holds is away."""
        self._is_open = False
        for number, parameter in enumerate(self.parameters):
            show(parameter, is_away=not self._held[number])

    def hold(self, numbers: Sequence[int], modifier: int | None = None) -> None:
        """Collective: brings parameters, to stay until as many release(); they become readable.

        modifier: the rank that may change them.
        Raises Error where another rank already may.
        """
        for number in numbers:
            if modifier is None or self._modifier.get(number, modifier) == modifier:
                continue
            raise Error(
                f"{self._words([number])} is gathered already, to be changed by rank "
                f"{self._modifier[number]}, and not by rank {modifier}"
            )
        with self.replicas.telling_others():
            self._module.hold(numbers)
        self._held.update(numbers)
        for number in numbers:
            show(self.parameters[number], is_away=False)
            if modifier is not None:
                self._modifier[number] = modifier

    def release(self, numbers: Sequence[int], modifier: int | None = None) -> None:
        """Ends a hold() with these arguments; collective if there is a modifier.

        Raises Error for parameters that were changed, if nobody was to change them.
        """
        changed: list[int] = []
        with self.replicas.telling_others():
            for number in numbers:
                self._held[number] -= 1
                if modifier is not None:
                    self._module.take_changes(number, modifier)
            last = [number for number in numbers if not self._held[number]]
            changed = self._module.changed(last)
            self._module.forget_changes(last)
            self._module.release(numbers)
        for number in last:
            self._modifier.pop(number, None)
            show(self.parameters[number], is_away=not self._is_open)
        if changed:
            raise Error(
                f"{self._words(changed)}: in-place modification inside GatheredParameters, which "
                f"is lost",
                ("GatheredParameters(..., modifier_rank=0) takes what rank 0 makes of it",),
            )

    @contextmanager
    def reading(self, numbers: Sequence[int]) -> Iterator[None]:
        """Collective: inside, operators of the script's own may read them."""
        if (model := self.model) is not None:
            with model.outside():
                yield
            return
        self._agree(numbers)
        self.hold(numbers)
        try:
            yield
        finally:
            self.release(numbers)

    @contextmanager
    def writing(self, numbers: Sequence[int]) -> Iterator[None]:
        """Collective: inside, they may be written to; what rank 0 makes of them counts."""
        if self.model is None:
            self._agree(numbers)
        with self.replicas.telling_others():
            self.hold(numbers, 0)
            try:
                yield
            finally:
                self.release(numbers, 0)

    @property
    def brings_to_graphs(self) -> bool:
        """Whether a backward may read them that began with what operators have read."""
        return self.model is not None

    def watch(self, output: Any) -> None:
        """Watches what such an operator returns."""
        if (model := self.model) is not None:
            model.watch(output)

    def _agree(self, numbers: Sequence[int]) -> None:
        # Its name is that of its layer's class, which others have, too.
        ids = ", ".join(str(self.parameters[number].ds_id) for number in numbers)
        self.replicas.agree_on_next(
            f"uses {self._words(numbers)} (ds_id {ids}) outside of an engine"
        )

    @property
    def _module(self) -> ZeroInitParameters:
        assert self.spread is not None  # Parameters without one are whole, and have no number.
        return self.spread

    def _words(self, numbers: Sequence[int]) -> str:
        names = [f'"{place_of(self.parameters[number]).name}"' for number in numbers]
        return f"parameter{'s' * (len(names) > 1)} {first_of(names, _NAMES_MAX)}"


def home_of(parameter: ZeroParameter) -> ParameterHome:
    """Who has its values."""
    home = place_of(parameter).home
    assert isinstance(home, ParameterHome)  # There are no others.
    return home


def spread_of(parameters: Iterable[torch.nn.Parameter]) -> list[ZeroInitParameters]:
    """The homes by which these come and go, each once."""
    homes = dict.fromkeys(home_of(each) for each in parameters if isinstance(each, ZeroParameter))
    return [home.spread for home in homes if home.spread is not None]
