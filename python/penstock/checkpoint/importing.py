"""`penstock checkpoint import FROM TO`: another system's checkpoint as one of penstock's.

FROM: a tag of DeepSpeed's (ZeRO 0 to 3, pipelines, universal), its folder, which has `latest`, or a
folder of torch.distributed.checkpoint.  TO: the folder to be made: `runs/a/step-00000100`.
Files are read without running what is in them.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from penstock import _standard_streams
from penstock._engines.importing.dcp_checkpoint import is_dcp, read_dcp
from penstock._engines.importing.deepspeed_checkpoint import is_deepspeed, read_deepspeed
from penstock._engines.importing.imported_checkpoint import Imported
from penstock._engines.saving.saved_checkpoint import latest
from penstock.errors import ConfigError, Error

__all__ = ["import_checkpoint", "main"]


def import_checkpoint(source: str | Path, folder: str | Path) -> Imported:
    """Makes `folder`, a checkpoint that `penstock train` and engines load; returns what it has.

    Raises ConfigError for a source that is no checkpoint, and CheckpointError for what cannot be
    read or written.
    """
    if Path(folder).exists():
        raise ConfigError(f"{folder} is there already: give a folder that is to be made")
    found = _read(Path(source))
    found.save(Path(folder).absolute())
    return found


def _read(source: Path) -> Imported:
    if not source.is_dir():
        raise ConfigError(f"{source} is no folder")
    folder = source / (latest(source) or "")
    if is_deepspeed(folder):
        return read_deepspeed(folder)
    if is_dcp(folder):
        return read_dcp(folder)
    raise ConfigError(
        f"{folder} is no checkpoint of DeepSpeed (it has no *_model_states.pt), and none of "
        f"torch.distributed.checkpoint (it has no .metadata)"
    )


def main(words: list[str] | None = None) -> int:
    """The command; returns its exit code."""
    _standard_streams.open_missing()
    parser = argparse.ArgumentParser(
        prog="penstock checkpoint import",
        description="Makes a checkpoint of one that DeepSpeed or torch.distributed.checkpoint has "
        "written.",
    )
    parser.add_argument("source", metavar="FROM", help="a tag, a folder of tags, or a DCP folder")
    parser.add_argument("folder", metavar="TO", help="the folder to be made")
    given = parser.parse_args(words)
    try:
        found = import_checkpoint(given.source, given.folder)
    except Error as error:
        print(f"penstock: {error}", file=sys.stderr)
        return error.exit_code
    elements = sum(each.numel() for each in found.weights.values())
    lines = [
        f"{given.folder}: step {found.step} of {found.source}, {len(found.weights)} tensors of "
        f"{elements} elements, optimizer states of {len(found.states)}",
        *(f"left out: {each}" for each in found.left_out),
    ]
    return _standard_streams.say("\n".join(lines))


if __name__ == "__main__":
    sys.exit(main())
