"""Ranks on axes: which rank has which place among stages, replicas and whatever else there is.

    >>> topology = PipeDataParallelTopology(num_pp=2, num_dp=2)
    >>> topology.get_rank(pipe=1, data=0)
    2
    >>> topology.get_axis_comm_lists("data")
    [[0, 1], [2, 3]]

Ranks are counted with the last axis fastest.  Knows no processes and no process groups.

Source: deepspeed.runtime.pipe.topology.
"""

from __future__ import annotations

import math
from collections import namedtuple
from collections.abc import Iterable, Sequence
from typing import Any

from penstock import _arguments
from penstock._compatibility import published_as

__all__ = [
    "PipeDataParallelTopology",
    "PipeModelDataParallelTopology",
    "ProcessTopology",
    "_prime_factors",
]


class ProcessTopology:
    """A grid of ranks.

    axes: its axes' names, the outermost first; dims: how many places each has, at least 1.

    Raises ValueError for names that are taken twice or are no identifiers, for sizes below 1, and
    where there are not as many names as sizes.
    """

    def __init__(self, axes: Sequence[str], dims: Sequence[int]) -> None:
        self.axes = list(axes)
        self.dims = [_arguments.integer(f"dims[{i}]", size) for i, size in enumerate(dims)]
        if len(self.axes) != len(self.dims):
            raise ValueError(f"axes are {self.axes}, and dims are {self.dims}: one for each axis")
        if len(set(self.axes)) != len(self.axes):
            raise ValueError(f"axes are {self.axes}: each name can stand once")
        for axis, size in zip(self.axes, self.dims, strict=True):
            if size < 1:
                raise ValueError(f"dims has {size} for axis {axis!r}, must be at least 1")
        self.ProcessCoord: Any = namedtuple("ProcessCoord", self.axes)  # type: ignore[misc]
        self._strides = [math.prod(self.dims[i + 1 :]) for i in range(len(self.dims))]

    @property
    def mapping(self) -> dict[Any, int]:
        """The rank of each coordinate."""
        return {self.get_coord(rank): rank for rank in range(self.world_size())}

    def world_size(self) -> int:
        """How many ranks there are."""
        return math.prod(self.dims)

    def get_axis_names(self) -> list[str]:
        """The axes, the outermost first."""
        return list(self.axes)

    def get_dim(self, axis: str) -> int:
        """How many places an axis has; 0 where there is no such axis."""
        return self.dims[self.axes.index(axis)] if axis in self.axes else 0

    def get_rank(self, **coordinate: int) -> int:
        """The rank at a place on every axis.

        Raises ValueError where an axis is missing (filter_match() is for that), is none of these,
        or has no such place.
        """
        if sorted(coordinate) != sorted(self.axes):
            raise ValueError(
                f"get_rank() got {_listed(coordinate)}, must get each of the axes "
                f"{_listed(self.axes)}; use filter_match() for some of them"
            )
        for axis, place in coordinate.items():
            self._check_place(axis, place)
        return sum(
            coordinate[axis] * stride for axis, stride in zip(self.axes, self._strides, strict=True)
        )

    def get_coord(self, rank: int) -> Any:
        """The place of a rank, as a named tuple with a field per axis.

        Raises ValueError for a rank that is not there.
        """
        if not 0 <= rank < self.world_size():
            raise ValueError(f"rank is {rank}, must be 0 to {self.world_size() - 1}")
        places = [
            rank // stride % size for stride, size in zip(self._strides, self.dims, strict=True)
        ]
        return self.ProcessCoord(*places)

    def get_rank_repr(
        self,
        rank: int,
        omit_axes: Iterable[str] = ("data", "pipe"),
        inner_sep: str = "_",
        outer_sep: str = "-",
    ) -> str:
        """A name for files: "model_00", of all axes but `omit_axes`."""
        omitted = frozenset(omit_axes)
        coordinate = self.get_coord(rank)
        return outer_sep.join(
            f"{axis}{inner_sep}{place:02d}"
            for axis, place in zip(self.axes, coordinate, strict=True)
            if axis not in omitted
        )

    def get_axis_comm_lists(self, axis: str) -> list[list[int]]:
        """The groups of ranks that differ in their place on `axis` alone; none if there is none."""
        if axis not in self.axes:
            return []
        groups: dict[tuple[int, ...], list[int]] = {}
        index = self.axes.index(axis)
        for rank in range(self.world_size()):
            place = tuple(self.get_coord(rank))
            groups.setdefault(place[:index] + place[index + 1 :], []).append(rank)
        return list(groups.values())

    def filter_match(self, **places: int) -> list[int]:
        """The ranks that have these places on these axes, in rising order.

        Raises ValueError for an axis that is not there.
        """
        unknown = [axis for axis in places if axis not in self.axes]
        if unknown:
            raise ValueError(f"no axis {_listed(unknown)}: there are {_listed(self.axes)}")
        return [
            rank
            for rank in range(self.world_size())
            if all(getattr(self.get_coord(rank), axis) == at for axis, at in places.items())
        ]

    def get_axis_list(self, axis: str, idx: int) -> list[int]:
        """The ranks at place `idx` of an axis, in rising order."""
        return self.filter_match(**{axis: idx})

    def __str__(self) -> str:
        return " x ".join(
            f"{axis}({size})" for axis, size in zip(self.axes, self.dims, strict=True)
        )

    def _check_place(self, axis: str, place: int) -> None:
        size = self.get_dim(axis)
        if not 0 <= place < size:
            raise ValueError(f"{axis} is {place}, must be 0 to {size - 1}")


class PipeDataParallelTopology(ProcessTopology):
    """Stages x replicas, replicas fastest: what the engine runs on."""

    def __init__(self, num_pp: int, num_dp: int) -> None:
        super().__init__(axes=["pipe", "data"], dims=[num_pp, num_dp])


class PipeModelDataParallelTopology(ProcessTopology):
    """Stages x replicas x shards of a layer, these fastest."""

    def __init__(self, num_pp: int, num_mp: int, num_dp: int) -> None:
        super().__init__(axes=["pipe", "data", "model"], dims=[num_pp, num_dp, num_mp])


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "nothing"


def _prime_factors(number: int) -> list[int]:
    """Prime factors of `number`, rising.  Raises ValueError for a number below 1."""
    if number < 1:
        raise ValueError(f"{number} has no prime factors: it must be at least 1")
    found, factor = [], 2
    while number > 1:
        while number % factor == 0:
            found.append(factor)
            number //= factor
        factor += 1
    return found


published_as("penstock.pipe.topology", globals())
