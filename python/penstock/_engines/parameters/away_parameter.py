"""What operators meet that read a parameter whose values are away, outside of an engine's forward.

It comes, collectively: all ranks read it next, and it goes again.  What is written to it in place
becomes what rank 0 has written.  Views bring it when they are read.  Those that detach() gives need
no memory, and bring nothing before.
What only asks for facts, such as a shape, is answered here and now.  What would give out memory
that nobody watches, such as data_ptr(), raises.
Knows neither ranks nor pages: a ParameterHome brings parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack
from typing import Any, Protocol

import torch
from torch.utils import _pytree as pytree

from penstock import _torch
from penstock._engines.parameters import tensor_functions
from penstock.errors import Error

__all__ = ["Away", "HomeOfAway", "View", "set_writer"]


class HomeOfAway(Protocol):
    """What parameters that are away ask of who has their values (parameter_home.py)."""

    @property
    def ranks(self) -> int: ...
    def reading(self, numbers: list[int]) -> AbstractContextManager[None]: ...
    def writing(self, numbers: list[int]) -> AbstractContextManager[None]: ...
    @property
    def brings_to_graphs(self) -> bool: ...
    def watch(self, output: Any) -> None: ...


class Away:
    """A parameter whose values are away, or a view of one.

    writer: brings one that is about to be written to, in place of its home; None: that does.
    """

    writer: Callable[[Any], None] | None = None

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        kinds: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        away = list(_away_among((args, kwargs)))
        if not away or not tensor_functions.needs_values(func):
            return _plainly(func, args, kwargs)
        tensor, *rest = args or (None,)
        is_first = isinstance(tensor, Away)
        if is_first and tensor_functions.gives_itself(func, tensor, rest, kwargs):
            return tensor_functions.result_of_itself(func, tensor)
        if tensor_functions.shows_memory(func):
            raise _unreadable(away[0], tensor_functions.name_of(func))
        writes = tensor_functions.may_write(func, kwargs)
        if Away.writer is not None and (writes or tensor_functions.gives_view(func)):
            Away.writer(away[0])
            return _plainly(func, args, kwargs)
        if tensor_functions.is_lazy(func):
            return _as_view(_unobserved(func, args, kwargs), away[0])
        if func.__name__ == "__set__":
            func = _set_data
        lasts = tensor_functions.copies(func)
        return _lasting(_read(func, args, kwargs, away, writes=writes, lasts=lasts), away)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if id(self) not in memo:
            memo[id(self)] = _whole_copy(self)
        return memo[id(self)]

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _whole_copy(self).__reduce_ex__(protocol)

    def __repr__(self) -> str:
        assert isinstance(self, torch.Tensor)
        place = parameter_of(self)._ds_place
        return (
            f"{self._word} {place.name}: {tuple(self.shape)}, {self.dtype}, spread over "
            f"{place.home.ranks} ranks"
        )

    def __format__(self, spec: str) -> str:
        return format(repr(self), spec)

    def __hash__(self) -> int:
        return id(self)

    _word = "Parameter"


class View(Away, torch.Tensor):  # type: ignore[misc]
    """A view of a parameter that was away then; like any tensor once that is here."""

    _word = "View of parameter"
    _ds_parameter: Any


def set_writer(writer: Callable[[Any], None] | None) -> None:
    """What brings a parameter that is about to be written to; None: its home."""
    Away.writer = writer


def parameter_of(value: Any) -> Any:
    """The parameter whose values it has."""
    return value._ds_parameter if isinstance(value, View) else value


def _away_among(values: Any) -> Iterator[Any]:
    """The parameters behind what is given, that are away, each once."""
    seen: set[int] = set()
    for each in pytree.tree_leaves(values):
        if not isinstance(each, Away):
            continue
        parameter = parameter_of(each)
        if isinstance(parameter, Away) and id(parameter) not in seen:
            seen.add(id(parameter))
            yield parameter


def _plainly(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    with torch._C.DisableTorchFunctionSubclass():
        return func(*args, **kwargs)


def _unobserved(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    return _torch.load().unobserved(lambda: _plainly(func, args, kwargs))


def _read(
    func: Callable[..., Any],
    args: Any,
    kwargs: Any,
    away: list[Any],
    *,
    writes: bool,
    lasts: bool,
) -> Any:
    """Collective: what the function returns, of parameters that are here while it runs.

    lasts: what it returns has memory of what it is given, and nothing would bring that again.
    """
    homes = _by_home(away)
    with ExitStack() as stack:
        for home, numbers in homes:
            stack.enter_context(home.writing(numbers) if writes else home.reading(numbers))
        if lasts or not (writes or all(home.brings_to_graphs for home, _ in homes)):
            args, kwargs = _with_copies((args, kwargs), away)
        result = _plainly(func, args, kwargs)
    for home, _ in homes:
        home.watch(result)
    return result


def _with_copies(values: Any, away: list[Any]) -> Any:
    """The values with copies that outlast the parameters' stay; gradients pass through them."""
    parameters = {id(each) for each in away}

    def copied(value: torch.Tensor) -> torch.Tensor:
        # While a parameter is here, its class is not Away.
        if id(parameter_of(value)) not in parameters:
            return value
        with torch._C.DisableTorchFunctionSubclass():
            return torch.Tensor.clone(value)

    return pytree.tree_map_only(torch.Tensor, copied, values)


def _whole_copy(value: Any) -> Any:
    """A tensor of its own, or a parameter, which ZeRO knows nothing of."""
    parameter = parameter_of(value)
    values = value
    if isinstance(parameter, Away):
        values = _read(_detached, (value,), {}, [parameter], writes=False, lasts=True)
    return values.detach().clone() if isinstance(value, View) else parameter.plain(values)


def _detached(values: torch.Tensor) -> torch.Tensor:
    return values.detach()


def _set_data(target: Any, values: torch.Tensor) -> None:
    """`target.data = values`."""
    # One that has been brought stays where it is, too: its values come and go with that memory.
    is_spread = isinstance(target, Away) or hasattr(target, "_ds_place")
    if not is_spread:
        target.data = values.detach().clone()
        return
    if isinstance(values, Away) and parameter_of(values) is parameter_of(target):
        return
    if values.shape != target.shape or values.dtype != target.dtype:
        place = parameter_of(target)._ds_place
        raise Error(
            f'parameter "{place.name}" is spread over {place.home.ranks} ranks: .data = of '
            f"{tuple(values.shape)}, {values.dtype}, must be of {tuple(target.shape)}, "
            f"{target.dtype}"
        )
    with torch.no_grad():
        target.detach().copy_(values)


def _by_home(away: Iterable[Any]) -> list[tuple[HomeOfAway, list[int]]]:
    homes: dict[int, tuple[HomeOfAway, list[int]]] = {}
    for parameter in away:
        place = parameter._ds_place
        homes.setdefault(id(place.home), (place.home, []))[1].append(place.number)
    return list(homes.values())


def _lasting(result: Any, away: list[Any]) -> Any:
    """What shares memory that goes becomes a view that brings it."""
    if isinstance(result, torch.Tensor):
        storage = _storage_of(result)
        base = next((each for each in away if _storage_of(each) == storage), None)
        return result if base is None else _as_view(result, base)
    if isinstance(result, (tuple, list)):
        return pytree.tree_map_only(torch.Tensor, lambda each: _lasting(each, away), result)
    if isinstance(result, Iterator):
        return (_lasting(each, away) for each in result)
    return result


def _as_view(result: torch.Tensor, base: Any) -> Any:
    """The result as a view of the parameter `base`."""
    if isinstance(result, Away):
        return result
    with torch._C.DisableTorchFunctionSubclass():
        view = _torch.load().unobserved(lambda: result.as_subclass(View))
    view._ds_parameter = base
    return view


def _storage_of(tensor: torch.Tensor) -> int:
    with torch._C.DisableTorchFunctionSubclass():
        storage: int = tensor.untyped_storage()._cdata
    return storage


def _unreadable(parameter: Any, what: str) -> Error:
    place = parameter._ds_place
    return Error(
        f'parameter "{place.name}" is spread over {place.home.ranks} ranks: {what} would need its '
        f"values here",
        (
            "inside `with penstock.zero.GatheredParameters(parameter):`, which all ranks enter, it "
            "is whole",
        ),
    )
