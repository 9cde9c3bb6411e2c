"""Microbatches: pairs of inputs and labels, from iterators and loaders.

Knows no stages: who needs data asks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch.utils.data.distributed import DistributedSampler

from penstock.errors import ConfigError, Error

__all__ = ["again_and_again", "take"]


def take(
    iterator: Iterator[Any] | None,
    count: int,
    batch_fn: Callable[[Any], Any] | None,
    where: str,
) -> list[tuple[Any, Any]]:
    """The next `count` pairs; inputs that are a list come as a tuple.

    batch_fn: makes them of what the iterator gives.  where: this rank's part and step, for errors.

    Raises Error where the iterator ends before, and TypeError for what is no pair.
    """
    if iterator is None:
        raise ConfigError(
            "no data: give train_batch() an iterator, or the engine a dataset or a loader"
        )
    pairs = []
    for number in range(count):
        try:
            batch = next(iterator)
        except StopIteration:
            raise Error(
                f"the data of {where} ended after {number} of {count} microbatches"
            ) from None
        pairs.append(_pair(batch if batch_fn is None else batch_fn(batch)))
    return pairs


def _pair(batch: Any) -> tuple[Any, Any]:
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        raise TypeError(
            f"the data gave a {type(batch).__name__}, must give pairs (inputs, labels); "
            f"set_batch_fn() makes them of anything"
        )
    inputs, labels = batch
    return tuple(inputs) if isinstance(inputs, list) else inputs, labels


def again_and_again(loader: Iterable[Any]) -> Iterator[Any]:
    """Goes round a loader, in another order each time; ends where it is empty."""
    epoch = 0
    while True:
        sampler = getattr(loader, "sampler", None)
        if isinstance(sampler, DistributedSampler):
            sampler.set_epoch(epoch)
        empty = True
        for batch in loader:
            empty = False
            yield batch
        if empty:
            return
        epoch += 1
