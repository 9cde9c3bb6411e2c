"""Writers of metrics: TensorBoard's event files, Weights & Biases, tables.

A writer takes the values of one step under their tags.
"""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any, Protocol

from penstock import _planning
from penstock._boards import event_files, weights_and_biases

# A line's keys in the metrics, and the tags on a board.
TAGS = {
    "loss": "loss/train",
    "val_loss": "loss/validation",
    "lr": "lr",
    "grad_norm": "grad_norm",
    "gradient_scale": "gradient_scale",
    "tokens_per_second": "tokens_per_second",
    "step_time_seconds": "step_time_seconds",
}

_TABLES = {
    "steps.csv": [tag for key, tag in TAGS.items() if key != "val_loss"],
    "validations.csv": [TAGS["val_loss"]],
    "samples.csv": ["text"],
}


class Writer(Protocol):
    """Has a place of its own, which its constructor makes ready."""

    def write(self, step: int, values: dict[str, float]) -> None:
        """The values of `step`, by tag."""

    def write_text(self, step: int, text: str) -> None:
        """A text that the model wrote after `step`, with its prompt."""

    def flush(self) -> None:
        """Lets readers find what was written."""

    def close(self) -> None:
        """The end."""


class TensorBoard:
    """Event files in `folder`; what an earlier board wrote there counts for nothing any more."""

    def __init__(self, folder: Path) -> None:
        self._writer = event_files(folder, purge_step=0)

    def write(self, step: int, values: dict[str, float]) -> None:
        """Writes scalars."""
        for tag, value in values.items():
            self._writer.add_scalar(tag, value, step)

    def write_text(self, step: int, text: str) -> None:
        """Writes the text "sample"."""
        self._writer.add_text("sample", text, step)

    def flush(self) -> None:
        """Flushes to the file."""
        self._writer.flush()

    def close(self) -> None:
        """Closes the file."""
        self._writer.close()


class WeightsAndBiases:
    """A new offline run in `run`/wandb; `wandb sync` sends it later."""

    def __init__(self, run: Path, project: str) -> None:
        self._run = weights_and_biases(
            project=project, name=run.resolve().name, dir=str(run), mode="offline"
        )

    def write(self, step: int, values: dict[str, float]) -> None:
        """Writes one line of its history."""
        self._run.log(values, step=step)

    def write_text(self, step: int, text: str) -> None:
        """Writes into the run's summary, which has the last one."""
        self._run.summary["sample"] = text

    def flush(self) -> None:
        """wandb writes by itself."""

    def close(self) -> None:
        """Ends the run."""
        self._run.finish()


class Tables:
    """`folder`/steps.csv, validations.csv and samples.csv, which are begun anew."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = _planning.OutputLock.of_path(str(folder / "steps.csv"), "tables")
        self._files: dict[str, io.TextIOWrapper] = {}
        self._rows: dict[str, Any] = {}
        for name, tags in _TABLES.items():
            self._files[name] = (folder / name).open("w", encoding="utf-8", newline="")
            self._rows[name] = csv.DictWriter(self._files[name], ["step", *tags])
            self._rows[name].writeheader()

    def write(self, step: int, values: dict[str, float]) -> None:
        """Writes a row; a value that a step has not is empty."""
        for name, tags in _TABLES.items():
            if own := {tag: value for tag, value in values.items() if tag in tags}:
                self._rows[name].writerow({"step": step, **own})

    def write_text(self, step: int, text: str) -> None:
        """Writes a row of samples.csv."""
        self._rows["samples.csv"].writerow({"step": step, "text": text})

    def flush(self) -> None:
        """Flushes to the files."""
        for file in self._files.values():
            file.flush()

    def close(self) -> None:
        """Closes the files."""
        for file in self._files.values():
            file.close()
        self._lock.let_go()
