"""What ranks take for granted of a step, as numbers that a step's own sums carry along.

Schedulers and scripts change an optimizer's options on each rank by itself.  Replicas that step
with different ones drift apart, or, with ZeRO, update halves of a tensor by different rates.  So
each rank makes a number of what it has, gets those of the others for nothing, and where two differ
the ranks compare the facts themselves, which ends in an error that names them.  Knows no engines.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from penstock import _torch
from penstock._engines.update.optimizers import facts_of_options

if TYPE_CHECKING:
    from penstock._runtime import Communicator

__all__ = ["Compared", "Facts", "Options", "StepSignals"]

Facts = list[tuple[str, str]]
_PLAIN = {int, float, bool, str, type(None)}
_BYTES = 6  # Bytes of a number, which a double holds exactly.


@dataclass(frozen=True)
class Compared:
    """facts: of this rank, by the names of docs/handshake.md; none: it has nothing to compare.

    groups: the ranks that must have the same.
    """

    facts: Callable[[], Facts]
    groups: list[list[int]]


class StepSignals:
    """The words of a rank: a number for each that is compared, and rank."""

    def __init__(self, communicator: Communicator, compared: Sequence[Compared]) -> None:
        self._communicator = communicator
        self._compared = compared if communicator.world_size > 1 else ()

    def mine(self) -> list[float]:
        """Numbers to be summed over all ranks: this one's, and 0 for all others'."""
        ranks = self._communicator.world_size
        words = [0.0] * (len(self._compared) * ranks)
        for i, each in enumerate(self._compared):
            words[i * ranks + self._communicator.rank] = _number_of(each.facts())
        return words

    def check(self, words: Sequence[float]) -> None:
        """Collective where they differ, which all ranks see.  words: the sums.

        Raises CommError with the facts that differ, the ranks that have them, and both values.
        """
        ranks = self._communicator.world_size
        for i, each in enumerate(self._compared):
            of_ranks = words[i * ranks : (i + 1) * ranks]
            groups = [[rank for rank in group if of_ranks[rank]] for group in each.groups]
            if all(of_ranks[rank] == of_ranks[group[0]] for group in groups for rank in group):
                continue
            known = [group for group in groups if group]
            _torch.load().agree(self._communicator, "step", each.facts(), known)


class Options:
    """The options of an optimizer's groups, as facts; made again when one has changed."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._values: list[list[Any]] = []
        self._facts: Facts = []

    def facts(self) -> Facts:
        values = [_values_of(group) for group in self._optimizer.param_groups]
        if values != self._values:
            self._values, self._facts = values, facts_of_options(self._optimizer)
        return self._facts


def _values_of(group: dict[str, Any]) -> list[Any]:
    """What a comparison with earlier ones can trust: a tensor may have changed in place."""
    return [
        value if type(value) in _PLAIN else _copied(value)
        for key, value in group.items()
        if key != "params"
    ]


def _copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.tolist()
    return [_copied(each) for each in value] if isinstance(value, list | tuple) else value


def _number_of(facts: Facts) -> float:
    """0 of none, and of no others."""
    if not facts:
        return 0.0
    digest = hashlib.blake2b(repr(facts).encode(), digest_size=_BYTES).digest()
    return float(1 + int.from_bytes(digest, "little"))
