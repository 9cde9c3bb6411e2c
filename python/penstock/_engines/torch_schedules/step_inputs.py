"""What a caller gives to a step, whole or by microbatch, as what each microbatch gets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from penstock._engines.torch_schedules.microbatch import split_args_kwargs_into_chunks, split_value

__all__ = ["Batch"]


class Batch(NamedTuple):
    """args, kwargs, target: to be split; arg_mbs, kwarg_mbs, target_mbs: the same by microbatch."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    target: Any = None
    arg_mbs: Sequence[Any] | None = None
    kwarg_mbs: Sequence[Any] | None = None
    target_mbs: Sequence[Any] | None = None

    def inputs(
        self, count: int, args_spec: Any, kwargs_spec: Any
    ) -> tuple[list[tuple[Any, ...]], list[dict[str, Any]]]:
        """The positional and the keyword arguments of each of `count` microbatches.

        Raises ValueError for arguments that cannot be split, or are given in both ways.
        """
        args, kwargs = split_args_kwargs_into_chunks(
            self.args,
            self.kwargs,
            count,
            args_spec if self.args else None,  # Other ranks have it, too.
            kwargs_spec if self.kwargs else None,
        )
        if self.arg_mbs is not None:
            _check_once("arg_mbs", bool(self.args), "positional arguments")
            args = [tuple(each) for each in _checked("arg_mbs", self.arg_mbs, count, tuple)]
        if self.kwarg_mbs is not None:
            _check_once("kwarg_mbs", bool(self.kwargs), "keyword arguments")
            kwargs = [dict(each) for each in _checked("kwarg_mbs", self.kwarg_mbs, count, dict)]
        return args, kwargs

    def targets(self, count: int) -> list[Any] | None:
        """The target of each of `count` microbatches; None: there is none."""
        if self.target_mbs is None:
            return None if self.target is None else split_value(self.target, None, count, "target")
        _check_once("target_mbs", self.target is not None, "target")
        return _checked("target_mbs", self.target_mbs, count, object)


def _check_once(name: str, is_given_whole: bool, whole: str) -> None:
    if is_given_whole:
        raise ValueError(f"{name} and {whole} are given: give the batch whole or by microbatch")


def _checked(name: str, values: Sequence[Any], count: int, kind: type) -> list[Any]:
    if not isinstance(values, list | tuple) or len(values) != count:
        has = f"{len(values)}" if isinstance(values, list | tuple) else f"a {type(values).__name__}"
        raise ValueError(f"{name} has {has}, must be a list of n_microbatches: {count}")
    for number, each in enumerate(values):
        if not isinstance(each, kind):
            raise ValueError(
                f"{name}[{number}] is a {type(each).__name__}, must be a {kind.__name__}"
            )
    return list(values)
