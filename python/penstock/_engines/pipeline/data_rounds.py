"""Microbatches: pairs of inputs and labels, from iterators and loaders.

Knows no stages: who needs data asks for it.
"""

from __future__ import annotations

from penstock import _torch  # noqa: F401  (Says what to install.)

# isort: split
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, RandomSampler
from torch.utils.data.distributed import DistributedSampler

from penstock._engines.saving import random_states
from penstock._engines.saving.module_states import digest
from penstock.errors import ConfigError, Error

__all__ = ["DataRounds", "take"]


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


class DataRounds(Iterator[Any]):
    """Goes round a loader, in another order each time; ends where it is empty."""

    def __init__(self, loader: Iterable[Any]) -> None:
        self._loader = loader
        self._iterator: Iterator[Any] | None = None
        self._round = 0
        self._taken = 0  # Batches of this round.
        self._start: dict[str, Any] = {}
        self._after_skipping: list[torch.Tensor] = []
        self._order = ""

    def __next__(self) -> Any:
        while True:
            if self._iterator is None:
                self._begin()
            assert self._iterator is not None
            try:
                batch = next(self._iterator)
            except StopIteration:
                if self._taken == 0:
                    raise
                self._iterator = None
                self._round += 1
                continue
            self._taken += 1
            return batch

    def told(self) -> str:
        """A text by which ranks compare the data they go round, and its order if that is drawn."""
        count = len(self._loader) if isinstance(self._loader, Sized) else "an unknown number of"
        return f"{count} batches, {self._taken} of round {self._round} taken{self._order}"

    def place(self) -> dict[str, Any]:
        """The place that it is at: plain values, for at()."""
        begun = self._iterator is not None
        return {
            "round": self._round,
            "taken": self._taken if begun else 0,
            "start": self._start if begun else {},
            "generators": [each.get_state() for each in self._generators()],
        }

    def at(self, place: Mapping[str, Any]) -> DataRounds:
        """Others of the same loader, that go on from a place when settle() has been called.

        They skip what that round has given.  Random numbers go on as if this had not been called.
        Raises ConfigError where the loader has less than that.
        """
        found = DataRounds(self._loader)
        found._round, skips = place["round"], place["taken"]
        before, own = random_states.take(), [each.get_state() for each in self._generators()]
        try:
            if place["start"]:
                random_states.put(place["start"]["random"])
                found._set_generators(place["start"]["generators"])
            if skips:
                found._begin()
                found._skip(skips)
        finally:
            random_states.put(before)
            self._set_generators(own)
        found._after_skipping = list(place["generators"])
        return found

    def settle(self) -> None:
        """Has the loader's own generators be where they were at that place."""
        self._set_generators(self._after_skipping)

    def _begin(self) -> None:
        sampler = getattr(self._loader, "sampler", None)
        if isinstance(sampler, DistributedSampler):
            sampler.set_epoch(self._round)
        generators = [each.get_state() for each in self._generators()]
        self._start = {"random": random_states.take(), "generators": generators}
        self._order = self._drawn_order()
        self._iterator = iter(self._loader)
        self._taken = 0

    def _drawn_order(self) -> str:
        """What a round's order is drawn from, by a loader that draws it by chance."""
        sampler = getattr(self._loader, "sampler", None)
        if not isinstance(sampler, RandomSampler):
            return ""
        own = sampler.generator
        state = self._start["random"]["torch"] if own is None else own.get_state()
        return f", in the order of the random state {digest('order', state)[:8]}"

    def _skip(self, count: int) -> None:
        """Passes over batches; those of a loader of this process are not even made."""
        loader, iterator = self._loader, self._iterator
        advance: Any = iterator.__next__ if iterator is not None else None
        if isinstance(loader, DataLoader) and loader.num_workers == 0:
            is_indexed = not isinstance(loader.dataset, IterableDataset)
            advance = getattr(iterator, "_next_index", advance) if is_indexed else advance
        for number in range(count):
            try:
                advance()
            except StopIteration:
                raise ConfigError(
                    f"the checkpoint was saved after {count} microbatches of a round of the data, "
                    f"and the loader has {number}: give the engine the loader that it had"
                ) from None
        self._taken = count

    def _generators(self) -> list[torch.Generator]:
        """The generators that were given to the loader, and to what it draws its order with."""
        batches = getattr(self._loader, "batch_sampler", None)
        owners = [self._loader, getattr(self._loader, "sampler", None), batches]
        owners.append(getattr(batches, "sampler", None))
        found = [getattr(each, "generator", None) for each in owners]
        distinct = {id(each): each for each in found if isinstance(each, torch.Generator)}
        return list(distinct.values())

    def _set_generators(self, states: Sequence[torch.Tensor]) -> None:
        for generator, state in zip(self._generators(), states, strict=False):
            generator.set_state(state)
