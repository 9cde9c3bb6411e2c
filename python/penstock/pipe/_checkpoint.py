"""Checkpoints of an engine, by layer and by parameter: any other layout can go on from them.

    DIRECTORY/latest                             the tag to load if none is given
    DIRECTORY/TAG/layer_03-model_states.pt       weights and buffers of layer 3, by name
    DIRECTORY/TAG/optim_states-01-00.pt          by parameter, what a rank has for its updates: of
                                                 which elements, master, the optimizer's state
    DIRECTORY/TAG/engine.pt                      counters, rates, the course, the loss scale,
                                                 what the caller adds

A tied layer is in the file of the first layer of its key.  Files are whole or not there; `latest`
changes when all ranks have written.  Files are read without running what is in them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from penstock import _planning
from penstock.errors import ConfigError
from penstock.zero._gathering import GatheredParameters

if TYPE_CHECKING:
    from penstock._update import Update
    from penstock.pipe._replicated import ReplicatedStages
    from penstock.pipe.module import PipelineModule

__all__ = ["Checkpoint", "States", "latest", "set_latest"]

_LATEST = "latest"
_ENGINE = "engine.pt"


def latest(directory: Path) -> str | None:
    """The tag of the last checkpoint that all ranks have written; None where there is none."""
    path = directory / _LATEST
    return path.read_text(encoding="utf-8").strip() if path.is_file() else None


def set_latest(directory: Path, tag: str) -> None:
    """Says which one that is."""
    _planning.write_atomically(str(directory / _LATEST), f"{tag}\n")


@dataclass(frozen=True)
class States:
    """What a rank has for its updates: of its parts of parameters, masters and optimizer states."""

    replicated: ReplicatedStages
    update: Update

    def take(self) -> dict[str, dict[str, Any]]:
        """By parameter, under each of its names: first element and size of the part, its state.

        A part that is its own master has none.
        """
        taken = {}
        for names, first, part, master in self._parts():
            piece = {
                "first": first,
                "elements": master.numel(),
                "master": None if master is part else master.detach(),
                "state": dict(self.update.optimizer.state.get(master, {})),
            }
            taken.update(dict.fromkeys(names, piece))
        return taken

    def put(self, saved: Mapping[str, Sequence[Mapping[str, Any]]], where: Path) -> None:
        """The same, of parts that may be others, by parameter.

        Raises ConfigError where `saved`, the content of `where`, lacks what this rank needs.
        """
        for names, first, _, master in self._parts():
            pieces = sorted(saved.get(names[0], []), key=lambda piece: int(piece["first"]))
            if not _covers(pieces, first, first + master.numel()):
                raise ConfigError(f"{where} has no optimizer state of {names[0]}")
            if pieces[0]["master"] is not None:
                with torch.no_grad():
                    master.copy_(_cut([(each, each["master"]) for each in pieces], first, master))
            state = {}
            for key, value in pieces[0]["state"].items():
                state[key] = value.clone() if isinstance(value, torch.Tensor) else value
                if isinstance(value, torch.Tensor) and value.numel() == pieces[0]["elements"] > 1:
                    state[key] = _cut(
                        [(each, each["state"][key]) for each in pieces], first, master
                    )
            if state:
                self.update.optimizer.state[master] = state

    def _parts(self) -> Iterator[tuple[list[str], int, torch.Tensor, torch.Tensor]]:
        """The parameter's names, first element, and master, of each part that is updated here."""
        masters = iter(self.update.masters.tensors)
        for i in self.update.updated:
            names = self.replicated.names[id(self.replicated.parameters[i])]
            for part in self.replicated.parts[i]:
                yield names, self.replicated.first[i], part, next(masters)


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


@dataclass(frozen=True)
class Checkpoint:
    """The files of a checkpoint, as one rank writes and reads them.

    Raises ConfigError for a file that cannot be read, or that lacks what this rank needs.
    """

    folder: Path

    def save_weights(self, model: PipelineModule, *, writes: bool) -> None:
        """Those of this rank's layers.  Collective over replicas, one of which writes."""
        for index, module in model._written_layers().items():
            with GatheredParameters(module.parameters()):
                state = module.state_dict()
                if state and writes:
                    _write(self._layer(index), state)

    def load_weights(self, model: PipelineModule, strict: bool) -> None:
        """The same; all replicas read."""
        for index, module in model._saved_layers().items():
            with GatheredParameters(module.parameters(), modifier_rank=0):
                if not module.state_dict():
                    continue
                state = _read(self._layer(index))
                try:
                    module.load_state_dict(state, strict=strict)
                except RuntimeError as error:
                    raise ConfigError(f"{self._layer(index)}: {error}") from error

    def save_updates(self, states: States, place: str) -> None:
        """What one rank has for its updates."""
        _write(self.folder / f"optim_states-{place}.pt", states.take())

    def load_updates(self, states: States) -> None:
        """The same, from whichever ranks wrote it."""
        found: dict[str, list[dict[str, Any]]] = {}
        for path in sorted(self.folder.glob("optim_states-*.pt")):
            for name, piece in _read(path).items():
                pieces = found.setdefault(name, [])
                if all(piece["first"] != each["first"] for each in pieces):
                    pieces.append(piece)
        states.put(found, self.folder)

    def save_engine(self, update: Update, counters: Mapping[str, int], client_state: Any) -> None:
        """What is the same on all ranks."""
        scheduler = update.lr_scheduler
        groups = [
            {key: value for key, value in group.items() if key != "params"}
            for group in update.optimizer.param_groups
        ]
        _write(
            self.folder / _ENGINE,
            {
                "counters": dict(counters),
                "groups": groups,
                "scheduler": scheduler.state_dict() if scheduler is not None else None,
                "loss_scale": update.scale.state(),
                "client_state": client_state,
            },
        )

    def load_engine(self) -> dict[str, Any]:
        """The same: counters, groups, scheduler, client_state, and loss_scale if it is dynamic."""
        return _read(self.folder / _ENGINE)

    def _layer(self, index: int) -> Path:
        return self.folder / f"layer_{index:02d}-model_states.pt"


def _write(path: Path, values: Any) -> None:
    temporary = path.with_name(f"{path.name}.part")
    try:
        with temporary.open("wb") as file:
            torch.save(values, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error}") from error


def _read(path: Path) -> dict[str, Any]:
    try:
        values: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # Of as many kinds as a file can be broken.
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    return values
