"""Parameters under ZeRO 3, as a model's code sees them.

A parameter stays the object that the model has; what changes is its class.  ZeroParameter adds what
DeepSpeed's parameters have.  While its values are spread over the ranks, and no engine runs the
model, its class is one that answers what needs no values, and raises for all else: so nothing reads
memory that is not there, and no rank waits for others that do not come.
Knows no engine: a Home says where the values are.
"""

from __future__ import annotations

import enum
import itertools
import types
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from penstock.errors import Error

if TYPE_CHECKING:
    from penstock.zero._home import Home

__all__ = [
    "Place",
    "ZeroParamStatus",
    "ZeroParameter",
    "adopt",
    "is_zero",
    "place_of",
    "release",
    "set_writer",
    "show",
]


class ZeroParamStatus(enum.Enum):
    """Whether a parameter has its values here."""

    AVAILABLE = 1
    NOT_AVAILABLE = 2
    INFLIGHT = 3


class Place:
    """Where the values of a parameter are.

    home: whose ranks have it.  number: among those that the home spreads; None: whole on each rank.
    is_gathered: by all_gather().
    """

    def __init__(self, home: Home, name: str, number: int | None) -> None:
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
        """Of the whole parameter."""
        return self.shape

    @property
    def ds_numel(self) -> int:
        """Of the whole parameter."""
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
            memo[id(self)] = _plain(self)
        copy: torch.nn.Parameter = memo[id(self)]
        return copy

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _plain(self).__reduce_ex__(protocol)  # type: ignore[no-untyped-call]

    def __hash__(self) -> int:
        return id(self)


class _Away:
    """Of a parameter whose values are away: answers what needs none, raises for all else.

    writer: brings one that is about to be written to; None: that raises, too.
    """

    writer: Callable[[ZeroParameter], None] | None = None

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        kinds: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if not _needs_values(func):
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        if _Away.writer is not None and _may_write(func):
            written = next(_away_among((args, kwargs)))
            assert isinstance(written, ZeroParameter)
            _Away.writer(written)
        away = next(_away_among((args, kwargs)), None)
        if away is not None:
            raise _unreadable(away, _name_of(func))
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        raise _unreadable(self, "copy.deepcopy")

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise _unreadable(self, "pickle")

    def __repr__(self) -> str:
        assert isinstance(self, ZeroParameter)
        place = self._ds_place
        return (
            f"Parameter {place.name}: {tuple(self.shape)}, {self.dtype}, spread over "
            f"{place.home.ranks} ranks"
        )

    def __format__(self, spec: str) -> str:
        return format(repr(self), spec)

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
    """Where its values are."""
    return parameter._ds_place


def show(parameter: ZeroParameter, *, is_away: bool) -> None:
    """From now on reading it raises, or does not."""
    if isinstance(parameter, _Away) != is_away:
        plain: type = type(parameter)._plain_class
        parameter.__class__ = _class_of(plain, is_away=is_away)


def set_writer(writer: Callable[[ZeroParameter], None] | None) -> None:
    """What brings a parameter that is about to be written to; None: writing raises."""
    _Away.writer = writer


@cache
def _class_of(plain: type, *, is_away: bool) -> type:
    """The class that parameters of class `plain` have under ZeRO 3."""
    bases: tuple[type, ...] = (ZeroParameter, plain)
    if plain is torch.nn.Parameter:
        bases = (ZeroParameter,)
    if is_away:
        bases = (_Away, *bases)
    return types.new_class(
        "ZeroParameter",
        bases,
        exec_body=lambda body: body.update(_plain_class=plain, __module__=__name__),
    )


def _plain(parameter: ZeroParameter) -> torch.nn.Parameter:
    values = parameter.detach().clone(memory_format=torch.preserve_format)
    copy = torch.nn.Parameter(values, parameter.requires_grad)
    copy.__class__ = type(parameter)._plain_class
    for name, value in parameter.__dict__.items():
        if name not in _OWN:
            copy.__dict__[name] = value
    return copy


# Of tensors' attributes, those that are views of values; all others are facts about them.
_VALUES = {"data", "T", "H", "mT", "mH", "real", "imag", "__cuda_array_interface__"}
_FACTS = {
    *("size", "dim", "ndimension", "numel", "nelement", "element_size", "stride", "storage_offset"),
    *("is_contiguous", "is_floating_point", "is_complex", "is_signed", "is_conj", "is_neg"),
    *("is_inference", "is_same_size", "get_device", "dim_order", "result_type", "__len__"),
    *("new_tensor", "new_empty", "new_zeros", "new_ones", "new_full"),
    *("empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like"),
    *("requires_grad_", "retain_grad", "register_hook", "register_post_accumulate_grad_hook"),
}


def _needs_values(func: Callable[..., Any]) -> bool:
    name = func.__name__
    if name in ("__get__", "__set__", "__delete__"):
        attribute: str = func.__self__.__name__  # type: ignore[attr-defined]
        return attribute in _VALUES
    return name not in _FACTS


# Operators that give views, which may be written to.
_VIEWS = {
    *("__getitem__", "detach", "view", "view_as", "reshape", "flatten", "narrow", "select"),
    *("chunk", "split", "unbind", "t", "transpose", "permute", "squeeze", "unsqueeze", "expand"),
}


def _may_write(func: Callable[..., Any]) -> bool:
    """Whether it changes a tensor in place, as all of torch.nn.init do, or gives a view."""
    name = func.__name__
    if name == "__get__":
        attribute: str = func.__self__.__name__  # type: ignore[attr-defined]
        return attribute == "data"
    if name.startswith("__"):
        return name in ("__setitem__", "__getitem__")
    return name.endswith("_") or name in _VIEWS


def _name_of(func: Callable[..., Any]) -> str:
    if func.__name__ in ("__get__", "__set__"):
        return f".{func.__self__.__name__}"  # type: ignore[attr-defined]
    return f"{func.__name__}()"


def _away_among(values: Any) -> Iterator[_Away]:
    return (each for each in pytree.tree_leaves(values) if isinstance(each, _Away))


def _unreadable(parameter: _Away, what: str) -> Error:
    assert isinstance(parameter, ZeroParameter)
    place = parameter._ds_place
    return Error(
        f'parameter "{place.name}" is spread over {place.home.ranks} ranks: {what} would need its '
        f"values here",
        (
            "inside `with penstock.zero.GatheredParameters(parameter):`, which all ranks enter, it "
            "is whole",
            "in a forward it is whole when the model runs through its engine",
        ),
    )
