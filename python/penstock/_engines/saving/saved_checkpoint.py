"""The checkpoint of a folder that is meant, and the values in it.

Knows no engine.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from penstock import _planning, _torch
from penstock._engines.saving.saved_values import from_text
from penstock._foreign_files import read_foreign
from penstock.errors import CheckpointError, ConfigError, first_of

if TYPE_CHECKING:
    from penstock._runtime import Communicator, SavedCheckpoint, StatePiece

__all__ = [
    "LATEST",
    "OF_STAGE",
    "Values",
    "agree_on_checkpoint",
    "check_names",
    "folder_of",
    "latest",
    "open_checkpoint",
    "own_key",
    "states_in",
    "value_pieces",
    "write_weights",
    "written_beside",
]

LATEST = "latest"
OF_STAGE = "of stage "
_TAG_BYTES = 4096
_MANIFEST_BYTES = 1 << 29  # kManifestBytesMax in penstock/files/checkpoint/manifest.h.
_TOLD_MAX = 5
_VALUE = "value"  # The state of tensors that belong to values.
_OF_DEEPSPEED = "*mp_rank_*_model_states.pt"


def folder_of(directory: Path, tag: str | None) -> Path | None:
    """The folder of the checkpoint that is asked for.  Raises ConfigError where it is not there."""
    if tag is None and (directory / "manifest.json").is_file():
        return directory
    name = tag or latest(directory)
    if name is None:
        return None
    folder = directory / name
    if not folder.is_dir():
        raise ConfigError(f"{folder}: there is no such checkpoint{_others(directory)}")
    is_own = (folder / "manifest.json").is_file()
    if not is_own and next(folder.glob(_OF_DEEPSPEED), None) is not None:
        raise ConfigError(
            f"{folder} is a checkpoint of DeepSpeed: "
            f"`penstock checkpoint import {folder} FOLDER` makes one of penstock's"
        )
    return folder


def open_checkpoint(folder: Path) -> SavedCheckpoint:
    made: type[SavedCheckpoint] = _torch.load().SavedCheckpoint
    return made(str(folder))


def latest(directory: Path) -> str | None:
    """The tag of the last checkpoint that all ranks have written; None where there is none."""
    path = directory / LATEST
    if not path.exists():
        return None
    try:
        return read_foreign(path, _TAG_BYTES, CheckpointError).decode("utf-8").removesuffix("\n")
    except UnicodeDecodeError:
        raise CheckpointError(f"{path}: is no tag of a checkpoint: it is no UTF-8") from None


def own_key(stage: int, replica: int) -> str:
    """The key of the values that a rank has of its own."""
    return f"{OF_STAGE}{stage}, replica {replica}"


def _others(directory: Path) -> str:
    """What else there is, for a message."""
    if not directory.is_dir():
        return f", and no folder {directory}"
    names = sorted(each.parent.name for each in directory.glob("*/manifest.json"))
    shown = [each for each in names if not each.endswith((".saving", ".removing"))]
    return f": in {directory} there are {', '.join(shown)}" if shown else ""


def agree_on_checkpoint(
    communicator: Communicator, saved: SavedCheckpoint | None, wanted: str
) -> None:
    """Collective: all ranks have opened the same one, or none has; and load the same of it.

    Raises CommError with two ranks that differ.
    """
    runtime = _torch.load()
    facts = [*runtime.facts_of_checkpoint(saved), ("what is loaded", wanted)]
    runtime.agree(communicator, "checkpoint", facts)


def value_pieces(key: str, tensors: list[torch.Tensor]) -> list[StatePiece]:
    made: type[StatePiece] = _torch.load().StatePiece
    return [
        made(f"{key}#{number}", _VALUE, list(each.shape), each, is_slice=True)
        for number, each in enumerate(tensors)
    ]


def states_in(saved: SavedCheckpoint) -> dict[str, dict[str, tuple[torch.dtype, list[int]]]]:
    """Types and shapes of what a checkpoint has of parameters and buffers, by name and state."""
    found: dict[str, dict[str, tuple[torch.dtype, list[int]]]] = {}
    for name, state, dtype, shape in saved.tensors():
        if state != _VALUE:
            found.setdefault(name, {})[state] = (dtype, list(shape))
    return found


def check_names(saved: SavedCheckpoint, missing: Iterable[str], unexpected: Iterable[str]) -> None:
    """Raises CheckpointError with the first of them, if there are any."""
    wrong = [f"{name} is missing" for name in missing]
    wrong += [f"{name} is unexpected" for name in sorted(unexpected)]
    if wrong:
        raise CheckpointError(f"{saved.folder} does not fit: {first_of(wrong, _TOLD_MAX, '; ')}")


class Values:
    """The values of a checkpoint, by key."""

    def __init__(self, saved: SavedCheckpoint) -> None:
        self._saved = saved
        self.texts = saved.values
        self._tensors: dict[str, list[tuple[str, torch.dtype, list[int]]]] = {}
        for name, state, dtype, shape in saved.tensors():
            if state == _VALUE:
                self._tensors.setdefault(name.rpartition("#")[0], []).append((name, dtype, shape))

    def __contains__(self, key: str) -> bool:
        return key in self.texts

    def read(self, key: str) -> Any:
        """What was saved under a key.  Raises CheckpointError for a text that no value has."""
        made: type[StatePiece] = _torch.load().StatePiece
        tensors: dict[str, torch.Tensor] = {}
        for name, dtype, shape in self._tensors.get(key, []):
            tensors[name] = torch.empty(shape, dtype=dtype)
            self._saved.read(made(name, _VALUE, shape, tensors[name]))
        try:
            in_order = [tensors[f"{key}#{number}"] for number in range(len(tensors))]
            return from_text(self.texts[key], in_order)
        except Exception as error:  # There are as many kinds as a text can be wrong.
            raise CheckpointError(f"{self._saved.folder}: {key} is no value: {error}") from error


def write_weights(
    path: Path, state: Mapping[str, torch.Tensor], shared: Collection[str] = ()
) -> None:
    """Writes a file of safetensors, without the names that are `shared`, or, by its name,
    torch.save().

    The file is the old one or the new one, never a part.  Raises CheckpointError where another
    process writes it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = _planning.OutputLock.of_path(str(path), "weights")
    try:
        written, place = written_beside(path, state, shared)
        _planning.replace_together([], (written, place))
    finally:
        lock.let_go()


def written_beside(
    path: Path, state: Mapping[str, torch.Tensor], shared: Collection[str] = ()
) -> tuple[str, str]:
    """The same file, on the disk: where it is, and where it goes.  Its caller puts it in place."""
    place = Path(os.path.realpath(path))
    beside = place.with_name(f".{place.name}.{os.getpid()}")
    try:
        if path.suffix == ".safetensors":
            tensors = [(name, each) for name, each in state.items() if name not in shared]
            _torch.load().write_safetensors(str(beside), tensors)
        else:
            with beside.open("wb") as file:
                torch.save(dict(state), file)
                file.flush()
                os.fsync(file.fileno())
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    return str(beside), str(place)
