"""The lines of a run's metrics.jsonl and samples.jsonl, each once, also while they are written.

A run that goes on from a checkpoint replaces a file by the lines up to that checkpoint, and adds
to them what it computes again: the same values.  They are passed over here.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from penstock._foreign_files import open_foreign
from penstock.errors import ConfigError

_BYTES_MOST = 2 << 30  # kMetricsBytesMax in penstock/plan/measure/metrics_lines.h.

Line = dict[str, Any]


class GrowingLines:
    """The lines of a file to which a run adds; each has a step."""

    def __init__(self, path: Path, what: str) -> None:
        self._path, self._what = path, what  # A line is "metric".
        self._read = 0  # Bytes.
        self._last_read = b""  # The last of these bytes, a line.

    def new_lines(self) -> list[Line]:
        """The lines that are whole, and were not read before; of a file that is another one, all.

        Raises ConfigError for a line that cannot be read.
        """
        with open_foreign(self._path, most=_BYTES_MOST) as file:
            file.seek(self._read - len(self._last_read))
            if file.read(len(self._last_read)) != self._last_read:  # The file is another one.
                self._read = 0
                file.seek(0)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        if whole:
            self._last_read = whole.splitlines(keepends=True)[-1]
        lines = [self._parsed(line) for line in whole.splitlines()]
        self._read += len(whole)
        return lines

    def _parsed(self, text: bytes) -> Line:
        try:
            line: Line = json.loads(text)
            line["step"] = int(line["step"])
        except (ValueError, KeyError, TypeError):
            raise ConfigError(
                f'"{self._path}" has a line that is no {self._what}: {text!r}'
            ) from None
        return line


class Samples:
    """The texts that the model of a run wrote on the way; a run may have none."""

    def __init__(self, run: Path) -> None:
        self._path = run / "samples.jsonl"
        self._lines = GrowingLines(self._path, "sample")
        self._last = 0  # The step of the last one that was given out.

    def new_texts(self) -> list[tuple[int, str]]:
        """Step and text of those that were not given out before, with their prompts."""
        if not self._path.is_file():
            return []
        texts = []
        for line in self._lines.new_lines():
            if line["step"] > self._last and "text" in line:
                self._last = line["step"]
                texts.append((line["step"], f"{line.get('prompt', '')}{line['text']}"))
        return texts


class Metrics:
    """What a run has written, from its first step on.  Raises ConfigError where RUN is none."""

    def __init__(self, run: Path) -> None:
        self._path = run / "metrics.jsonl"
        if not self._path.is_file():
            raise ConfigError(
                f'"{run}" has no metrics.jsonl: RUN is the directory of a run of `penstock train`'
            )
        self._lines = GrowingLines(self._path, "metric")
        # By kind of line, the last step that was given out, and its loss.
        self._last: dict[str, tuple[int, object]] = {}

    def new_lines(self) -> list[Line]:
        """The lines that are whole, and were not given out before, in the order of the file.

        Raises ConfigError for a line that cannot be read, and when another run has begun in RUN.
        """
        return [line for line in self._lines.new_lines() if self._is_new(line)]

    def _is_new(self, line: Line) -> bool:
        kind = "val_loss" if "val_loss" in line else "loss"
        step, loss = self._last.get(kind, (0, None))
        if line["step"] == step and line.get(kind) != loss:
            raise ConfigError(
                f'"{self._path}": step {step} had the {kind} {loss}, and has {line.get(kind)} now: '
                "another run has begun in this directory; start the board again"
            )
        if line["step"] <= step:
            return False
        self._last[kind] = (line["step"], line.get(kind))
        return True
