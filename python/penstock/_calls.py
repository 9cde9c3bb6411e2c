"""The door through which calls that all ranks make together are entered.

A call says its name here, and that it has begun or ended; whatever it calls in turn belongs to it.
The communicators number it when it is first spoken in, compare numbers, and name it where ranks
wait for each other in different calls (penstock/runtime/comm/calls.h).  docs/calls.md has all of
them.  Knows no communicator.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import ParamSpec, TypeVar

from penstock import _torch

__all__ = ["CALLS", "ForAllRanks", "calling", "for_all_ranks"]

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


@functools.cache
def _runtime() -> ModuleType:
    return _torch.load()


@dataclass(frozen=True)
class ForAllRanks:
    """A call, as errors name it, and of what.  when: it waits for others; "": always."""

    name: str
    of: str
    when: str = ""


CALLS: dict[tuple[str, str], ForAllRanks] = {}
"""All that modules which were imported have, by what they are of and their names."""


def for_all_ranks(
    of: str, when: str = "", name: str | None = None
) -> Callable[[Callable[_Arguments, _Result]], Callable[_Arguments, _Result]]:
    """Makes a function or method such a call.  name: None: its own, with parentheses."""

    def decorate(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
        said = name or f"{function.__name__}()"
        CALLS[of, said] = ForAllRanks(said, of, when)

        @functools.wraps(function)
        def call(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
            runtime = _runtime()
            runtime.begin_call(said)
            try:
                return function(*args, **kwargs)
            finally:
                runtime.end_call()

        return call

    return decorate


@contextmanager
def calling(name: str, *, of_all: bool = True) -> Iterator[None]:
    """The same for a block.  of_all: False: only some ranks of a communicator make it."""
    runtime = _runtime()
    runtime.begin_call(name, of_all)
    try:
        yield
    finally:
        runtime.end_call()
