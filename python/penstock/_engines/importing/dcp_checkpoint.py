"""Reads folders of torch.distributed.checkpoint: a model's state_dict, and its optimizer's.

Of the metadata, a pickle, only torch's own descriptions are read; values are tensors, or what
torch.load() reads with weights_only.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import ReadItem
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict

from penstock._engines.importing.imported_checkpoint import Imported
from penstock._engines.saving.module_states import equal
from penstock._foreign_files import open_foreign
from penstock.errors import CheckpointError

__all__ = ["is_dcp", "read_dcp"]

_DCP = "torch.distributed.checkpoint."
_KNOWN = {
    *((_DCP + "filesystem", name) for name in ("_StorageInfo", "_StoragePrefix")),
    *(
        (_DCP + "metadata", name)
        for name in (
            *("BytesStorageMetadata", "ChunkStorageMetadata", "Metadata", "MetadataIndex"),
            *("StorageMeta", "TensorProperties", "TensorStorageMetadata", "_MEM_FORMAT_ENCODING"),
        )
    ),
    *(("builtins", name) for name in ("dict", "int", "list", "set", "slice", "str", "tuple")),
    ("collections", "OrderedDict"),
    ("pathlib", "PosixPath"),
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),
}
_STATES = ("state", "param_groups")
State = Mapping[str, Any]


def is_dcp(folder: Path) -> bool:
    """Whether torch.distributed.checkpoint has written the folder."""
    return (folder / ".metadata").is_file()


def read_dcp(folder: Path) -> Imported:
    """Raises CheckpointError for what cannot be read, or is not taken over."""
    values: dict[str, Any] = {}
    try:
        reader = _Reader(folder)
        reader.read_metadata()  # Its errors are not torch's yet.
        planner: Any = _Planner
        _load_state_dict(values, reader, planner=planner(), no_dist=True)
    except CheckpointError:
        raise
    except Exception as error:  # There are as many kinds as a file can be broken.
        raise CheckpointError(f"{folder} cannot be read: {error}") from error
    optimizers = [(path, each) for path, each in _dicts(values, ()) if _is_optimizer(each)]
    models = [
        (path, each)
        for path, each in _dicts(values, ())
        if any(isinstance(value, torch.Tensor) for value in each.values())
        and not any(path[: len(other)] == other for other, _ in optimizers)
    ]
    if len(models) != 1 or len(optimizers) > 1:
        raise CheckpointError(
            f"{folder} has {len(models)} models and {len(optimizers)} optimizers "
            f"({', '.join('.'.join(path) or 'at the top' for path, _ in models + optimizers)}), "
            f"must have one model and at most one optimizer"
        )
    path, model = models[0]
    step = values.get("step", values.get("global_step", 0))
    found = Imported(int(step) if isinstance(step, int) else 0, "torch.distributed.checkpoint")
    for name, value in model.items():
        if isinstance(value, torch.Tensor):
            found.weights[name] = value
        else:
            found.left_out.append(f"{'.'.join((*path, name))}: a {type(value).__name__}")
    for _, optimizer in optimizers:
        _take_optimizer(optimizer, found)
    known = {path[0] for path, _ in models + optimizers if path}
    found.client_state = {
        key: value for key, value in values.items() if key not in known and key not in model
    }
    return found


class _Reader(FileSystemReader):
    """Reads files of this folder alone."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Raises CheckpointError for metadata that name other files, or run something."""
        path = Path(self.path) / ".metadata"
        with open_foreign(path, CheckpointError) as file:
            metadata = _Unpickler(file).load()
        if not isinstance(metadata, Metadata):
            raise CheckpointError(f"{path} has a {type(metadata).__name__}, must have Metadata")
        for place in (metadata.storage_data or {}).values():
            name = getattr(place, "relative_path", "")
            if not isinstance(name, str) or not name or Path(name).name != name:
                raise CheckpointError(f"{path} names the file {name!r}, which is not beside it")
        metadata.storage_meta = StorageMeta(load_id=self.load_id)
        return metadata


class _Planner(_EmptyStateDictLoadPlanner):
    """Loads values only if they are plain."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """Loads as the base does, and runs nothing."""
        plain = torch.load(value, map_location="cpu", weights_only=True)
        copy = io.BytesIO()
        torch.save(plain, copy)
        super().load_bytes(read_item, io.BytesIO(copy.getvalue()))


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Raises CheckpointError for what describes no tensors."""
        is_type = module == "torch" and isinstance(
            vars(torch).get(name), torch.dtype | torch.layout | torch.memory_format
        )
        if is_type or (module, name) in _KNOWN:
            return super().find_class(module, name)
        if (module, name) == ("builtins", "getattr"):  # Python 3.11.2 saves members of enums so.
            return _member_of_enum
        raise CheckpointError(f".metadata asks for {module}.{name}, which is not loaded")


def _member_of_enum(kind: Any, name: str) -> Any:
    """All that getattr() is good for here."""
    if isinstance(kind, type) and issubclass(kind, Enum) and name in kind.__members__:
        return kind[name]
    raise CheckpointError(f".metadata asks for the attribute {name!r} of {kind!r}")


def _dicts(value: State, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], State]]:
    yield path, value
    for key, each in value.items():
        if isinstance(each, Mapping) and not _is_optimizer(value):
            yield from _dicts(each, (*path, str(key)))


def _is_optimizer(value: State) -> bool:
    """Whether it is an optimizer's state, nested, or named like "state.0.weight.exp_avg"."""
    if set(_STATES) <= value.keys():
        return True
    return bool(value) and all(str(key).startswith(("state.", "param_groups.")) for key in value)


def _take_optimizer(optimizer: State, found: Imported) -> None:
    if "state" in optimizer:
        states = {str(name): dict(each) for name, each in optimizer["state"].items()}
        saved = optimizer["param_groups"]
        found.set_groups(saved, [list(map(str, each.get("params", ()))) for each in saved])
    else:
        states = {}
        for key, value in optimizer.items():
            if key.startswith("state."):
                name, _, state = key.removeprefix("state.").rpartition(".")
                states.setdefault(name, {})[state] = value
        options: dict[str, dict[str, Any]] = {}
        for key, value in optimizer.items():
            if key.startswith("param_groups."):
                name, _, option = key.removeprefix("param_groups.").rpartition(".")
                options.setdefault(name, {})[option] = value
        groups: list[tuple[dict[str, Any], list[str]]] = []
        for name, of_name in options.items():
            alike = next((names for known, names in groups if equal(known, of_name)), None)
            if alike is None:
                groups.append((of_name, [name]))
            else:
                alike.append(name)
        found.set_groups([each for each, _ in groups], [names for _, names in groups])
    unknown = states.keys() - found.weights.keys()
    if unknown:
        raise CheckpointError(
            f"the optimizer has states of {', '.join(sorted(unknown)[:5])}, and the model has no "
            f"such parameters: save what get_state_dict() gives, which has names"
        )
    found.states = states
