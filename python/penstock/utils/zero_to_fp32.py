"""Whole weights in 32 bits of a checkpoint, whatever layout has written it.

    python -m penstock.utils.zero_to_fp32 CHECKPOINTS OUTPUT

CHECKPOINTS: a folder of tags, or one checkpoint, of an engine, of `penstock train`, or imported.
OUTPUT: a folder, which gets model.safetensors, or model-00001-of-00003.safetensors and so on with
model.safetensors.index.json; a name that ends with .bin, .pt or .safetensors is a file.
Source: deepspeed.utils.zero_to_fp32.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from penstock import _planning, _torch
from penstock._compatibility import refuse_in
from penstock._engines.saving.pieces import WEIGHT
from penstock._engines.saving.saved_checkpoint import (
    OF_STAGE,
    Values,
    folder_of,
    open_checkpoint,
    write_weights,
    written_beside,
)
from penstock.errors import ConfigError, Error

if TYPE_CHECKING:
    from penstock._runtime import SavedCheckpoint, StatePiece

__all__ = [
    "convert_zero_checkpoint_to_fp32_state_dict",
    "get_fp32_state_dict_from_zero_checkpoint",
    "load_state_dict_from_zero_checkpoint",
    "main",
]

refuse_in(globals())

_UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


def get_fp32_state_dict_from_zero_checkpoint(
    checkpoint_dir: str | Path,
    tag: str | None = None,
    exclude_frozen_parameters: bool = False,
    lazy_mode: bool = False,
) -> dict[str, torch.Tensor]:
    """Whole parameters and buffers by name, in host memory; short floating-point types as float.

    checkpoint_dir: a folder of tags, or one checkpoint; tag: None: the latest.
    exclude_frozen_parameters: those that the engine did not train are left out.
    lazy_mode: changes nothing.

    Raises ConfigError where there is no checkpoint, and CheckpointError for a damaged one.
    """
    del lazy_mode
    saved = _open(checkpoint_dir, tag)
    shared, frozen = _of_engine(saved)
    found = {
        name: tensor
        for name, tensor in _weights(saved)
        if not (exclude_frozen_parameters and name in frozen)
    }
    for name, other in shared.items():
        if other in found:
            found[name] = found[other]
    return found


def load_state_dict_from_zero_checkpoint(
    model: torch.nn.Module, checkpoint_dir: str | Path, tag: str | None = None
) -> torch.nn.Module:
    """The model, with the checkpoint's weights."""
    model.load_state_dict(
        get_fp32_state_dict_from_zero_checkpoint(checkpoint_dir, tag), strict=False
    )
    return model


def convert_zero_checkpoint_to_fp32_state_dict(
    checkpoint_dir: str | Path,
    output_dir: str | Path,
    max_shard_size: str | int | None = "5GB",
    safe_serialization: bool = True,
    tag: str | None = None,
    exclude_frozen_parameters: bool = False,
) -> None:
    """Writes them, as the command does.

    max_shard_size: of a file: "5GB", or bytes; None: one file.
    safe_serialization: safetensors; False: pytorch_model.bin of torch.save().
    """
    state = get_fp32_state_dict_from_zero_checkpoint(checkpoint_dir, tag, exclude_frozen_parameters)
    output = Path(output_dir)
    if output.suffix in (".bin", ".pt", ".safetensors"):
        write_weights(
            output, next(_shards(state, None, keeps_shared=output.suffix != ".safetensors"))
        )
        return
    output.mkdir(parents=True, exist_ok=True)
    stem, ending = ("model", "safetensors") if safe_serialization else ("pytorch_model", "bin")
    shards = list(_shards(state, _bytes(max_shard_size), keeps_shared=not safe_serialization))
    whole, index = output / f"{stem}.{ending}", output / f"{stem}.{ending}.index.json"
    lock = _planning.OutputLock.of_folder(str(output), "weights")
    try:
        # Loaders take the one or the other: what is not written now is of an earlier model.
        if len(shards) == 1:
            write_weights(whole, shards[0])
            index.unlink(missing_ok=True)
        else:
            _write_shards(output, f"{stem}-{{:05}}-of-{len(shards):05}.{ending}", shards, index)
            whole.unlink(missing_ok=True)
    finally:
        lock.let_go()


def _write_shards(
    output: Path, form: str, shards: list[dict[str, torch.Tensor]], index: Path
) -> None:
    """form: of their names, which have a number.  All are written before any has its place."""
    places: dict[str, str] = {}
    written: list[tuple[str, str]] = []
    try:
        for number, shard in enumerate(shards, 1):
            name = form.format(number)
            written.append(written_beside(output / name, shard))
            places.update(dict.fromkeys(shard, name))
        size = sum(each.nbytes for shard in shards for each in shard.values())
        beside = index.with_name(f".{index.name}.{os.getpid()}")
        text = json.dumps({"metadata": {"total_size": size}, "weight_map": places})
        _planning.write_atomically(str(beside), text)
        _planning.replace_together(written, (str(beside), os.path.realpath(index)))
    finally:
        for file, _ in written:
            Path(file).unlink(missing_ok=True)


def _open(directory: str | Path, tag: str | None) -> SavedCheckpoint:
    folder = folder_of(Path(directory), tag)
    if folder is None:
        raise ConfigError(f"{directory} has no file `latest`: say the tag")
    return open_checkpoint(folder)


def _weights(saved: SavedCheckpoint) -> Iterator[tuple[str, torch.Tensor]]:
    made: type[StatePiece] = _torch.load().StatePiece
    for name, state, dtype, shape in saved.tensors():
        if state == WEIGHT:
            tensor = torch.empty(shape, dtype=dtype)
            saved.read(made(name, state, shape, tensor))
            is_short = dtype.is_floating_point and dtype.itemsize < torch.float32.itemsize
            yield name, tensor.float() if is_short else tensor


def _of_engine(saved: SavedCheckpoint) -> tuple[dict[str, str], set[str]]:
    """Names of parameters that are others, and these; and of those that nobody trained."""
    values = Values(saved)
    shared: dict[str, str] = {}
    frozen: set[str] = set()
    for key in values.texts:
        if key == "engine" or key.startswith(OF_STAGE):
            found = values.read(key)
            shared.update(found.get("shared", {}))
            frozen.update(found.get("frozen", []))
    return shared, frozen


def _bytes(size: str | int | None) -> int | None:
    if size is None or isinstance(size, int):
        return size
    parts = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(KB|MB|GB|TB)", size.strip().upper())
    if parts is None:
        raise ConfigError(f"max_shard_size is {size!r}, must be like 5GB, or a number of bytes")
    return int(float(parts[1]) * _UNITS[parts[2]])


def _shards(
    state: dict[str, torch.Tensor], most: int | None, *, keeps_shared: bool
) -> Iterator[dict[str, torch.Tensor]]:
    """Shards in order, each of at most `most` bytes, or one tensor; a shared one has one name."""
    shard: dict[str, torch.Tensor] = {}
    size = 0
    seen: set[int] = set()
    for name, tensor in state.items():
        if not keeps_shared and id(tensor) in seen:
            continue
        seen.add(id(tensor))
        if shard and most is not None and size + tensor.nbytes > most:
            yield shard
            shard, size = {}, 0
        shard[name] = tensor
        size += tensor.nbytes
    yield shard


def main(words: list[str] | None = None) -> int:
    """The command; returns its exit code."""
    parser = argparse.ArgumentParser(prog="zero_to_fp32", description=__doc__.split("\n")[0])
    parser.add_argument("checkpoint_dir", help="a folder of tags, or one checkpoint")
    parser.add_argument("output_dir", help="a folder, or a file")
    parser.add_argument("--max_shard_size", default="5GB", help="of a file; 5GB")
    parser.add_argument("--safe_serialization", action="store_true", help="as it is anyway")
    parser.add_argument("--bin", action="store_true", help="pytorch_model.bin of torch.save()")
    parser.add_argument("-t", "--tag", help="the latest, if none is given")
    parser.add_argument("--exclude_frozen_parameters", action="store_true")
    parser.add_argument("-d", "--debug", action="store_true", help="changes nothing")
    given: Any = parser.parse_args(words)
    try:
        convert_zero_checkpoint_to_fp32_state_dict(
            given.checkpoint_dir,
            given.output_dir,
            given.max_shard_size,
            not given.bin,
            given.tag,
            given.exclude_frozen_parameters,
        )
    except Error as error:
        print(f"penstock: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
