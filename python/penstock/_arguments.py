"""Checks of arguments, so that a wrong one is named with its value and what is allowed."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from numbers import Real
from typing import Any

__all__ = ["Cost", "cost", "integer", "number", "optional_integer"]

Cost = float | Sequence[float] | Sequence[Sequence[float]]
"""For all stages, by stage, or by stage and microbatch."""


def integer(name: str, value: Any) -> int:
    """`value`, if it is an integer that fits 32 bits; a TypeError or ValueError if not."""
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        kind = type(value).__name__
        raise TypeError(f"{name} is {value!r} of type {kind}, must be an integer") from None
    if not -(2**31) <= number < 2**31:
        raise ValueError(f"{name} is {number}, must be of 32 bits")
    return number


def optional_integer(name: str, value: Any) -> int | None:
    """The same, or None."""
    return None if value is None else integer(name, value)


def number(name: str, value: Any) -> float:
    """`value`, if it is a finite number; a TypeError or ValueError if not."""
    if isinstance(value, bool) or not isinstance(value, Real):
        kind = type(value).__name__
        raise TypeError(f"{name} is {value!r} of type {kind}, must be a number")
    if not math.isfinite(value):
        raise ValueError(f"{name} is {value!r}, must be finite")
    return float(value)


def cost(name: str, value: Any) -> Cost:
    """`value`, if it is a number, or a list of numbers, or a list of such lists."""
    if not isinstance(value, Sequence) or isinstance(value, str):
        return number(name, value)
    if value and all(isinstance(each, Sequence) and not isinstance(each, str) for each in value):
        return [
            [number(f"{name}[{i}][{j}]", each) for j, each in enumerate(row)]
            for i, row in enumerate(value)
        ]
    return [number(f"{name}[{i}]", each) for i, each in enumerate(value)]
