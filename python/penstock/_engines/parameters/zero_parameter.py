"""Parameters under ZeRO 3, as a model's code sees them.

A parameter stays the object that the model has; what changes is its class.  ZeroParameter adds what
DeepSpeed's parameters have.  While its values are spread over the ranks, and no engine runs the
model, its class is one that sees who reads it (away_parameter.py): so nothing reads memory that is
not there.
Knows no engine: a ParameterHome says where the values are.
"""

from __future__ import annotations

import enum
import itertools
import types
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, Protocol

import torch

from penstock._compatibility import published_as
from penstock._engines.parameters.away_parameter import Away, HomeOfAway

__all__ = [
    "Place",
    "ZeroParamStatus",
    "ZeroParameter",
    "adopt",
    "is_away",
    "is_zero",
    "place_of",
    "release",
    "show",
]


class ZeroParamStatus(enum.Enum):
    """Whether a parameter has its values here."""

    AVAILABLE = 1
    NOT_AVAILABLE = 2
    INFLIGHT = 3


class HomeOfZero(HomeOfAway, Protocol):
    """What parameters under ZeRO 3 ask of who has their values."""

    def status(self, number: int) -> ZeroParamStatus: ...
    def shard(self, number: int) -> torch.Tensor: ...
    def hold(self, numbers: Sequence[int]) -> None: ...
    def release(self, numbers: Sequence[int], modifier: int | None = None) -> None: ...


class Place:
    """The place of a parameter's values.

    home: whose ranks have it.  number: among those that the home spreads; None: whole on each rank.
    is_gathered: by all_gather().
    """

    def __init__(self, home: HomeOfZero, name: str, number: int | None) -> None:
        self.home = home
        self.name = name
        self.number = number
        self.is_gathered = False


class ZeroParameter(torch.nn.Parameter):
    """A parameter under ZeRO 3.

    ds_id: a number of its own, in the order in which parameters came under ZeRO 3.
    """

    ds_id: int
    _ds_place: Place
    _plain_class: type

    @property
    def ds_shape(self) -> torch.Size:
        """The whole parameter's shape."""
        return self.shape

    @property
    def ds_numel(self) -> int:
        """The whole parameter's number of elements."""
        return self.numel()

    @property
    def ds_status(self) -> ZeroParamStatus:
        """AVAILABLE: it may be read here and now; INFLIGHT: it comes."""
        place = self._ds_place
        if place.number is None:
            return ZeroParamStatus.AVAILABLE
        return place.home.status(place.number)

    @property
    def ds_tensor(self) -> torch.Tensor:
        """This rank's part, flat; of a parameter that each rank has whole, all of it."""
        place = self._ds_place
        if place.number is None:
            return self.detach().flatten()
        return place.home.shard(place.number)

    @property
    def ds_persist(self) -> bool:
        """Whether it stays, whole on each rank."""
        return self._ds_place.number is None

    def all_gather(self, param_list: Iterable[ZeroParameter] | None = None) -> None:
        """Collective: it, or all of a list, is whole from here on until partition().

        GatheredParameters does it for a block.
        """
        for each in [self] if param_list is None else param_list:
            place = each._ds_place
            if place.number is not None and not place.is_gathered:
                place.home.hold([place.number])
                place.is_gathered = True

    all_gather_coalesced = all_gather

    def partition(
        self,
        param_list: Iterable[ZeroParameter] | None = None,
        has_been_updated: bool = False,
        free_data: bool = True,
    ) -> None:
        """Collective: the end of all_gather().  has_been_updated: to what rank 0 has made of it.

        free_data: taken, and not used: memory is freed when nobody reads it.
        """
        del free_data
        for each in [self] if param_list is None else param_list:
            place = each._ds_place
            if place.number is not None and place.is_gathered:
                place.is_gathered = False
                place.home.release([place.number], 0 if has_been_updated else None)

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.nn.Parameter:
        """A parameter of its own, whole, which ZeRO knows nothing of."""
        if id(self) not in memo:
            memo[id(self)] = self.plain(self)
        copy: torch.nn.Parameter = memo[id(self)]
        return copy

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.plain(self).__reduce_ex__(protocol)  # type: ignore[no-untyped-call]

    def plain(self, values: torch.Tensor) -> torch.nn.Parameter:
        """A parameter like it, with a copy of `values`, which ZeRO knows nothing of."""
        kept = values.detach().clone(memory_format=torch.preserve_format)
        copy = torch.nn.Parameter(kept, self.requires_grad)
        copy.__class__ = type(self)._plain_class
        for name, value in self.__dict__.items():
            if name not in _OWN:
                copy.__dict__[name] = value
        return copy

    def __hash__(self) -> int:
        return id(self)


_ids = itertools.count()
_OWN = ("ds_id", "_ds_place")  # Attributes of a parameter under ZeRO 3.


def adopt(parameter: torch.nn.Parameter, place: Place) -> ZeroParameter:
    """The same object, under ZeRO 3 from now on, and to be read; its place is new."""
    if isinstance(parameter, ZeroParameter):
        show(parameter, is_away=False)
    else:
        parameter.__class__ = _class_of(type(parameter), is_away=False)
        parameter.ds_id = next(_ids)  # type: ignore[attr-defined]
    assert isinstance(parameter, ZeroParameter)
    parameter._ds_place = place
    return parameter


def release(parameter: ZeroParameter) -> None:
    """The same object, as it was before ZeRO 3."""
    parameter.__class__ = type(parameter)._plain_class
    for name in _OWN:
        del parameter.__dict__[name]


def is_zero(value: object) -> bool:
    """Whether it is a parameter under ZeRO 3."""
    return isinstance(value, ZeroParameter)


def place_of(parameter: ZeroParameter) -> Place:
    """The place of its values."""
    return parameter._ds_place


def show(parameter: ZeroParameter, *, is_away: bool) -> None:
    """Makes those seen who read it, so that it comes; or makes it like any other."""
    if isinstance(parameter, Away) != is_away:
        plain: type = type(parameter)._plain_class
        parameter.__class__ = _class_of(plain, is_away=is_away)


def is_away(value: object) -> bool:
    """Whether it is a parameter under ZeRO 3 that comes only if all ranks read it."""
    return isinstance(value, ZeroParameter) and isinstance(value, Away)


@cache
def _class_of(plain: type, *, is_away: bool) -> type:
    """The class that parameters of class `plain` have under ZeRO 3."""
    bases: tuple[type, ...] = (ZeroParameter, plain)
    if plain is torch.nn.Parameter:
        bases = (ZeroParameter,)
    if is_away:
        bases = (Away, *bases)
    return types.new_class(
        "ZeroParameter",
        bases,
        exec_body=lambda body: body.update(_plain_class=plain, __module__=ZeroParameter.__module__),
    )


published_as("penstock.zero.partition_parameters", globals())
