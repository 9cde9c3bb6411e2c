"""Checkpoints of an engine, by layer and by parameter: any other layout can go on from them.

    DIRECTORY/latest                             the tag to load if none is given
    DIRECTORY/TAG/layer_03-model_states.pt       weights and buffers of layer 3, by name
    DIRECTORY/TAG/optim_states-01-00.pt          by parameter, what the optimizer of a rank has
    DIRECTORY/TAG/engine.pt                      counters, rates, the course, what the caller adds

A tied layer is in the file of the first layer of its key.  Files are whole or not there; `latest`
changes when all ranks have written.  Files are read without running what is in them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from penstock import _planning
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from penstock.pipe._update import Update
    from penstock.pipe.module import PipelineModule

__all__ = ["Checkpoint", "latest", "set_latest"]

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
class Checkpoint:
    """The files of a checkpoint, as one rank writes and reads them.

    Raises ConfigError for a file that cannot be read, or that lacks what this rank needs.
    """

    folder: Path

    def save_weights(self, model: PipelineModule) -> None:
        """Those of this rank's layers."""
        for index, module in model.saved_layers().items():
            state = module.state_dict()
            if state:
                _write(self._layer(index), state)

    def load_weights(self, model: PipelineModule, strict: bool) -> None:
        """The same."""
        for index, module in model.saved_layers().items():
            if not module.state_dict():
                continue
            state = _read(self._layer(index))
            try:
                module.load_state_dict(state, strict=strict)
            except RuntimeError as error:
                raise ConfigError(f"{self._layer(index)}: {error}") from error

    def save_optimizer(self, model: PipelineModule, update: Update, place: str) -> None:
        """Of each parameter that this rank updates, under each of its names."""
        names: dict[int, list[str]] = {}
        for name, parameter in model.named_parameters(remove_duplicate=False):
            names.setdefault(id(parameter), []).append(name)
        states = {
            name: dict(update.optimizer.state.get(parameter, {}))
            for group in update.optimizer.param_groups
            for parameter in group["params"]
            for name in names[id(parameter)]
        }
        _write(self.folder / f"optim_states-{place}.pt", states)

    def load_optimizer(self, model: PipelineModule, update: Update) -> None:
        """The same, from whichever ranks wrote it."""
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        found: dict[str, Any] = {}
        for path in sorted(self.folder.glob("optim_states-*.pt")):
            found |= _read(path)
        for group in update.optimizer.param_groups:
            for parameter in group["params"]:
                name = names[id(parameter)]
                if name not in found:
                    raise ConfigError(f"{self.folder} has no optimizer state of {name}")
                state = {
                    key: value.clone() if isinstance(value, torch.Tensor) else value
                    for key, value in found[name].items()
                }
                if state:
                    update.optimizer.state[parameter] = state

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
                "client_state": client_state,
            },
        )

    def load_engine(self) -> dict[str, Any]:
        """The same: counters, groups, scheduler and client_state."""
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
