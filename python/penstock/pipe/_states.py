"""What a rank of a pipeline has for its updates, by parameter, so that any other layout takes it.

Knows no files and no other ranks.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from penstock.errors import ConfigError

if TYPE_CHECKING:
    from penstock._update import Update
    from penstock.pipe._replicated import ReplicatedStages

__all__ = ["States"]

Pieces = Mapping[str, Sequence[Mapping[str, Any]]]
"""By parameter, what ranks have saved of it."""


@dataclass(frozen=True)
class States:
    """What a rank has for its updates: of its parts of parameters, masters and optimizer states.

    elsewhere: ids of parameters that another rank has in its file, and nobody reads here.
    """

    replicated: ReplicatedStages
    update: Update
    elsewhere: frozenset[int]

    def take(self) -> dict[str, dict[str, Any]]:
        """By parameter, under each of its names: which elements its part is, and their state.

        A part that is its own master has none.
        """
        taken = {}
        for names, first, part, master in self._parts():
            piece = {
                "first": first,
                "elements": master.numel(),
                "shape": list(master.shape),
                "master": None if master is part else master.detach(),
                "state": dict(self.update.optimizer.state.get(master, {})),
            }
            taken.update(dict.fromkeys(names, piece))
        return taken

    def names(self) -> set[str]:
        """Of the parameters that put() needs."""
        return {names[0] for names, *_ in self._parts()}

    def check(self, saved: Pieces, where: Path) -> None:
        """Raises ConfigError where `saved`, the content of `where`, lacks what put() needs."""
        for names, first, _, master in self._parts():
            pieces = _sorted(saved.get(names[0], []))
            if not _covers(pieces, first, first + master.numel()):
                raise ConfigError(f"{where} has no optimizer state of {names[0]}")
            if len({piece["master"] is None for piece in pieces}) > 1 or any(
                piece["state"].keys() != pieces[0]["state"].keys() for piece in pieces
            ):
                raise ConfigError(
                    f"{where}: what ranks have saved of the optimizer state of {names[0]} does not "
                    f"fit together"
                )

    def put(self, saved: Pieces) -> None:
        """What take() gave, of parts that may be others, by parameter; check() has let it pass."""
        for names, first, _, master in self._parts():
            pieces = _sorted(saved[names[0]])
            own = [each for each in pieces if _is_piece(each, first, master)]
            if pieces[0]["master"] is not None:
                with torch.no_grad():
                    master.copy_(_cut([(each, each["master"]) for each in pieces], first, master))
            state = {}
            for key, value in (own or pieces)[0]["state"].items():
                state[key] = copy.deepcopy(value)  # Not the pages of a file.
                is_by_element = isinstance(value, torch.Tensor) and (
                    value.numel() == pieces[0]["elements"] > 1
                )
                if is_by_element and not own:
                    state[key] = _cut(
                        [(each, each["state"][key]) for each in pieces], first, master
                    )
            if state:
                self.update.optimizer.state[master] = state
                self.update.keep(master)

    def _parts(self) -> Iterator[tuple[list[str], int, torch.Tensor, torch.Tensor]]:
        """The parameter's names, first element, and master, of each part that is updated here."""
        masters = iter(self.update.masters)
        for i in self.update.updated:
            parameter = self.replicated.parameters[i]
            names = self.replicated.names[id(parameter)]
            for part in self.replicated.parts[i]:
                master = next(masters)
                if id(parameter) not in self.elsewhere:
                    yield names, self.replicated.first[i], part, master


def _sorted(pieces: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return sorted(pieces, key=lambda piece: int(piece["first"]))


def _is_piece(piece: Mapping[str, Any], first: int, part: torch.Tensor) -> bool:
    """Whether it is of this part, whose states need no cutting, whatever their form."""
    return bool(piece["first"] == first and piece["shape"] == list(part.shape))


def _covers(pieces: Sequence[Mapping[str, Any]], first: int, end: int) -> bool:
    for piece in pieces:
        if piece["first"] <= first:
            first = max(first, piece["first"] + piece["elements"])
    return first >= end and bool(pieces)


def _cut(
    pieces: Sequence[tuple[Mapping[str, Any], torch.Tensor]], first: int, like: torch.Tensor
) -> torch.Tensor:
    """The elements from `first` on that a tensor `like` has, from tensors of pieces."""
    cut = torch.empty(like.shape, dtype=pieces[0][1].dtype)
    for piece, values in pieces:
        begin = max(first, piece["first"])
        end = min(first + like.numel(), piece["first"] + piece["elements"])
        if begin < end:
            flat = values.reshape(-1)[begin - piece["first"] : end - piece["first"]]
            cut.view(-1)[begin - first : end - first] = flat
    return cut
